/* Averages the gradients of a model over all ranks:
 *     ./bazelw run //distributed/launch -- -n 4 -- bazel-bin/examples/c/average */
#include <stdio.h>
#include <stdlib.h>

#include "bindings/c/leafpack.h"

static void check(leafpack_error* error) {
  if (error == NULL) return;
  const int32_t* ranks = NULL;
  const size_t num_ranks = leafpack_error_ranks(error, &ranks);
  fprintf(stderr, "%s\n", leafpack_error_message(error));
  for (size_t i = 0; i < num_ranks; ++i) fprintf(stderr, "  it is about rank %d\n", (int)ranks[i]);
  leafpack_error_free(error);
  exit(1);
}

int main(void) {
  leafpack_group* group = NULL;
  int32_t rank = 0;
  int32_t size = 0;
  check(leafpack_group_from_environment(NULL, &group));
  check(leafpack_group_rank(group, &rank));
  check(leafpack_group_size(group, &size));

  /* A leaf over memory of this program; nothing is copied. */
  static float gradient[2][3];
  for (int i = 0; i < 6; ++i) gradient[i / 3][i % 3] = (float)(rank + i);
  const int64_t sizes[] = {2, 3};
  leafpack_buffer buffer = LEAFPACK_BUFFER_INIT;
  buffer.data = gradient;
  buffer.dtype = LEAFPACK_FLOAT32;
  buffer.num_dims = 2;
  buffer.sizes = sizes;
  leafpack_tensor* tensor = NULL;
  check(leafpack_tensor_from_buffer(&buffer, &tensor));

  leafpack_tree* tree = NULL;
  const leafpack_component path[] = {LEAFPACK_BY_NAME("encoder"), LEAFPACK_BY_NAME("weight")};
  check(leafpack_tree_new(NULL, 0, &tree));
  check(leafpack_tree_set_tensor(tree, path, 2, tensor));
  leafpack_tensor_free(tensor);

  leafpack_reduce_options options = LEAFPACK_REDUCE_OPTIONS_INIT;
  options.op = LEAFPACK_AVG;
  leafpack_work* work = NULL;
  check(leafpack_all_reduce_async(tree, group, &options, &work));
  /* ... other work; until the wait, nobody touches the gradient ... */
  check(leafpack_work_wait(work, LEAFPACK_NO_TIMEOUT));
  leafpack_work_free(work);

  const float expected = (float)(size - 1) / 2;
  printf("rank %d of %d: %g, expected %g\n", (int)rank, (int)size, (double)gradient[0][0],
         (double)expected);
  leafpack_tree_free(tree);
  leafpack_group_free(group);
  return gradient[0][0] == expected ? 0 : 1;
}
