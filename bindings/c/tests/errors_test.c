/* Faults between ranks: each rank gets the error that names the path and the ranks, nobody hangs, and the
 * group goes on. The last rank dies at the end. */
#include "bindings/c/tests/check.h"

static int32_t rank;
static int32_t size;
static leafpack_group* world;

/* The error must be about exactly these ranks. */
static void check_ranks(const leafpack_error* error, const int32_t* expected, size_t count) {
  const int32_t* ranks = NULL;
  CHECK_INT(leafpack_error_ranks(error, &ranks), count);
  for (size_t i = 0; i < count; ++i) CHECK_INT(ranks[i], expected[i]);
}

static int names(const leafpack_error* error, int32_t expected) {
  const int32_t* ranks = NULL;
  const size_t count = leafpack_error_ranks(error, &ranks);
  for (size_t i = 0; i < count; ++i) {
    if (ranks[i] == expected) return 1;
  }
  return 0;
}

static void check_kind(const leafpack_error* error, int32_t code, int32_t kind) {
  if (error == NULL || leafpack_error_code(error) != code || leafpack_error_kind(error) != kind) {
    fprintf(stderr, "code %d, kind %d, expected %d, %d: %s\n", (int)leafpack_error_code(error),
            (int)leafpack_error_kind(error), (int)code, (int)kind, leafpack_error_message(error));
    exit(1);
  }
}

static void group_works(void) {
  leafpack_tree* tree = new_tree();
  const float* x = add_floats(tree, "x", 1, 1);
  OK(leafpack_all_reduce(tree, world, NULL));
  CHECK(*x == (float)size);
  leafpack_tree_free(tree);
}

static void mismatches(void) {
  leafpack_tree* tree = new_tree();
  const float* a = add_floats(tree, "a", 2, (float)rank);
  add_floats(tree, "b", rank == 1 ? 3 : 2, 0);
  for (int async = 0; async < 2; ++async) {
    leafpack_error* error = NULL;
    leafpack_work* work = NULL;
    if (async) {
      OK(leafpack_all_reduce_async(tree, world, NULL, &work));
      error = leafpack_work_wait(work, LEAFPACK_NO_TIMEOUT);
      leafpack_error* again = leafpack_work_wait(work, LEAFPACK_NO_TIMEOUT);
      CHECK(again != NULL && again != error);
      CHECK_TEXT(leafpack_error_message(again), leafpack_error_message(error));
      leafpack_error_free(again);
      leafpack_result* result = NULL;
      FAILS(leafpack_work_result(work, &result), LEAFPACK_FAILED_PRECONDITION, "b");
      leafpack_work_free(work);
    } else {
      error = leafpack_all_reduce(tree, world, NULL);
    }
    check_kind(error, LEAFPACK_FAILED_PRECONDITION, LEAFPACK_KIND_LAYOUT_MISMATCH);
    CHECK_TEXT(leafpack_error_path(error), "b");
    CHECK(strstr(leafpack_error_message(error), "float32 [3]") != NULL);
    CHECK(strstr(leafpack_error_message(error), "float32 [2]") != NULL);
    CHECK(names(error, 1));
    CHECK_INT(leafpack_error_tree_unchanged(error), 1);
    CHECK_INT(leafpack_error_outcome_unknown(error), 0);
    leafpack_error_free(error);
    CHECK(*a == (float)rank);
    group_works();
  }
  leafpack_tree_free(tree);
}

/* What one rank finds wrong with its own arguments is told to the others. */
static void refusals(void) {
  const int32_t culprit = size - 1;
  leafpack_tree* tree = new_tree();
  add_floats(tree, "a", 2, 0);
  leafpack_reduce_options options = LEAFPACK_REDUCE_OPTIONS_INIT;
  if (rank == culprit) {
    options.op = 99;
    REFUSED(leafpack_all_reduce(tree, world, &options), "options.op");
    REFUSED(leafpack_all_reduce(NULL, world, NULL), "tree is NULL");
  } else {
    leafpack_error* error = leafpack_all_reduce(tree, world, &options);
    check_kind(error, LEAFPACK_FAILED_PRECONDITION, LEAFPACK_KIND_PEER_REFUSED);
    check_ranks(error, &culprit, 1);
    CHECK(strstr(leafpack_error_message(error), "options.op is 99") != NULL);
    leafpack_error_free(error);
    FAILS(leafpack_all_reduce(tree, world, NULL), LEAFPACK_FAILED_PRECONDITION, "tree is NULL");
  }
  leafpack_tree_free(tree);
  group_works();
}

static int32_t give_up(void* context) {
  ++*(int*)context;
  return 1;
}

/* Rank 0 comes alone to a barrier and gives up; the others come when it has. */
static void alone(int interrupted) {
  leafpack_call_options options = LEAFPACK_CALL_OPTIONS_INIT;
  int asked = 0;
  if (rank == 0) {
    if (interrupted) {
      options.interrupt = give_up;
      options.interrupt_context = &asked;
    } else {
      options.timeout_ms = 300;
    }
    leafpack_error* error = leafpack_barrier(world, &options);
    if (interrupted) {
      check_kind(error, LEAFPACK_CANCELLED, LEAFPACK_KIND_INTERRUPTED);
      CHECK(asked > 0);
    } else {
      int32_t others[8];
      for (int32_t i = 1; i < size; ++i) others[i - 1] = i;
      check_kind(error, LEAFPACK_DEADLINE_EXCEEDED, LEAFPACK_KIND_DEADLINE);
      check_ranks(error, others, (size_t)(size - 1));
    }
    leafpack_error_free(error);
    for (int32_t i = 1; i < size; ++i) OK(leafpack_send_bytes("go", 2, i, world, NULL));
  } else {
    leafpack_result* result = NULL;
    OK(leafpack_recv_bytes(0, world, NULL, &result));
    leafpack_result_free(result);
    leafpack_error* error = leafpack_barrier(world, NULL);
    check_kind(error, LEAFPACK_CANCELLED, LEAFPACK_KIND_DEADLINE);
    CHECK(strstr(leafpack_error_message(error), "rank 0") != NULL);
    leafpack_error_free(error);
  }
  group_works();
}

static void count_release(void* context) { ++*(int*)context; }

/* A work, its tree and its group that are freed in flight: the call ends by itself, then the memory is let
 * go. */
static void freed_in_flight(void) {
  enum { kMany = 500000 };
  static float data[kMany];
  static int released;
  const int64_t sizes[] = {kMany};
  const leafpack_component path[] = {LEAFPACK_BY_NAME("x")};
  leafpack_buffer buffer = LEAFPACK_BUFFER_INIT;
  leafpack_tensor* tensor = NULL;
  leafpack_work* work = NULL;
  leafpack_group* group = NULL;
  leafpack_tree* tree = new_tree();
  for (int i = 0; i < kMany; ++i) data[i] = 1;
  buffer.data = data;
  buffer.num_dims = 1;
  buffer.sizes = sizes;
  buffer.release = count_release;
  buffer.context = &released;
  OK(leafpack_group_split(world, 0, rank, NULL, &group));
  OK(leafpack_tensor_from_buffer(&buffer, &tensor));
  OK(leafpack_tree_set_tensor(tree, path, 1, tensor));
  leafpack_tensor_free(tensor);
  OK(leafpack_all_reduce_async(tree, group, NULL, &work));
  leafpack_tree_free(tree);
  leafpack_work_free(work);
  OK(leafpack_group_shutdown(group, 120000)); /* calls in flight end first */
  leafpack_group_free(group);
  CHECK_INT(released, 1);
  for (int i = 0; i < kMany; ++i) CHECK(data[i] == (float)size);
}

static void death(void) {
  const int32_t victim = size - 1;
  OK(leafpack_barrier(world, NULL));
  if (rank == victim) quick_exit(0);
  leafpack_tree* tree = new_tree();
  const float* x = add_floats(tree, "x", 1, (float)rank);
  for (int i = 0; i < 2; ++i) {
    leafpack_error* error = leafpack_all_reduce(tree, world, NULL);
    check_kind(error, LEAFPACK_UNAVAILABLE, LEAFPACK_KIND_PEER_LOST);
    CHECK(names(error, victim)); /* and those that have left since */
    leafpack_error_free(error);
    CHECK(*x == (float)rank);
  }
  leafpack_tree_free(tree);
}

int main(void) {
  OK(leafpack_group_from_environment(NULL, &world));
  OK(leafpack_group_rank(world, &rank));
  OK(leafpack_group_size(world, &size));
  CHECK(size >= 2 && size <= 8);
  group_works();
  mismatches();
  refusals();
  alone(0);
  alone(1);
  freed_in_flight();
  death();
  leafpack_group_free(world);
  check_no_leaks();
  return 0;
}
