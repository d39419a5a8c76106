/* Trees, values, entries, layouts, versions and errors, in one process. */
#include "bindings/c/tests/check.h"

static void versions(void) {
  char text[64];
  snprintf(text, sizeof(text), "%d.%d.%d", LEAFPACK_VERSION_MAJOR, LEAFPACK_VERSION_MINOR,
           LEAFPACK_VERSION_PATCH);
  CHECK_TEXT(leafpack_version(), text);
  CHECK_INT(leafpack_version_number(), LEAFPACK_VERSION_MAJOR * 10000 +
                                           LEAFPACK_VERSION_MINOR * 100 + LEAFPACK_VERSION_PATCH);
  CHECK_INT(leafpack_abi_version(), LEAFPACK_ABI_VERSION);
  CHECK(strncmp(leafpack_torch_version(), "2.13", 4) == 0);
}

static void set_and_get(void) {
  leafpack_tree* tree = new_tree();
  const leafpack_component bias[] = {LEAFPACK_BY_NAME("encoder"), LEAFPACK_AT(3),
                                     LEAFPACK_BY_NAME("bias")};
  const leafpack_component plain[] = {LEAFPACK_BY_NAME("a.b")};
  const int64_t sizes[] = {2, 3};
  leafpack_tensor* tensor = NULL;
  OK(leafpack_tensor_zeros(LEAFPACK_INT64, 2, sizes, &tensor));
  OK(leafpack_tree_set_tensor(tree, bias, 3, tensor));
  OK(leafpack_tree_set_tensor(tree, plain, 1, tensor));
  leafpack_tensor_free(tensor);

  int32_t there = -1;
  OK(leafpack_tree_contains(tree, bias, 3, &there));
  CHECK_INT(there, 1);
  OK(leafpack_tree_contains(tree, bias, 2, &there));
  CHECK_INT(there, 1);
  OK(leafpack_tree_contains(tree, bias + 1, 1, &there));
  CHECK_INT(there, 0);

  leafpack_tensor* first = NULL;
  leafpack_tensor* second = NULL;
  leafpack_tensor_info first_info = LEAFPACK_TENSOR_INFO_INIT;
  leafpack_tensor_info second_info = LEAFPACK_TENSOR_INFO_INIT;
  OK(leafpack_tree_get_tensor(tree, bias, 3, &first));
  OK(leafpack_tree_get_tensor(tree, plain, 1, &second));
  OK(leafpack_tensor_get_info(first, &first_info));
  OK(leafpack_tensor_get_info(second, &second_info));
  CHECK(first_info.data != NULL);
  CHECK(first_info.data == second_info.data); /* shared, not copied */
  CHECK_INT(first_info.num_dims, 2);
  CHECK_INT(first_info.sizes[1], 3);
  CHECK_INT(first_info.strides[0], 3);
  CHECK_INT(first_info.element_size, 8);
  CHECK_INT(first_info.num_elements, 6);
  CHECK_INT(first_info.device_type, 1);
  CHECK_INT(first_info.kind, LEAFPACK_DENSE);

  FAILS(leafpack_tree_get_tensor(tree, bias + 2, 1, &first), LEAFPACK_NOT_FOUND, "bias");
  REFUSED(leafpack_tree_get_tensor(tree, bias, 2, &first), "encoder[3]");
  REFUSED(leafpack_tree_get_value(tree, plain, 1, NULL), "value is NULL");
  REFUSED(leafpack_tree_set_tensor(tree, NULL, 0, first), "");

  leafpack_tree* node = NULL;
  OK(leafpack_tree_get_tree(tree, bias, 2, &node));
  size_t leaves = 0;
  OK(leafpack_tree_num_leaves(node, &leaves));
  CHECK_INT(leaves, 1);
  /* A tree must not stand below itself. */
  REFUSED(leafpack_tree_set_tree(node, plain, 1, tree), "");
  OK(leafpack_tree_erase(tree, bias, 3));
  OK(leafpack_tree_num_leaves(node, &leaves));
  CHECK_INT(leaves, 0);
  FAILS(leafpack_tree_erase(tree, bias, 3), LEAFPACK_NOT_FOUND, "bias");
  leafpack_tree_free(tree);

  /* The node and the tensors live on. */
  OK(leafpack_tree_set_tensor(node, bias, 1, first));
  OK(leafpack_tree_num_leaves(node, &leaves));
  CHECK_INT(leaves, 1);
  OK(leafpack_tree_clear(node));
  OK(leafpack_tree_num_leaves(node, &leaves));
  CHECK_INT(leaves, 0);
  leafpack_tree_free(node);
  leafpack_tensor_free(first);
  leafpack_tensor_free(second);
  check_no_leaks();
}

static void batch_sizes(void) {
  const int64_t batch[] = {4};
  const int64_t sizes[] = {4, 2};
  const int64_t wrong[] = {3, 2};
  const leafpack_component path[] = {LEAFPACK_BY_NAME("x")};
  leafpack_tree* tree = NULL;
  leafpack_tensor* tensor = NULL;
  OK(leafpack_tree_new(batch, 1, &tree));
  OK(leafpack_tensor_zeros(LEAFPACK_FLOAT32, 2, wrong, &tensor));
  REFUSED(leafpack_tree_set_tensor(tree, path, 1, tensor), "x");
  leafpack_tensor_free(tensor);
  OK(leafpack_tensor_zeros(LEAFPACK_FLOAT32, 2, sizes, &tensor));
  OK(leafpack_tree_set_tensor(tree, path, 1, tensor));
  leafpack_tensor_free(tensor);
  size_t dims = 0;
  const int64_t* read = NULL;
  OK(leafpack_tree_batch_size(tree, &dims, &read));
  CHECK_INT(dims, 1);
  CHECK_INT(read[0], 4);
  REFUSED(leafpack_tree_set_batch_size(tree, wrong, 1), "x");
  OK(leafpack_tree_set_batch_size(tree, sizes, 2));
  OK(leafpack_tree_batch_size(tree, &dims, NULL));
  CHECK_INT(dims, 2);
  const int64_t negative[] = {-1};
  REFUSED(leafpack_tree_set_batch_size(tree, negative, 1), "-1");
  leafpack_tree_free(tree);
  check_no_leaks();
}

static leafpack_value* text_value(const char* text) {
  leafpack_value* value = NULL;
  OK(leafpack_value_string(text, LEAFPACK_TO_ZERO, &value));
  return value;
}

static void values(void) {
  leafpack_value* items[4] = {NULL};
  leafpack_value* value = NULL;
  leafpack_value* item = NULL;
  int32_t kind = -1;
  OK(leafpack_value_int(-7, &items[0]));
  OK(leafpack_value_float(2.5, &items[1]));
  OK(leafpack_value_bool(5, &items[2]));
  OK(leafpack_value_bytes("a\0b", 3, &items[3]));
  OK(leafpack_value_list((const leafpack_value* const*)items, 4, &value));
  OK(leafpack_value_kind(value, &kind));
  CHECK_INT(kind, LEAFPACK_VALUE_LIST);
  size_t size = 0;
  OK(leafpack_value_get_size(value, &size));
  CHECK_INT(size, 4);

  int64_t number = 0;
  double real = 0;
  int32_t truth = -1;
  const char* text = NULL;
  OK(leafpack_value_get_int(items[0], &number));
  CHECK_INT(number, -7);
  OK(leafpack_value_get_float(items[1], &real));
  CHECK(real == 2.5);
  OK(leafpack_value_get_bool(items[2], &truth));
  CHECK_INT(truth, 1);
  OK(leafpack_value_get_item(value, 3, &item));
  OK(leafpack_value_get_text(item, &text, &size));
  CHECK_INT(size, 3);
  CHECK(memcmp(text, "a\0b", 4) == 0);
  REFUSED(leafpack_value_get_int(item, &number), "bytes, not int");
  REFUSED(leafpack_value_get_float(items[0], &real), "int, not float");
  REFUSED(leafpack_value_get_bool(items[0], &truth), "int, not bool");
  REFUSED(leafpack_value_get_text(items[0], &text, &size), "int, not string");
  REFUSED(leafpack_value_get_size(items[0], &size), "int, not list");
  FAILS(leafpack_value_get_item(value, 4, &item), LEAFPACK_OUT_OF_RANGE, "4");

  leafpack_tree* tree = new_tree();
  const leafpack_component path[] = {LEAFPACK_BY_NAME("meta")};
  OK(leafpack_tree_set_value(tree, path, 1, value));
  leafpack_value_free(value);
  OK(leafpack_tree_get_value(tree, path, 1, &value));
  OK(leafpack_value_get_size(value, &size));
  CHECK_INT(size, 4);
  leafpack_tensor* tensor = NULL;
  REFUSED(leafpack_tree_get_tensor(tree, path, 1, &tensor), "meta");
  leafpack_value_free(value);
  leafpack_value_free(item);
  OK(leafpack_value_none(&item));
  OK(leafpack_value_kind(item, &kind));
  CHECK_INT(kind, LEAFPACK_VALUE_NONE);
  leafpack_value_free(item);
  for (size_t i = 0; i < LENGTH(items); ++i) leafpack_value_free(items[i]);
  leafpack_tree_free(tree);
  check_no_leaks();
}

static void entries(void) {
  leafpack_tree* tree = new_tree();
  leafpack_tree* empty = new_tree();
  add_floats(tree, "b", 2, 0);
  add_floats(tree, "a", 3, 0);
  leafpack_component name[] = {LEAFPACK_BY_NAME("z\0z"), LEAFPACK_AT(10)};
  name[0].name_size = 3;
  leafpack_value* value = text_value("v");
  OK(leafpack_tree_set_value(tree, name, 2, value));
  leafpack_value_free(value);
  const leafpack_component nothing[] = {LEAFPACK_BY_NAME("empty")};
  OK(leafpack_tree_set_tree(tree, nothing, 1, empty));
  leafpack_tree_free(empty);

  leafpack_entries* all = NULL;
  size_t size = 0;
  OK(leafpack_tree_leaves(tree, &all));
  OK(leafpack_tree_clear(tree)); /* a snapshot */
  OK(leafpack_entries_size(all, &size));
  CHECK_INT(size, 3);
  const char* text = NULL;
  OK(leafpack_entries_path_text(all, 0, &text));
  CHECK_TEXT(text, "a");
  OK(leafpack_entries_path_text(all, 1, &text));
  CHECK_TEXT(text, "b");
  const leafpack_component* path = NULL;
  size_t depth = 0;
  OK(leafpack_entries_path(all, 2, &path, &depth));
  CHECK_INT(depth, 2);
  CHECK_INT(path[0].kind, LEAFPACK_NAME);
  CHECK_INT(path[0].name_size, 3);
  CHECK(memcmp(path[0].name, "z\0z", 4) == 0);
  CHECK_INT(path[1].kind, LEAFPACK_POSITION);
  CHECK_INT(path[1].position, 10);
  int32_t kind = 0;
  OK(leafpack_entries_kind(all, 0, &kind));
  CHECK_INT(kind, LEAFPACK_ENTRY_TENSOR);
  OK(leafpack_entries_kind(all, 2, &kind));
  CHECK_INT(kind, LEAFPACK_ENTRY_VALUE);
  leafpack_tensor* tensor = NULL;
  OK(leafpack_entries_tensor(all, 0, &tensor));
  leafpack_tensor_free(tensor);
  REFUSED(leafpack_entries_tensor(all, 2, &tensor), "tensor");
  OK(leafpack_entries_value(all, 2, &value));
  REFUSED(leafpack_entries_value(all, 0, &value), "value");
  FAILS(leafpack_entries_kind(all, 3, &kind), LEAFPACK_OUT_OF_RANGE, "3");

  /* A path that came out can go in. */
  OK(leafpack_tree_set_value(tree, path, depth, value));
  leafpack_value_free(value);
  leafpack_entries_free(all);
  OK(leafpack_tree_children(tree, &all));
  OK(leafpack_entries_size(all, &size));
  CHECK_INT(size, 1);
  OK(leafpack_entries_kind(all, 0, &kind));
  CHECK_INT(kind, LEAFPACK_ENTRY_TREE);
  leafpack_tree* child = NULL;
  OK(leafpack_entries_tree(all, 0, &child));
  OK(leafpack_tree_num_leaves(child, &size));
  CHECK_INT(size, 1);
  leafpack_tree_free(child);
  leafpack_entries_free(all);
  leafpack_tree_free(tree);
  check_no_leaks();
}

static void layouts(void) {
  leafpack_tree* one = new_tree();
  leafpack_tree* other = new_tree();
  add_floats(one, "b", 2, 0);
  add_floats(one, "a", 3, 0);
  add_floats(other, "a", 3, 9);
  add_floats(other, "b", 2, 9);
  leafpack_layout* layout = NULL;
  uint64_t low[2];
  uint64_t high[2];
  const char* text = NULL;
  int64_t bytes = 0;
  OK(leafpack_layout_of(one, &layout));
  OK(leafpack_layout_text(layout, &text));
  CHECK_TEXT(text, "a: float32 [3] cpu\nb: float32 [2] cpu\n");
  OK(leafpack_layout_num_bytes(layout, &bytes));
  CHECK_INT(bytes, 20);
  OK(leafpack_layout_digest(layout, &low[0], &high[0]));
  leafpack_layout_free(layout);
  OK(leafpack_layout_of(other, &layout));
  OK(leafpack_layout_digest(layout, &low[1], &high[1]));
  leafpack_layout_free(layout);
  CHECK(low[0] == low[1] && high[0] == high[1]); /* order and values do not matter */
  add_floats(other, "c", 1, 0);
  OK(leafpack_layout_of(other, &layout));
  OK(leafpack_layout_digest(layout, &low[1], &high[1]));
  leafpack_layout_free(layout);
  CHECK(low[0] != low[1] || high[0] != high[1]);
  leafpack_tree_free(one);
  leafpack_tree_free(other);
  check_no_leaks();
}

static void errors(void) {
  const int32_t* ranks = NULL;
  CHECK_INT(leafpack_error_code(NULL), LEAFPACK_OK);
  CHECK_TEXT(leafpack_error_message(NULL), "");
  CHECK_INT(leafpack_error_ranks(NULL, &ranks), 0);
  CHECK_INT(leafpack_error_tree_unchanged(NULL), 1);
  leafpack_error* error = leafpack_tree_new(NULL, 0, NULL);
  CHECK(error != NULL);
  CHECK_INT(leafpack_error_code(error), LEAFPACK_INVALID_ARGUMENT);
  CHECK_INT(leafpack_error_kind(error), LEAFPACK_KIND_OTHER);
  CHECK_TEXT(leafpack_error_path(error), "");
  CHECK_TEXT(leafpack_error_path_done(error, 7), "");
  CHECK_INT(leafpack_error_num_paths_done(error), 0);
  CHECK_INT(leafpack_error_outcome_unknown(error), 0);
  leafpack_error_free(error);
  CHECK_INT(leafpack_error_code(error), LEAFPACK_INVALID_ARGUMENT);
  CHECK_TEXT(leafpack_error_message(error), "error is no leafpack_error that is alive");
  leafpack_error_free(NULL);
  check_no_leaks();
}

/* The call must fail with an error about this path. */
#define ABOUT(call, path)                                \
  do {                                                   \
    leafpack_error* about_ = (call);                     \
    CHECK(about_ != NULL);                               \
    CHECK_TEXT(leafpack_error_path(about_), (path));     \
    CHECK(strstr(leafpack_error_message(about_), (path)) != NULL); \
    leafpack_error_free(about_);                         \
  } while (0)

static void errors_name_their_path(void) {
  const int64_t batch[] = {2};
  const int64_t other[] = {3};
  leafpack_tree* tree = new_tree();
  leafpack_tensor* tensor = NULL;
  leafpack_value* value = NULL;
  leafpack_tree* below = NULL;
  leafpack_entries* leaves = NULL;
  const leafpack_component path[] = {LEAFPACK_BY_NAME("a"), LEAFPACK_AT(1), LEAFPACK_BY_NAME("b.c")};
  OK(leafpack_tensor_zeros(LEAFPACK_FLOAT32, 1, batch, &tensor));
  OK(leafpack_tree_set_tensor(tree, path, 2, tensor));
  ABOUT(leafpack_tree_set_tensor(tree, path, 3, tensor), "a[1].\"b.c\"");
  ABOUT(leafpack_tree_set_tree(tree, path, 1, tree), "a");
  OK(leafpack_value_int(1, &value));
  ABOUT(leafpack_tree_set_value(tree, path, 3, value), "a[1].\"b.c\"");
  leafpack_value_free(value);
  ABOUT(leafpack_tree_get_tensor(tree, path, 1, &tensor), "a");
  ABOUT(leafpack_tree_get_value(tree, path, 2, &value), "a[1]");
  ABOUT(leafpack_tree_get_tree(tree, path, 3, &below), "a[1].\"b.c\"");
  ABOUT(leafpack_tree_erase(tree, path + 1, 1), "[1]");
  OK(leafpack_tree_leaves(tree, &leaves));
  ABOUT(leafpack_entries_value(leaves, 0, &value), "a[1]");
  leafpack_entries_free(leaves);
  ABOUT(leafpack_tree_set_batch_size(tree, other, 1), "a[1]");
  leafpack_tensor_free(tensor);

  /* Leaves that a layout refuses. */
  static float data[4];
  const int64_t sizes[] = {2, 2};
  const int64_t strides[] = {0, 1};
  leafpack_buffer buffer = LEAFPACK_BUFFER_INIT;
  leafpack_layout* layout = NULL;
  buffer.data = data;
  buffer.num_dims = 2;
  buffer.sizes = sizes;
  buffer.strides = strides;
  OK(leafpack_tensor_from_buffer(&buffer, &tensor));
  OK(leafpack_tree_set_tensor(tree, path, 2, tensor));
  leafpack_tensor_free(tensor);
  ABOUT(leafpack_layout_of(tree, &layout), "a[1]");
  leafpack_tree_free(tree);
  check_no_leaks();
}

int main(void) {
  versions();
  set_and_get();
  batch_sizes();
  values();
  entries();
  layouts();
  errors();
  errors_name_their_path();
  return 0;
}
