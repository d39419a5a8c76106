/* Stores of every kind: what is set is found, waits end, and a handle may go while its group lives. */
#include "bindings/c/tests/check.h"

#define KEY(text) (text), LEAFPACK_TO_ZERO

/* The value must be bytes; frees it. */
static void check_value(leafpack_value* value, const char* expected, size_t expected_size) {
  int32_t kind = -1;
  const char* text = NULL;
  size_t size = 0;
  OK(leafpack_value_kind(value, &kind));
  CHECK_INT(kind, LEAFPACK_VALUE_BYTES);
  OK(leafpack_value_get_text(value, &text, &size));
  CHECK_INT(size, expected_size);
  CHECK(memcmp(text, expected, size) == 0);
  leafpack_value_free(value);
}

static void use(leafpack_store* store, int removes) {
  leafpack_value* value = NULL;
  int32_t there = -1;
  int64_t number = -1;
  OK(leafpack_store_has(store, KEY("bytes"), &there));
  CHECK_INT(there, 0);
  /* Keys and values are any bytes. */
  OK(leafpack_store_set(store, "by\0tes", 6, "a\0b", 3));
  OK(leafpack_store_set(store, KEY("bytes"), "text", LEAFPACK_TO_ZERO));
  OK(leafpack_store_get(store, "by\0tes", 6, &value));
  check_value(value, "a\0b", 3);
  OK(leafpack_store_get(store, KEY("bytes"), &value));
  check_value(value, "text", 4);
  OK(leafpack_store_has(store, KEY("bytes"), &there));
  CHECK_INT(there, 1);
  OK(leafpack_store_wait(store, KEY("bytes"), 0));

  OK(leafpack_store_add(store, KEY("number"), 40, &number));
  OK(leafpack_store_add(store, KEY("number"), 2, &number));
  CHECK_INT(number, 42);
  OK(leafpack_store_get(store, KEY("number"), &value));
  check_value(value, "42", 2);
  FAILS(leafpack_store_add(store, KEY("bytes"), 1, &number), LEAFPACK_FAILED_PRECONDITION, "bytes");
  FAILS(leafpack_store_add(store, "by\0tes", 6, 1, &number), LEAFPACK_FAILED_PRECONDITION,
        "add of 'by\\x00tes': its value is no number: 'a\\x00b'");
  REFUSED(leafpack_store_add(store, KEY("number"), INT64_MAX, &number),
          "'number': out of range: adding 9223372036854775807 to 42");
  CHECK_INT(number, 42);

  OK(leafpack_store_compare_set(store, KEY("bytes"), KEY("other"), KEY("new"), &value));
  check_value(value, "text", 4);
  OK(leafpack_store_compare_set(store, KEY("bytes"), KEY("text"), KEY("new"), &value));
  check_value(value, "new", 3);

  int64_t before = 0;
  OK(leafpack_store_num_keys(store, &before));
  CHECK(before >= 3);
  if (removes) {
    OK(leafpack_store_remove(store, KEY("bytes"), &there));
    CHECK_INT(there, 1);
    OK(leafpack_store_remove(store, KEY("bytes"), &there));
    CHECK_INT(there, 0);
    OK(leafpack_store_remove(store, KEY("number"), NULL));
    OK(leafpack_store_num_keys(store, &number));
    CHECK_INT(number, before - 2);
  }

  /* A wait for what nobody sets ends. */
  FAILS(leafpack_store_wait(store, KEY("never"), 50), LEAFPACK_DEADLINE_EXCEEDED, "never");

  leafpack_store* prefixed = NULL;
  leafpack_store* clone = NULL;
  OK(leafpack_store_with_prefix(store, "p", &prefixed));
  OK(leafpack_store_set(prefixed, KEY("key"), "inside", 6));
  OK(leafpack_store_clone(store, &clone));
  OK(leafpack_store_get(clone, KEY("p/key"), &value));
  check_value(value, "inside", 6);
  leafpack_store_free(clone);
  leafpack_store_free(prefixed);

  leafpack_group* group = NULL;
  OK(leafpack_group_from_store(store, "group", 0, 1, NULL, NULL, &group));
  leafpack_store_free(store);
  OK(leafpack_barrier(group, NULL));
  leafpack_group_free(group);
  check_no_leaks();
}

int main(void) {
  leafpack_store* store = NULL;
  OK(leafpack_store_memory(0, &store));
  use(store, 1);

  OK(leafpack_store_tcp("localhost", 0, 1, 60000, &store));
  int32_t port = 0;
  OK(leafpack_store_port(store, &port));
  CHECK(port > 0 && port < 65536);
  use(store, 1);

  char path[1024];
  const char* folder = getenv("TEST_TMPDIR");
  CHECK(folder != NULL);
  snprintf(path, sizeof(path), "%s/store", folder);
  OK(leafpack_store_file(path, 60000, &store));
  OK(leafpack_store_port(store, &port));
  CHECK_INT(port, 0);
  use(store, 1);

  /* Nobody serves there: the end of the time is an error that says where. */
  OK(leafpack_store_tcp("localhost", 0, 1, 60000, &store));
  OK(leafpack_store_port(store, &port));
  leafpack_store_free(store);
  store = NULL;
  leafpack_error* error = leafpack_store_tcp("localhost", port, 0, 300, &store);
  CHECK(error != NULL && store == NULL);
  CHECK(strstr(leafpack_error_message(error), "localhost") != NULL);
  leafpack_error_free(error);
  check_no_leaks();
  return 0;
}
