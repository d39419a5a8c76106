/* Every rank gives a number and gets the average; then the ranks disagree on purpose. Started by
 * leafpack-launch, or alone: then it is the only rank. */
#include <leafpack.h>
#include <stdio.h>
#include <stdlib.h>

static void check(leafpack_error* error) {
  if (error == NULL) return;
  fprintf(stderr, "%s\n", leafpack_error_message(error));
  leafpack_error_free(error);
  exit(EXIT_FAILURE);
}

/* A tree whose one leaf is the caller's number, where it lies. */
static leafpack_tree* tree_of(const char* name, float* number) {
  const int64_t sizes[] = {1};
  leafpack_buffer buffer = LEAFPACK_BUFFER_INIT;
  buffer.data = number;
  buffer.dtype = LEAFPACK_FLOAT32;
  buffer.num_dims = 1;
  buffer.sizes = sizes;
  leafpack_tensor* tensor = NULL;
  leafpack_tree* tree = NULL;
  const leafpack_component path[] = {LEAFPACK_BY_NAME("encoder"), LEAFPACK_BY_NAME(name)};
  check(leafpack_tensor_from_buffer(&buffer, &tensor));
  check(leafpack_tree_new(NULL, 0, &tree));
  check(leafpack_tree_set_tensor(tree, path, 2, tensor));
  leafpack_tensor_free(tensor);
  return tree;
}

int main(void) {
  leafpack_group* group = NULL;
  int32_t rank = 0;
  int32_t size = 0;
  if (getenv("RANK") != NULL) {
    check(leafpack_group_from_environment(NULL, &group));
  } else {
    check(leafpack_groups_in_process(1, NULL, &group));
  }
  check(leafpack_group_rank(group, &rank));
  check(leafpack_group_size(group, &size));

  float number = 1.0F + (float)rank;
  leafpack_tree* tree = tree_of("weight", &number);
  leafpack_reduce_options options = LEAFPACK_REDUCE_OPTIONS_INIT;
  options.op = LEAFPACK_AVG;
  check(leafpack_all_reduce(tree, group, &options));
  leafpack_tree_free(tree);

  if (size > 1) {
    float other = 0;
    tree = tree_of(rank == 0 ? "only_on_0" : "elsewhere", &other);
    leafpack_error* error = leafpack_all_reduce(tree, group, NULL);
    if (leafpack_error_kind(error) != LEAFPACK_KIND_LAYOUT_MISMATCH) {
      fprintf(stderr, "no mismatch: %s\n", leafpack_error_message(error));
      return EXIT_FAILURE;
    }
    leafpack_error_free(error);
    leafpack_tree_free(tree);
  }
  leafpack_group_free(group);
  printf("rank %d of %d: encoder.weight is %g\n", (int)rank, (int)size, (double)number);
  return EXIT_SUCCESS;
}
