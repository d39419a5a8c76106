/* Every collective on real ranks; each rank is a process, and the file ends with all groups freed. */
#include "bindings/c/tests/check.h"

static int32_t rank;
static int32_t size;
static leafpack_group* world;

/* Sum of first + r over the ranks. */
static float sum_of_ranks(float first) {
  return (float)size * first + (float)(size * (size - 1)) / 2.0F;
}

static void all_reduce(void) {
  leafpack_tree* tree = new_tree();
  float* small = add_floats(tree, "small", 3, (float)rank);
  OK(leafpack_all_reduce(tree, world, NULL));
  for (int i = 0; i < 3; ++i) CHECK(small[i] == sum_of_ranks((float)i));

  /* Large enough to leave the control channel, in several messages, with numbers about the call. */
  enum { kMany = 300000 };
  float* large = add_floats(tree, "large", kMany, (float)rank);
  leafpack_reduce_options options = LEAFPACK_REDUCE_OPTIONS_INIT;
  leafpack_stats stats = LEAFPACK_STATS_INIT;
  options.op = LEAFPACK_MAX;
  options.bucketing = LEAFPACK_MAX_BYTES;
  options.bucket_bytes = 1 << 20;
  options.name = "large";
  options.timeout_ms = 120000;
  options.stats = &stats;
  OK(leafpack_all_reduce(tree, world, &options));
  for (int i = 0; i < kMany; ++i) CHECK(large[i] == (float)(size - 1 + i));
  CHECK_INT(stats.leaves, 2);
  CHECK_INT(stats.bytes, (kMany + 3) * 4);

  /* Asynchronous; then the result and the numbers come from the work. */
  leafpack_work* work = NULL;
  options.op = LEAFPACK_PREMUL_SUM;
  options.factor = rank == 0 ? 1.0 : 0.0;
  options.stats = NULL;
  OK(leafpack_all_reduce_async(tree, world, &options, &work));
  OK(leafpack_work_wait(work, LEAFPACK_NO_TIMEOUT));
  int32_t done = 0;
  OK(leafpack_work_is_done(work, &done));
  CHECK_INT(done, 1);
  OK(leafpack_work_stats(work, &stats));
  CHECK_INT(stats.leaves, 2);
  leafpack_work_free(work);
  for (int i = 0; i < kMany; ++i) CHECK(large[i] == (float)(size - 1 + i));
  leafpack_tree_free(tree);
}

static int32_t takes_only_b(void* context, const char* text, const leafpack_component* path,
                            size_t depth) {
  ++*(int*)context;
  return strcmp(text, "b") == 0 && depth == 1 && strcmp(path[0].name, "b") == 0;
}

static void chosen_leaves(void) {
  leafpack_tree* tree = new_tree();
  float* a = add_floats(tree, "a", 1, (float)rank);
  float* b = add_floats(tree, "b", 1, (float)rank);
  leafpack_reduce_options options = LEAFPACK_REDUCE_OPTIONS_INIT;
  int asked = 0;
  options.leaves = LEAFPACK_CHOSEN_LEAVES;
  options.takes_leaf = takes_only_b;
  options.takes_leaf_context = &asked;
  OK(leafpack_all_reduce(tree, world, &options));
  CHECK_INT(asked, 2);
  CHECK(*a == (float)rank);
  CHECK(*b == sum_of_ranks(0));
  leafpack_tree_free(tree);
}

/* `tree` gets its turn with each rank's numbers, so that it must be new for each. */
static leafpack_tree* own_tree(void) {
  leafpack_tree* tree = new_tree();
  add_floats(tree, "x", 2, (float)rank);
  return tree;
}

static leafpack_tree* tree_of(const leafpack_result* result, size_t index) {
  leafpack_tree* tree = NULL;
  OK(leafpack_result_tree(result, index, &tree));
  return tree;
}

/* One tree of a result: [first, first + 1] at x. */
static void check_tree(const leafpack_result* result, size_t index, float first) {
  leafpack_tree* tree = tree_of(result, index);
  int64_t count = 0;
  const float* x = floats_at(tree, "x", &count);
  CHECK_INT(count, 2);
  CHECK(x[0] == first && x[1] == first + 1);
  leafpack_tree_free(tree);
}

static void check_num_trees(const leafpack_result* result, int32_t expected) {
  size_t trees = 99;
  OK(leafpack_result_num_trees(result, &trees));
  CHECK_INT(trees, expected);
}

static void reductions(void) {
  const int32_t root = size - 1;
  leafpack_tree* tree = own_tree();
  OK(leafpack_reduce(tree, root, world, NULL));
  CHECK(floats_at(tree, "x", NULL)[0] == (rank == root ? sum_of_ranks(0) : (float)rank));
  leafpack_work* work = NULL;
  leafpack_reduce_options options = LEAFPACK_REDUCE_OPTIONS_INIT;
  options.op = LEAFPACK_MIN;
  OK(leafpack_reduce_async(tree, 0, world, &options, &work));
  OK(leafpack_work_wait(work, 120000));
  leafpack_work_free(work);
  if (rank == 0 && size > 1) CHECK(floats_at(tree, "x", NULL)[0] == 0);
  leafpack_tree_free(tree);

  leafpack_tree* trees[8] = {NULL};
  for (int32_t i = 0; i < size; ++i) trees[i] = own_tree();
  OK(leafpack_reduce_scatter((const leafpack_tree* const*)trees, (size_t)size, world, NULL));
  for (int32_t i = 0; i < size; ++i) {
    CHECK(floats_at(trees[i], "x", NULL)[0] == (i == rank ? sum_of_ranks(0) : (float)rank));
  }
  OK(leafpack_reduce_scatter_async((const leafpack_tree* const*)trees, (size_t)size, world, NULL,
                                   &work));
  OK(leafpack_work_wait(work, LEAFPACK_NO_TIMEOUT));
  leafpack_work_free(work);
  for (int32_t i = 0; i < size; ++i) leafpack_tree_free(trees[i]);
}

static void broadcasts(void) {
  leafpack_result* result = NULL;
  leafpack_work* work = NULL;
  leafpack_tree* tree = own_tree();
  OK(leafpack_broadcast(tree, size - 1, world, NULL, NULL)); /* in place, no result asked for */
  CHECK(floats_at(tree, "x", NULL)[1] == (float)size);
  /* Into nothing: a new tree on every rank but the root. */
  OK(leafpack_broadcast(rank == 0 ? tree : NULL, 0, world, NULL, &result));
  check_num_trees(result, 1);
  check_tree(result, 0, (float)(size - 1));
  leafpack_result_free(result);
  OK(leafpack_broadcast_async(rank == 0 ? tree : NULL, 0, world, NULL, &work));
  OK(leafpack_work_wait(work, LEAFPACK_NO_TIMEOUT));
  OK(leafpack_work_result(work, &result));
  leafpack_work_free(work);
  check_tree(result, 0, (float)(size - 1));
  FAILS(leafpack_result_tree(result, 1, &tree), LEAFPACK_OUT_OF_RANGE, "1");
  leafpack_result_free(result);
  leafpack_tree_free(tree);
}

static void gathers(void) {
  leafpack_result* result = NULL;
  leafpack_work* work = NULL;
  leafpack_tree* tree = own_tree();
  const int32_t root = size - 1;
  for (int async = 0; async < 2; ++async) {
    if (async) {
      OK(leafpack_all_gather_async(tree, world, NULL, &work));
      OK(leafpack_work_wait(work, LEAFPACK_NO_TIMEOUT));
      OK(leafpack_work_result(work, &result));
      leafpack_work_free(work);
    } else {
      OK(leafpack_all_gather(tree, world, NULL, &result));
    }
    check_num_trees(result, size);
    for (int32_t i = 0; i < size; ++i) check_tree(result, (size_t)i, (float)i);
    leafpack_result_free(result);

    if (async) {
      OK(leafpack_gather_async(tree, root, world, NULL, &work));
      OK(leafpack_work_wait(work, LEAFPACK_NO_TIMEOUT));
      OK(leafpack_work_result(work, &result));
      leafpack_work_free(work);
    } else {
      OK(leafpack_gather(tree, root, world, NULL, &result));
    }
    check_num_trees(result, rank == root ? size : 0);
    for (int32_t i = 0; rank == root && i < size; ++i) check_tree(result, (size_t)i, (float)i);
    leafpack_result_free(result);

    if (async) {
      OK(leafpack_gather_and_stack_async(tree, root, world, NULL, &work));
      OK(leafpack_work_wait(work, LEAFPACK_NO_TIMEOUT));
      OK(leafpack_work_result(work, &result));
      leafpack_work_free(work);
    } else {
      OK(leafpack_gather_and_stack(tree, root, world, NULL, &result));
    }
    check_num_trees(result, rank == root ? 1 : 0);
    leafpack_result_free(result);

    for (int32_t joining = LEAFPACK_STACK; joining <= LEAFPACK_CONCAT; ++joining) {
      if (async) {
        OK(leafpack_all_gather_joined_async(tree, joining, NULL, world, NULL, &work));
        OK(leafpack_work_wait(work, LEAFPACK_NO_TIMEOUT));
        OK(leafpack_work_result(work, &result));
        leafpack_work_free(work);
      } else {
        OK(leafpack_all_gather_joined(tree, joining, NULL, world, NULL, &result));
      }
      check_num_trees(result, 1);
      leafpack_tree* joined = tree_of(result, 0);
      int64_t count = 0;
      const float* x = floats_at(joined, "x", &count);
      CHECK_INT(count, 2 * size);
      CHECK(x[count - 1] == (float)size);
      leafpack_tree_free(joined);
      leafpack_result_free(result);
    }
  }
  leafpack_tree* into = new_tree();
  const float* x = add_floats(into, "x", 2 * size, -1);
  OK(leafpack_all_gather_joined(tree, LEAFPACK_CONCAT, into, world, NULL, NULL));
  CHECK(x[0] == 0 && x[2 * size - 1] == (float)size);
  leafpack_tree_free(into);
  leafpack_tree_free(tree);
}

static void scatters(void) {
  leafpack_result* result = NULL;
  leafpack_work* work = NULL;
  leafpack_tree* trees[8] = {NULL};
  for (int32_t i = 0; i < size; ++i) {
    trees[i] = new_tree();
    add_floats(trees[i], "x", 2, (float)(10 * rank + i));
  }
  const leafpack_tree* const* sent = (const leafpack_tree* const*)trees;
  const int32_t root = size - 1;
  const size_t count = rank == root ? (size_t)size : 0;
  OK(leafpack_scatter(NULL, rank == root ? sent : NULL, count, root, world, NULL, &result));
  check_num_trees(result, 1);
  check_tree(result, 0, (float)(10 * root + rank));
  leafpack_result_free(result);
  leafpack_tree* into = own_tree();
  OK(leafpack_scatter(into, rank == root ? sent : NULL, count, root, world, NULL, NULL));
  CHECK(floats_at(into, "x", NULL)[0] == (float)(10 * root + rank));
  leafpack_tree_free(into);
  OK(leafpack_scatter_async(NULL, rank == root ? sent : NULL, count, root, world, NULL, &work));
  OK(leafpack_work_wait(work, LEAFPACK_NO_TIMEOUT));
  OK(leafpack_work_result(work, &result));
  leafpack_work_free(work);
  check_tree(result, 0, (float)(10 * root + rank));
  leafpack_result_free(result);

  OK(leafpack_all_to_all(sent, (size_t)size, world, NULL, &result));
  check_num_trees(result, size);
  for (int32_t i = 0; i < size; ++i) check_tree(result, (size_t)i, (float)(10 * i + rank));
  leafpack_result_free(result);
  OK(leafpack_all_to_all_async(sent, (size_t)size, world, NULL, &work));
  OK(leafpack_work_wait(work, LEAFPACK_NO_TIMEOUT));
  OK(leafpack_work_result(work, &result));
  leafpack_work_free(work);
  check_tree(result, 0, (float)rank);
  leafpack_result_free(result);
  for (int32_t i = 0; i < size; ++i) leafpack_tree_free(trees[i]);
}

static void check_string(const leafpack_result* result, size_t index, const char* expected) {
  const void* data = NULL;
  size_t length = 0;
  OK(leafpack_result_string(result, index, &data, &length));
  CHECK_INT(length, strlen(expected));
  CHECK(memcmp(data, expected, length) == 0);
}

static void check_num_strings(const leafpack_result* result, int32_t expected) {
  size_t strings = 99;
  OK(leafpack_result_num_strings(result, &strings));
  CHECK_INT(strings, expected);
}

/* The result of a call that was started, and its end. */
static leafpack_result* result_of(leafpack_work* work) {
  leafpack_result* result = NULL;
  OK(leafpack_work_wait(work, LEAFPACK_NO_TIMEOUT));
  OK(leafpack_work_result(work, &result));
  leafpack_work_free(work);
  return result;
}

static void bytes(void) {
  leafpack_result* result = NULL;
  leafpack_work* work = NULL;
  char own[32];
  char mine[32];
  char text[8][32];
  const void* data[8];
  size_t sizes[8];
  const int32_t root = size - 1;
  snprintf(mine, sizeof(mine), "to %d", (int)rank);
  for (int async = 0; async < 2; ++async) {
    snprintf(own, sizeof(own), "rank %d", (int)rank);
    for (int32_t i = 0; i < size; ++i) {
      snprintf(text[i], sizeof(text[i]), "to %d", (int)i);
      data[i] = text[i];
      sizes[i] = strlen(text[i]);
    }
    const size_t length = strlen(own);
    leafpack_result* gathered = NULL;
    leafpack_result* on_root = NULL;
    leafpack_result* scattered = NULL;
    if (async) {
      /* All at once, from memory that is used again while they run: they have copies. */
      leafpack_work* works[4] = {NULL};
      OK(leafpack_broadcast_bytes_async(own, length, 0, world, NULL, &works[0]));
      OK(leafpack_all_gather_bytes_async(own, length, world, NULL, &works[1]));
      OK(leafpack_gather_bytes_async(own, length, root, world, NULL, &works[2]));
      OK(leafpack_scatter_bytes_async(data, sizes, (size_t)size, root, world, NULL, &works[3]));
      memset(own, '?', length);
      memset(text, '?', sizeof(text));
      scattered = result_of(works[3]);
      result = result_of(works[0]);
      gathered = result_of(works[1]);
      on_root = result_of(works[2]);
    } else {
      OK(leafpack_broadcast_bytes(own, length, 0, world, NULL, &result));
      OK(leafpack_all_gather_bytes(own, length, world, NULL, &gathered));
      OK(leafpack_gather_bytes(own, length, root, world, NULL, &on_root));
      OK(leafpack_scatter_bytes(data, sizes, (size_t)size, root, world, NULL, &scattered));
    }
    check_num_strings(result, 1);
    check_string(result, 0, "rank 0");
    leafpack_result_free(result);
    check_num_strings(gathered, size);
    check_num_strings(on_root, rank == root ? size : 0);
    for (int32_t i = 0; i < size; ++i) {
      char expected[32];
      snprintf(expected, sizeof(expected), "rank %d", (int)i);
      check_string(gathered, (size_t)i, expected);
      if (rank == root) check_string(on_root, (size_t)i, expected);
    }
    leafpack_result_free(gathered);
    leafpack_result_free(on_root);
    check_num_strings(scattered, 1);
    check_string(scattered, 0, mine);
    FAILS(leafpack_result_string(scattered, 1, &data[0], &sizes[0]), LEAFPACK_OUT_OF_RANGE, "1");
    leafpack_result_free(scattered);
  }

  /* What is not the root's is not looked at; nothing is a string too. */
  OK(leafpack_broadcast_bytes_async(NULL, rank == 0 ? 0 : 99, 0, world, NULL, &work));
  result = result_of(work);
  check_string(result, 0, "");
  leafpack_result_free(result);
  OK(leafpack_scatter_bytes_async(rank == 0 ? data : NULL, rank == 0 ? sizes : NULL,
                                  rank == 0 ? (size_t)size : 77, 0, world, NULL, &work));
  leafpack_result_free(result_of(work));

  /* Large ones leave the control channel. */
  enum { kMany = 3000000 };
  char* many = malloc(kMany);
  CHECK(many != NULL);
  memset(many, 'a' + rank, kMany);
  OK(leafpack_all_gather_bytes_async(many, kMany, world, NULL, &work));
  free(many);
  result = result_of(work);
  for (int32_t i = 0; i < size; ++i) {
    const void* found = NULL;
    size_t length = 0;
    OK(leafpack_result_string(result, (size_t)i, &found, &length));
    CHECK_INT(length, kMany);
    CHECK(((const char*)found)[0] == 'a' + i && ((const char*)found)[kMany - 1] == 'a' + i);
  }
  leafpack_result_free(result);

  /* Another collective on the last rank: each rank's work has the error, and the group goes on. */
  if (size > 1) {
    if (rank == size - 1) {
      OK(leafpack_gather_bytes_async("x", 1, 0, world, NULL, &work));
    } else {
      OK(leafpack_all_gather_bytes_async("x", 1, world, NULL, &work));
    }
    FAILS(leafpack_work_wait(work, LEAFPACK_NO_TIMEOUT), LEAFPACK_FAILED_PRECONDITION, "gather");
    FAILS(leafpack_work_result(work, &result), LEAFPACK_FAILED_PRECONDITION, "gather");
    leafpack_work_free(work);
  }
  leafpack_call_options options = LEAFPACK_CALL_OPTIONS_INIT;
  options.name = "the end";
  OK(leafpack_barrier(world, &options));
}

static int32_t says_yes(void* context) {
  ++*(int*)context;
  return 1;
}

/* Groups over a store that rank 0 serves. */
static void stores(void) {
  leafpack_store* store = NULL;
  char address[32];
  leafpack_result* result = NULL;
  int32_t port = 0;
  if (rank == 0) {
    OK(leafpack_store_tcp("localhost", 0, 1, 120000, &store));
    OK(leafpack_store_port(store, &port));
    CHECK(port > 0);
  }
  snprintf(address, sizeof(address), "%d", (int)port);
  OK(leafpack_broadcast_bytes(address, strlen(address) + 1, 0, world, NULL, &result));
  const void* given = NULL;
  size_t length = 0;
  OK(leafpack_result_string(result, 0, &given, &length));
  port = atoi(given);
  leafpack_result_free(result);
  if (rank != 0) OK(leafpack_store_tcp("localhost", port, 0, 120000, &store));

  int64_t sum = 0;
  OK(leafpack_store_add(store, "count", LEAFPACK_TO_ZERO, 1, &sum));
  CHECK(sum >= 1 && sum <= size);
  OK(leafpack_barrier(world, NULL));
  OK(leafpack_store_add(store, "count", LEAFPACK_TO_ZERO, 0, &sum));
  CHECK_INT(sum, size);

  /* Place in the group i is rank size - 1 - i of the job. */
  int32_t global[8];
  for (int32_t i = 0; i < size; ++i) global[i] = size - 1 - i;
  leafpack_group* group = NULL;
  leafpack_group_options options = LEAFPACK_GROUP_OPTIONS_INIT;
  options.timeout_ms = 120000;
  OK(leafpack_group_from_store(store, "g/1", size - 1 - rank, size, global, &options, &group));
  leafpack_store_free(store); /* the group has its own */
  int32_t number = -1;
  OK(leafpack_group_global_rank(group, &number));
  CHECK_INT(number, rank);
  leafpack_tree* tree = new_tree();
  float* x = add_floats(tree, "x", 1, (float)rank);
  OK(leafpack_all_reduce(tree, group, NULL));
  CHECK(*x == sum_of_ranks(0));
  leafpack_tree_free(tree);

  /* A split that one rank gives up ends on all of them. */
  if (size > 1) {
    int asked = 0;
    leafpack_group* half = NULL;
    if (rank == 0) {
      options.interrupt = says_yes;
      options.interrupt_context = &asked;
      FAILS(leafpack_group_split(group, 0, 0, &options, &half), LEAFPACK_CANCELLED, "");
      CHECK(asked > 0);
    }
    OK(leafpack_barrier(world, NULL));
    if (rank != 0) {
      leafpack_error* error = leafpack_group_split(group, 0, 0, NULL, &half);
      CHECK(error != NULL && half == NULL);
      leafpack_error_free(error);
    }
  }
  leafpack_group_free(group);
  OK(leafpack_barrier(world, NULL)); /* until then rank 0 serves */
}

static void transfers(void) {
  if (size == 1) return;
  const int32_t next = (rank + 1) % size;
  const int32_t before = (rank + size - 1) % size;
  leafpack_tree* tree = own_tree();
  leafpack_tree* into = own_tree();
  leafpack_work* sent = NULL;
  leafpack_work* received = NULL;
  leafpack_result* result = NULL;
  leafpack_transfer_options options = LEAFPACK_TRANSFER_OPTIONS_INIT;
  options.tag = 5;
  /* A ring: into a tree, and into nothing. */
  OK(leafpack_isend(tree, next, world, &options, &sent));
  OK(leafpack_irecv(into, before, world, &options, &received));
  OK(leafpack_work_wait(received, LEAFPACK_NO_TIMEOUT));
  OK(leafpack_work_wait(sent, LEAFPACK_NO_TIMEOUT));
  CHECK(floats_at(into, "x", NULL)[0] == (float)before);
  OK(leafpack_work_result(received, &result));
  int32_t source = -1;
  OK(leafpack_result_source(result, &source));
  CHECK_INT(source, before);
  leafpack_result_free(result);
  OK(leafpack_work_result(sent, &result));
  FAILS(leafpack_result_source(result, &source), LEAFPACK_FAILED_PRECONDITION, "receive");
  leafpack_result_free(result);
  leafpack_work_free(sent);
  leafpack_work_free(received);

  OK(leafpack_isend(tree, next, world, NULL, &sent));
  OK(leafpack_recv(NULL, LEAFPACK_ANY_RANK, world, NULL, &result));
  OK(leafpack_result_source(result, &source));
  CHECK_INT(source, before);
  check_tree(result, 0, (float)before);
  leafpack_result_free(result);
  OK(leafpack_work_wait(sent, LEAFPACK_NO_TIMEOUT));
  leafpack_work_free(sent);

  char own[32];
  snprintf(own, sizeof(own), "from %d", (int)rank);
  OK(leafpack_isend_bytes(own, strlen(own), next, world, NULL, &sent));
  OK(leafpack_irecv_bytes(before, world, NULL, &received));
  OK(leafpack_work_wait(received, LEAFPACK_NO_TIMEOUT));
  OK(leafpack_work_wait(sent, LEAFPACK_NO_TIMEOUT));
  OK(leafpack_work_result(received, &result));
  snprintf(own, sizeof(own), "from %d", (int)before);
  check_string(result, 0, own);
  leafpack_result_free(result);
  leafpack_work_free(sent);
  leafpack_work_free(received);

  /* In pairs, synchronously. */
  if (rank % 2 == 0 && rank + 1 < size) {
    OK(leafpack_send(tree, rank + 1, world, NULL));
    OK(leafpack_send_bytes("hello", 5, rank + 1, world, NULL));
    OK(leafpack_recv_bytes(rank + 1, world, NULL, &result));
    check_string(result, 0, "");
    leafpack_result_free(result);
  } else if (rank % 2 == 1) {
    OK(leafpack_recv(into, rank - 1, world, NULL, NULL));
    CHECK(floats_at(into, "x", NULL)[0] == (float)(rank - 1));
    OK(leafpack_recv_bytes(LEAFPACK_ANY_RANK, world, NULL, &result));
    check_string(result, 0, "hello");
    leafpack_result_free(result);
    OK(leafpack_send_bytes(NULL, 0, rank - 1, world, NULL));
  }
  leafpack_tree_free(tree);
  leafpack_tree_free(into);
}

static void groups(void) {
  int32_t number = -1;
  OK(leafpack_group_to_global(world, rank, &number));
  CHECK_INT(number, rank);
  OK(leafpack_group_to_group(world, rank, &number));
  CHECK_INT(number, rank);
  FAILS(leafpack_group_to_global(world, size, &number), LEAFPACK_OUT_OF_RANGE, "");
  FAILS(leafpack_group_to_group(world, -3, &number), LEAFPACK_NOT_FOUND, "");

  /* Even and odd ranks, in falling order. */
  leafpack_group* half = NULL;
  OK(leafpack_group_split(world, rank % 2, -rank, NULL, &half));
  int32_t half_size = 0;
  int32_t half_rank = 0;
  OK(leafpack_group_size(half, &half_size));
  OK(leafpack_group_rank(half, &half_rank));
  OK(leafpack_group_to_global(half, half_rank, &number));
  CHECK_INT(number, rank);
  CHECK_INT(half_size, size / 2 + (rank % 2 == 0 ? size % 2 : 0));
  leafpack_tree* tree = new_tree();
  float* x = add_floats(tree, "x", 1, 1);
  OK(leafpack_all_reduce(tree, half, NULL));
  CHECK(*x == (float)half_size);
  leafpack_group_free(half);

  /* The first rank alone has no color. */
  OK(leafpack_group_split(world, rank == 0 ? LEAFPACK_NO_COLOR : 7, 0, NULL, &half));
  CHECK((half == NULL) == (rank == 0));
  leafpack_group_free(half);

  /* The first and the last rank, by list. */
  const int32_t ends[] = {size - 1, 0};
  const size_t num_ends = size == 1 ? 1 : 2;
  leafpack_error* error = leafpack_group_of_ranks(world, ends, num_ends, "ends", NULL, &half);
  if (rank == 0 || rank == size - 1) {
    CHECK(error == NULL);
    *x = 1;
    OK(leafpack_all_reduce(tree, half, NULL));
    CHECK(*x == (float)num_ends);
    OK(leafpack_group_global_rank(half, &number));
    CHECK_INT(number, rank);
    OK(leafpack_group_shutdown(half, 120000));
    FAILS(leafpack_all_reduce(tree, half, NULL), LEAFPACK_FAILED_PRECONDITION, "");
    leafpack_group_free(half);
  } else {
    FAILS(error, LEAFPACK_FAILED_PRECONDITION, "");
  }

  /* The same ranks, met again: another backend, from the environment and from a URL. */
  leafpack_group_options options = LEAFPACK_GROUP_OPTIONS_INIT;
  options.backend = "shm";
  options.timeout_ms = 120000;
  leafpack_group* again = NULL;
  OK(leafpack_group_from_url("env://", -1, -1, &options, &again));
  *x = 1;
  OK(leafpack_all_reduce(tree, again, NULL));
  CHECK(*x == (float)size);
  leafpack_group_free(again);

  char path[1024];
  const char* folder = getenv("TEST_TMPDIR");
  CHECK(folder != NULL);
  snprintf(path, sizeof(path), "%s/meet", folder);
  OK(leafpack_group_from_file(path, rank, size, NULL, &again));
  *x = 1;
  OK(leafpack_all_reduce(tree, again, NULL));
  CHECK(*x == (float)size);
  leafpack_group_free(again);
  leafpack_tree_free(tree);
}

int main(void) {
  OK(leafpack_group_from_environment(NULL, &world));
  OK(leafpack_group_rank(world, &rank));
  OK(leafpack_group_size(world, &size));
  CHECK(size <= 8);
  all_reduce();
  chosen_leaves();
  reductions();
  broadcasts();
  gathers();
  scatters();
  bytes();
  transfers();
  groups();
  stores();
  OK(leafpack_barrier(world, NULL));
  leafpack_group_free(world);
  check_no_leaks();
  return 0;
}
