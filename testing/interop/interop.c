/* The rank in C: README.md says what it does. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bindings/c/leafpack.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define CHECK(condition)                                                        \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

static const leafpack_component kWeight[] = {LEAFPACK_BY_NAME("encoder"),
                                             LEAFPACK_BY_NAME("weight")};
static const leafpack_component kBias[] = {LEAFPACK_BY_NAME("encoder"), LEAFPACK_BY_NAME("bias")};
static const leafpack_component kLayer[] = {LEAFPACK_BY_NAME("layers"), LEAFPACK_AT(0)};
static const leafpack_component kLarge[] = {LEAFPACK_BY_NAME("large")};
static const leafpack_component kStep[] = {LEAFPACK_BY_NAME("step")};
static const leafpack_component kNote[] = {LEAFPACK_BY_NAME("note")};

static int32_t rank;

static void ok(leafpack_error* error) {
  if (error == NULL) return;
  fprintf(stderr, "%s\n", leafpack_error_message(error));
  exit(1);
}

/* A new leaf at a path; returns its memory, which the tree holds. */
static void* add(leafpack_tree* tree, const leafpack_component* path, size_t depth, int32_t dtype,
                 const int64_t* sizes, size_t num_dims) {
  leafpack_tensor* tensor = NULL;
  leafpack_tensor_info info = LEAFPACK_TENSOR_INFO_INIT;
  ok(leafpack_tensor_zeros(dtype, num_dims, sizes, &tensor));
  ok(leafpack_tensor_get_info(tensor, &info));
  ok(leafpack_tree_set_tensor(tree, path, depth, tensor));
  leafpack_tensor_free(tensor);
  return info.data;
}

static void add_weight(leafpack_tree* tree) {
  const int64_t sizes[] = {2, 3};
  float* weight = add(tree, kWeight, LENGTH(kWeight), LEAFPACK_FLOAT32, sizes, LENGTH(sizes));
  for (int i = 0; i < 6; ++i) weight[i] = (float)(rank + 1) / (float)(i + 3);
}

static leafpack_tree* make_tree(int64_t biases) {
  const int64_t large_size[] = {100000};
  leafpack_tree* tree = NULL;
  ok(leafpack_tree_new(NULL, 0, &tree));
  add_weight(tree);
  double* bias = add(tree, kBias, LENGTH(kBias), LEAFPACK_FLOAT64, &biases, 1);
  for (int i = 0; i < biases; ++i) bias[i] = (double)(rank + 1) / (double)(i + 7);
  int64_t* layer = add(tree, kLayer, LENGTH(kLayer), LEAFPACK_INT64, NULL, 0);
  *layer = rank + 1;
  float* large = add(tree, kLarge, LENGTH(kLarge), LEAFPACK_FLOAT32, large_size, 1);
  for (int i = 0; i < large_size[0]; ++i) large[i] = (float)(rank + 1) / (float)(i + 3);
  return tree;
}

static FILE* open_file(const char* name) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/%s.%d", getenv("TEST_TMPDIR"), name, (int)rank);
  FILE* file = fopen(path, "wb");
  CHECK(file != NULL);
  return file;
}

static void write_leaves(const leafpack_tree* tree) {
  FILE* file = open_file("result");
  leafpack_entries* leaves = NULL;
  size_t size = 0;
  ok(leafpack_tree_leaves(tree, &leaves));
  ok(leafpack_entries_size(leaves, &size));
  CHECK(size == 4);
  for (size_t i = 0; i < size; ++i) {
    leafpack_tensor* tensor = NULL;
    leafpack_tensor_info info = LEAFPACK_TENSOR_INFO_INIT;
    ok(leafpack_entries_tensor(leaves, i, &tensor));
    ok(leafpack_tensor_get_info(tensor, &info));
    const size_t bytes = (size_t)(info.num_elements * info.element_size);
    CHECK(fwrite(info.data, 1, bytes, file) == bytes);
    leafpack_tensor_free(tensor);
  }
  leafpack_entries_free(leaves);
  CHECK(fclose(file) == 0);
}

static void mismatch(const leafpack_group* group) {
  leafpack_tree* tree = make_tree(rank == 1 ? 5 : 4);
  leafpack_error* error = leafpack_all_reduce(tree, group, NULL);
  CHECK(leafpack_error_kind(error) == LEAFPACK_KIND_LAYOUT_MISMATCH);
  CHECK(strcmp(leafpack_error_path(error), "encoder.bias") == 0);
  FILE* file = open_file("error");
  fprintf(file, "%s\n", leafpack_error_message(error));
  CHECK(fclose(file) == 0);
  leafpack_error_free(error);
  leafpack_tree_free(tree);
}

static leafpack_tree* tree_to_broadcast(void) {
  leafpack_tree* tree = NULL;
  leafpack_value* value = NULL;
  ok(leafpack_tree_new(NULL, 0, &tree));
  add_weight(tree);
  ok(leafpack_value_int(7, &value));
  ok(leafpack_tree_set_value(tree, kStep, LENGTH(kStep), value));
  leafpack_value_free(value);
  ok(leafpack_value_string("from rank 0", LEAFPACK_TO_ZERO, &value));
  ok(leafpack_tree_set_value(tree, kNote, LENGTH(kNote), value));
  leafpack_value_free(value);
  return tree;
}

static void broadcast(const leafpack_group* group) {
  leafpack_tree* sent = rank == 0 ? tree_to_broadcast() : NULL;
  leafpack_result* result = NULL;
  leafpack_tree* tree = NULL;
  leafpack_tensor* weight = NULL;
  leafpack_value* step = NULL;
  leafpack_value* note = NULL;
  leafpack_tensor_info info = LEAFPACK_TENSOR_INFO_INIT;
  int64_t number = 0;
  const char* text = NULL;
  size_t size = 0;
  ok(leafpack_broadcast(sent, 0, group, NULL, &result));
  ok(leafpack_result_tree(result, 0, &tree));
  ok(leafpack_tree_get_tensor(tree, kWeight, LENGTH(kWeight), &weight));
  ok(leafpack_tensor_get_info(weight, &info));
  CHECK(info.dtype == LEAFPACK_FLOAT32 && info.num_dims == 2 && info.num_elements == 6);
  for (int i = 0; i < 6; ++i) CHECK(((const float*)info.data)[i] == 1.0F / (float)(i + 3));
  ok(leafpack_tree_get_value(tree, kStep, LENGTH(kStep), &step));
  ok(leafpack_value_get_int(step, &number));
  CHECK(number == 7);
  ok(leafpack_tree_get_value(tree, kNote, LENGTH(kNote), &note));
  ok(leafpack_value_get_text(note, &text, &size));
  CHECK(strcmp(text, "from rank 0") == 0);
  leafpack_value_free(step);
  leafpack_value_free(note);
  leafpack_tensor_free(weight);
  leafpack_tree_free(tree);
  leafpack_tree_free(sent);
  leafpack_result_free(result);
}

int main(void) {
  leafpack_group* group = NULL;
  ok(leafpack_group_from_environment(NULL, &group));
  ok(leafpack_group_rank(group, &rank));
  leafpack_tree* tree = make_tree(4);
  ok(leafpack_all_reduce(tree, group, NULL));
  write_leaves(tree);
  leafpack_tree_free(tree);
  mismatch(group);
  broadcast(group);
  ok(leafpack_barrier(group, NULL));
  leafpack_group_free(group);
  CHECK(leafpack_live_handles() == 0);
  return 0;
}
