/* What the C tests share: checks that name what failed and end the program, and small trees. */
#ifndef LEAFPACK_BINDINGS_C_TESTS_CHECK_H_
#define LEAFPACK_BINDINGS_C_TESTS_CHECK_H_

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bindings/c/leafpack.h"

#define CHECK(condition)                                                              \
  do {                                                                                \
    if (!(condition)) {                                                               \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);       \
      exit(1);                                                                        \
    }                                                                                 \
  } while (0)

#define CHECK_INT(value, expected)                                                    \
  do {                                                                                \
    const long long value_ = (long long)(value);                                      \
    const long long expected_ = (long long)(expected);                                \
    if (value_ != expected_) {                                                        \
      fprintf(stderr, "%s:%d: %s is %lld, not %lld\n", __FILE__, __LINE__, #value,    \
              value_, expected_);                                                     \
      exit(1);                                                                        \
    }                                                                                 \
  } while (0)

#define CHECK_TEXT(value, expected)                                                   \
  do {                                                                                \
    const char* value_ = (value);                                                     \
    if (strcmp(value_, (expected)) != 0) {                                            \
      fprintf(stderr, "%s:%d: %s is \"%s\", not \"%s\"\n", __FILE__, __LINE__,        \
              #value, value_, (expected));                                            \
      exit(1);                                                                        \
    }                                                                                 \
  } while (0)

/* The call must succeed. */
#define OK(call)                                                                      \
  do {                                                                                \
    leafpack_error* error_ = (call);                                                  \
    if (error_ != NULL) {                                                             \
      fprintf(stderr, "%s:%d: %s failed with code %d: %s\n", __FILE__, __LINE__,      \
              #call, (int)leafpack_error_code(error_), leafpack_error_message(error_)); \
      exit(1);                                                                        \
    }                                                                                 \
  } while (0)

static inline void check_error(leafpack_error* error, int32_t code, const char* part,
                               const char* file, int line, const char* call) {
  if (error == NULL) {
    fprintf(stderr, "%s:%d: %s succeeded\n", file, line, call);
    exit(1);
  }
  if (leafpack_error_code(error) != code ||
      strstr(leafpack_error_message(error), part) == NULL) {
    fprintf(stderr, "%s:%d: %s failed with code %d, not %d, or without \"%s\": %s\n", file, line,
            call, (int)leafpack_error_code(error), (int)code, part,
            leafpack_error_message(error));
    exit(1);
  }
  leafpack_error_free(error);
}

/* The call must fail with this code and a message that holds this text. */
#define FAILS(call, code, part) check_error((call), (code), (part), __FILE__, __LINE__, #call)
#define REFUSED(call, part) FAILS(call, LEAFPACK_INVALID_ARGUMENT, part)

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* A row of floats at `name` of a tree; the tensor owns them. Returns where they are. */
static inline float* add_floats(leafpack_tree* tree, const char* name, int64_t count,
                                float first) {
  const leafpack_component path[] = {LEAFPACK_BY_NAME(name)};
  leafpack_tensor* tensor = NULL;
  leafpack_tensor_info info = LEAFPACK_TENSOR_INFO_INIT;
  OK(leafpack_tensor_zeros(LEAFPACK_FLOAT32, 1, &count, &tensor));
  OK(leafpack_tensor_get_info(tensor, &info));
  OK(leafpack_tree_set_tensor(tree, path, LENGTH(path), tensor));
  leafpack_tensor_free(tensor);
  for (int64_t i = 0; i < count; ++i) ((float*)info.data)[i] = first + (float)i;
  return info.data;
}

/* The floats at `name` of a tree, and their number. They live as long as they stand in a tree. */
static inline float* floats_at(const leafpack_tree* tree, const char* name, int64_t* count) {
  const leafpack_component path[] = {LEAFPACK_BY_NAME(name)};
  leafpack_tensor* tensor = NULL;
  leafpack_tensor_info info = LEAFPACK_TENSOR_INFO_INIT;
  OK(leafpack_tree_get_tensor(tree, path, LENGTH(path), &tensor));
  OK(leafpack_tensor_get_info(tensor, &info));
  leafpack_tensor_free(tensor);
  CHECK_INT(info.dtype, LEAFPACK_FLOAT32);
  if (count != NULL) *count = info.num_elements;
  return info.data;
}

static inline leafpack_tree* new_tree(void) {
  leafpack_tree* tree = NULL;
  OK(leafpack_tree_new(NULL, 0, &tree));
  return tree;
}

/* No handle may be left. */
static inline void check_no_leaks(void) { CHECK_INT(leafpack_live_handles(), 0); }

#endif /* LEAFPACK_BINDINGS_C_TESTS_CHECK_H_ */
