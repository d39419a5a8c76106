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

/* An asynchronous call of the others fails in its wait. */
static leafpack_error* finished(leafpack_error* error, leafpack_work** work) {
  if (*work == NULL) return error;
  CHECK(error == NULL);
  error = leafpack_work_wait(*work, LEAFPACK_NO_TIMEOUT);
  leafpack_work_free(*work);
  return error;
}

/* Of the rank that does it: everything of a call that can be wrong before it is made. Of the others: the same
 * call, right. The `kind` of the call is what its error begins with. */
enum { kNumFaults = 19 };
static leafpack_error* faulty_call(int fault, int wrong, leafpack_tree* const* own,
                                   const char** kind, const char** reason) {
  leafpack_reduce_options reduce = LEAFPACK_REDUCE_OPTIONS_INIT;
  leafpack_call_options call = LEAFPACK_CALL_OPTIONS_INIT;
  leafpack_group_options making = LEAFPACK_GROUP_OPTIONS_INIT;
  const leafpack_tree* const tree = own[0];
  const leafpack_tree* const given = wrong ? NULL : tree;
  const leafpack_tree* trees[8] = {NULL};
  for (int32_t i = 0; i < size; ++i) trees[i] = own[i];
  leafpack_result* result = NULL;
  leafpack_work* work = NULL;
  leafpack_group* group = NULL;
  static char long_name[2000];
  const size_t members = (size_t)size;
  *kind = "all_reduce";
  switch (fault) {
    case 0:
      *reason = "options.op is 99";
      if (wrong) reduce.op = 99;
      return leafpack_all_reduce(tree, world, &reduce);
    case 1:
      *reason = "tree is NULL";
      return leafpack_all_reduce(given, world, NULL);
    case 2:
      *kind = "all_reduce 'late'";
      *reason = "options.takes_leaf is NULL";
      reduce.name = "late";
      if (wrong) reduce.leaves = LEAFPACK_CHOSEN_LEAVES;
      return leafpack_all_reduce(tree, world, &reduce);
    case 3:
      *reason = "work is NULL";
      return finished(leafpack_all_reduce_async(tree, world, NULL, wrong ? NULL : &work), &work);
    case 4:
      *kind = "reduce";
      *reason = "options has struct_size 8";
      if (wrong) reduce.struct_size = 8;
      return leafpack_reduce(tree, 0, world, &reduce);
    case 5:
      *kind = "reduce_scatter";
      *reason = "trees is NULL";
      if (wrong) trees[1] = NULL;
      return leafpack_reduce_scatter(trees, members, world, NULL);
    case 6:
      *kind = "broadcast";
      *reason = "options.check is 3";
      if (wrong) call.check = 3;
      return leafpack_broadcast(tree, 0, world, &call, NULL);
    case 7:
      *kind = "all_gather";
      *reason = "result is NULL";
      return leafpack_all_gather(tree, world, NULL, wrong ? NULL : &result);
    case 8:
      *kind = "all_gather";
      *reason = "joining is 2";
      return leafpack_all_gather_joined(tree, wrong ? 2 : LEAFPACK_STACK, NULL, world, NULL, &result);
    case 9:
      *kind = "gather";
      *reason = "options.stats has struct_size 0";
      leafpack_stats stats = {0};
      if (wrong) call.stats = &stats;
      return leafpack_gather(tree, 0, world, &call, &result);
    case 10:
      *kind = "scatter";
      *reason = "tree is no leafpack_tree that is alive";
      leafpack_tree* dead = new_tree();
      leafpack_tree_free(dead);
      return leafpack_scatter(wrong ? dead : NULL, rank == 0 ? trees : NULL, rank == 0 ? members : 0,
                              0, world, NULL, &result);
    case 11:
      *kind = "all_to_all";
      *reason = "trees is NULL";
      return leafpack_all_to_all(wrong ? NULL : trees, members, world, NULL, &result);
    case 12:
      *kind = "barrier";
      *reason = "options has members behind its first";
      struct {
        leafpack_call_options known;
        int64_t unknown;
      } later = {.known = LEAFPACK_CALL_OPTIONS_INIT, .unknown = 1};
      later.known.struct_size = sizeof(later);
      return leafpack_barrier(world, wrong ? &later.known : NULL);
    case 13:
      *kind = "all_gather";
      *reason = "data is NULL";
      return leafpack_all_gather_bytes(wrong ? NULL : "x", 1, world, NULL, &result);
    case 14:
      *kind = "split";
      *reason = "options has struct_size 1";
      if (wrong) making.struct_size = 1;
      return leafpack_group_split(world, 0, 0, &making, &group);
    case 15:
      *kind = "split";
      *reason = "a color of mine";
      if (wrong) making.refusal = "a color of mine";
      return leafpack_group_split(world, 0, 0, &making, &group);
    case 16:
      *kind = "all_reduce 'data'";
      *reason = "the data set is empty";
      reduce.name = "data";
      if (wrong) reduce.refusal = "the data set is empty";
      return leafpack_all_reduce(given, world, &reduce); /* nothing else is looked at */
    case 17:
      memset(long_name, 'n', sizeof(long_name) - 1);
      *kind = "barrier 'nnn";
      *reason = "name has 1999 bytes; at most 256 are allowed";
      if (wrong) call.name = long_name;
      return leafpack_barrier(world, &call);
    default:
      *kind = "all_gather";
      *reason = "the data set is empty";
      if (wrong) call.refusal = "the data set is empty";
      return finished(leafpack_all_gather_async(given, world, &call, wrong ? NULL : &work), &work);
  }
}

/* What one rank finds wrong with its own arguments is told to the others. */
static void refusals(void) {
  const int32_t culprit = size - 1;
  leafpack_tree* trees[8] = {NULL};
  for (int32_t i = 0; i < size; ++i) {
    trees[i] = new_tree();
    add_floats(trees[i], "a", 2, 0);
  }
  for (int fault = 0; fault < kNumFaults; ++fault) {
    const char* kind = NULL;
    const char* reason = NULL;
    char text[128];
    leafpack_error* error = faulty_call(fault, rank == culprit, trees, &kind, &reason);
    snprintf(text, sizeof(text), " on rank %d: %s", (int)culprit, reason);
    const char* message = leafpack_error_message(error);
    if (strstr(message, text) == NULL || strstr(message, kind) == NULL) {
      fprintf(stderr, "fault %d, without \"%s\" or \"%s\": %s\n", fault, kind, text, message);
      exit(1);
    }
    if (rank == culprit) {
      check_kind(error, LEAFPACK_INVALID_ARGUMENT, LEAFPACK_KIND_OTHER);
      CHECK(strncmp(message, kind, strlen(kind)) == 0);
    } else {
      check_kind(error, LEAFPACK_FAILED_PRECONDITION, LEAFPACK_KIND_PEER_REFUSED);
      check_ranks(error, &culprit, 1);
    }
    leafpack_error_free(error);
    group_works();
  }

  /* A transfer is of two ranks: what is wrong with one is its own rank's alone. */
  char text[64];
  snprintf(text, sizeof(text), "send on rank %d: timeout must be > 0", (int)rank);
  leafpack_transfer_options options = LEAFPACK_TRANSFER_OPTIONS_INIT;
  options.timeout_ms = -1;
  REFUSED(leafpack_send(trees[0], (rank + 1) % size, world, &options), text);
  options.struct_size = 2;
  snprintf(text, sizeof(text), "recv on rank %d: options has struct_size 2", (int)rank);
  REFUSED(leafpack_recv(trees[0], (rank + 1) % size, world, &options, NULL), text);
  snprintf(text, sizeof(text), "send on rank %d: tree is NULL", (int)rank);
  REFUSED(leafpack_send(NULL, (rank + 1) % size, world, NULL), text);
  for (int32_t i = 0; i < size; ++i) leafpack_tree_free(trees[i]);
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
