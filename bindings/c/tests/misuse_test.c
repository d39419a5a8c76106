/* Wrong arguments everywhere: each is an error with a text that says which, none is a crash or a hang. */
#include "bindings/c/tests/check.h"

static leafpack_tree* tree;
static leafpack_tree* dead_tree;
static leafpack_group* group;
static leafpack_group* dead_group;
static leafpack_result* result;
static leafpack_work* work;
static const leafpack_component path[] = {LEAFPACK_BY_NAME("x")};

static void null_arguments(void) {
  leafpack_tensor* tensor = NULL;
  leafpack_value* value = NULL;
  leafpack_entries* entries = NULL;
  leafpack_layout* layout = NULL;
  leafpack_tree* other = NULL;
  int32_t number = 0;
  size_t size = 0;
  const char* text = NULL;
  const void* data = NULL;
  int64_t large = 0;
  double real = 0;
  uint64_t low = 0;
  REFUSED(leafpack_tensor_undefined(NULL), "tensor is NULL");
  REFUSED(leafpack_tensor_get_info(NULL, NULL), "info is NULL");
  REFUSED(leafpack_value_none(NULL), "value is NULL");
  REFUSED(leafpack_value_string(NULL, LEAFPACK_TO_ZERO, &value), "text is NULL");
  REFUSED(leafpack_value_bytes(NULL, 3, &value), "data is NULL");
  REFUSED(leafpack_value_list(NULL, 1, &value), "items is NULL");
  REFUSED(leafpack_value_list((const leafpack_value* const*)&value, 1, &value), "items is NULL");
  REFUSED(leafpack_value_kind(NULL, &number), "value is NULL");
  REFUSED(leafpack_value_get_int(NULL, &large), "value is NULL");
  REFUSED(leafpack_value_get_float(NULL, &real), "value is NULL");
  REFUSED(leafpack_value_get_bool(NULL, &number), "value is NULL");
  REFUSED(leafpack_value_get_text(NULL, &text, &size), "value is NULL");
  REFUSED(leafpack_value_get_size(NULL, &size), "value is NULL");
  REFUSED(leafpack_value_get_item(NULL, 0, &value), "value is NULL");
  REFUSED(leafpack_tree_new(NULL, 2, &other), "batch_size is NULL");
  REFUSED(leafpack_tree_new(NULL, SIZE_MAX, &other), "batch_dims");
  REFUSED(leafpack_tree_set_tensor(NULL, path, 1, tensor), "tree is NULL");
  REFUSED(leafpack_tree_set_tensor(tree, path, 1, NULL), "tensor is NULL");
  REFUSED(leafpack_tree_set_value(tree, path, 1, NULL), "value is NULL");
  REFUSED(leafpack_tree_set_tree(tree, path, 1, NULL), "subtree is NULL");
  REFUSED(leafpack_tree_get_tensor(tree, NULL, 1, &tensor), "path is NULL");
  REFUSED(leafpack_tree_get_tree(tree, path, SIZE_MAX, &other), "512");
  REFUSED(leafpack_tree_erase(NULL, path, 1), "tree is NULL");
  REFUSED(leafpack_tree_clear(NULL), "tree is NULL");
  REFUSED(leafpack_tree_contains(tree, path, 1, NULL), "contains is NULL");
  REFUSED(leafpack_tree_num_leaves(tree, NULL), "num_leaves is NULL");
  REFUSED(leafpack_tree_leaves(NULL, &entries), "tree is NULL");
  REFUSED(leafpack_tree_children(tree, NULL), "entries is NULL");
  REFUSED(leafpack_entries_size(NULL, &size), "entries is NULL");
  REFUSED(leafpack_entries_path_text(NULL, 0, &text), "entries is NULL");
  REFUSED(leafpack_layout_of(NULL, &layout), "tree is NULL");
  REFUSED(leafpack_layout_digest(NULL, &low, &low), "layout is NULL");
  REFUSED(leafpack_layout_text(NULL, &text), "layout is NULL");
  REFUSED(leafpack_group_from_environment(NULL, NULL), "group is NULL");
  REFUSED(leafpack_group_from_file(NULL, 0, 1, NULL, &dead_group), "path is NULL");
  REFUSED(leafpack_group_from_url(NULL, 0, 1, NULL, &dead_group), "url is NULL");
  REFUSED(leafpack_groups_in_process(1, NULL, NULL), "groups is NULL");
  REFUSED(leafpack_group_of_ranks(NULL, &number, 1, NULL, NULL, &dead_group), "parent is NULL");
  REFUSED(leafpack_group_of_ranks(group, NULL, 1, NULL, NULL, &dead_group), "ranks is NULL");
  REFUSED(leafpack_group_split(NULL, 0, 0, NULL, &dead_group), "parent is NULL");
  REFUSED(leafpack_group_split(group, 0, 0, NULL, NULL), "group is NULL");
  REFUSED(leafpack_group_rank(NULL, &number), "group is NULL");
  REFUSED(leafpack_group_size(group, NULL), "size is NULL");
  REFUSED(leafpack_group_shutdown(NULL, 1), "group is NULL");
  REFUSED(leafpack_all_reduce(NULL, group, NULL), "tree is NULL");
  REFUSED(leafpack_all_reduce(tree, NULL, NULL), "group is NULL");
  REFUSED(leafpack_all_reduce_async(tree, group, NULL, NULL), "work is NULL");
  REFUSED(leafpack_reduce_scatter(NULL, 1, group, NULL), "trees is NULL");
  REFUSED(leafpack_reduce_scatter((const leafpack_tree* const*)&other, 1, group, NULL),
          "trees is NULL");
  REFUSED(leafpack_broadcast(NULL, 0, group, NULL, NULL), "result is NULL");
  REFUSED(leafpack_all_gather(tree, group, NULL, NULL), "result is NULL");
  REFUSED(leafpack_gather(NULL, 0, group, NULL, &result), "tree is NULL");
  REFUSED(leafpack_scatter(tree, NULL, 1, 0, group, NULL, &result), "trees is NULL");
  REFUSED(leafpack_all_to_all(NULL, 1, group, NULL, &result), "trees is NULL");
  REFUSED(leafpack_barrier(NULL, NULL), "group is NULL");
  REFUSED(leafpack_broadcast_bytes(NULL, 1, 0, group, NULL, &result), "data is NULL");
  REFUSED(leafpack_scatter_bytes(NULL, NULL, 1, 0, group, NULL, &result), "data is NULL");
  REFUSED(leafpack_broadcast_bytes_async(NULL, 1, 0, group, NULL, &work), "data is NULL");
  REFUSED(leafpack_broadcast_bytes_async("x", 1, 0, group, NULL, NULL), "work is NULL");
  REFUSED(leafpack_broadcast_bytes_async("x", 1, 0, NULL, NULL, &work), "group is NULL");
  REFUSED(leafpack_all_gather_bytes_async(NULL, 1, group, NULL, &work), "data is NULL");
  REFUSED(leafpack_gather_bytes_async(NULL, 1, 0, group, NULL, &work), "data is NULL");
  REFUSED(leafpack_scatter_bytes_async(NULL, NULL, 1, 0, group, NULL, &work), "data is NULL");
  REFUSED(leafpack_scatter_bytes_async(&data, NULL, 1, 0, group, NULL, &work), "sizes is NULL");
  REFUSED(leafpack_scatter_bytes_async(&data, &size, 2, 0, group, NULL, &work), "count is 2");
  CHECK(work == NULL);
  REFUSED(leafpack_send(NULL, 0, group, NULL), "tree is NULL");
  REFUSED(leafpack_recv(NULL, 0, group, NULL, NULL), "result is NULL");
  REFUSED(leafpack_irecv(tree, 0, group, NULL, NULL), "work is NULL");
  REFUSED(leafpack_send_bytes(NULL, 1, 0, group, NULL), "data is NULL");
  REFUSED(leafpack_recv_bytes(0, group, NULL, NULL), "result is NULL");
  REFUSED(leafpack_work_wait(NULL, 0), "work is NULL");
  REFUSED(leafpack_work_is_done(NULL, &number), "work is NULL");
  REFUSED(leafpack_work_cancel(NULL), "work is NULL");
  REFUSED(leafpack_work_result(NULL, &result), "work is NULL");
  REFUSED(leafpack_work_stats(NULL, NULL), "stats is NULL");
  REFUSED(leafpack_result_num_trees(NULL, &size), "result is NULL");
  REFUSED(leafpack_result_tree(NULL, 0, &other), "result is NULL");
  REFUSED(leafpack_result_string(NULL, 0, &data, &size), "result is NULL");
  REFUSED(leafpack_result_source(NULL, &number), "result is NULL");
  leafpack_store* store = NULL;
  OK(leafpack_store_memory(1000, &store));
  REFUSED(leafpack_store_tcp(NULL, 1, 0, 0, &store), "host is NULL");
  REFUSED(leafpack_store_tcp("localhost", 70000, 0, 0, &store), "70000");
  REFUSED(leafpack_store_tcp("localhost", 1, 0, -1, &store), "timeout_ms is -1");
  REFUSED(leafpack_store_file(NULL, 0, &store), "path is NULL");
  REFUSED(leafpack_store_memory(0, NULL), "store is NULL");
  REFUSED(leafpack_store_with_prefix(store, NULL, &store), "prefix is NULL");
  REFUSED(leafpack_store_with_prefix(NULL, "p", &store), "store is NULL");
  REFUSED(leafpack_store_clone(store, NULL), "clone is NULL");
  REFUSED(leafpack_store_set(NULL, "k", 1, "v", 1), "store is NULL");
  REFUSED(leafpack_store_set(store, NULL, 1, "v", 1), "key is NULL");
  REFUSED(leafpack_store_set(store, "k", 1, NULL, 1), "value is NULL");
  REFUSED(leafpack_store_get(store, "k", 1, NULL), "value is NULL");
  REFUSED(leafpack_store_add(store, "k", 1, 1, NULL), "sum is NULL");
  REFUSED(leafpack_store_compare_set(store, "k", 1, NULL, 1, "v", 1, &value), "expected is NULL");
  REFUSED(leafpack_store_has(store, "k", 1, NULL), "there is NULL");
  REFUSED(leafpack_store_wait(store, "k", 1, -1), "timeout_ms is -1");
  REFUSED(leafpack_store_num_keys(store, NULL), "num_keys is NULL");
  REFUSED(leafpack_store_port(NULL, &number), "store is NULL");
  REFUSED(leafpack_group_from_store(NULL, "p", 0, 1, NULL, NULL, &dead_group), "store is NULL");
  REFUSED(leafpack_group_from_store(store, NULL, 0, 1, NULL, NULL, &dead_group), "prefix is NULL");
  REFUSED(leafpack_group_from_store(store, "p", 0, 1, NULL, NULL, NULL), "group is NULL");
  REFUSED(leafpack_group_from_store(store, "p", 1, 1, &number, NULL, &dead_group), "rank is 1");
  REFUSED(leafpack_group_from_store(store, "p", 0, -1, &number, NULL, &dead_group), "-1");
  REFUSED(leafpack_group_from_store(store, "p", -1, 1, NULL, NULL, &dead_group), "-1");
  leafpack_store_free(store);
  REFUSED(leafpack_store_num_keys(store, &large), "store is no leafpack_store that is alive");
  leafpack_store_free(NULL);
  leafpack_tensor_free(NULL);
  leafpack_value_free(NULL);
  leafpack_tree_free(NULL);
  leafpack_entries_free(NULL);
  leafpack_layout_free(NULL);
  leafpack_group_free(NULL);
  leafpack_work_free(NULL);
  leafpack_result_free(NULL);
}

static int warnings;
static void count_warnings(void* context, int32_t severity, const char* file, int32_t line,
                           const char* message) {
  CHECK(context == &warnings);
  CHECK(line > 0 && strlen(file) > 0);
  if (severity == LEAFPACK_LOG_WARNING && strstr(message, "leafpack_tree") != NULL) ++warnings;
}

static void dead_handles(void) {
  size_t leaves = 0;
  REFUSED(leafpack_tree_num_leaves(dead_tree, &leaves), "tree is no leafpack_tree that is alive");
  REFUSED(leafpack_all_reduce(dead_tree, group, NULL), "alive");
  REFUSED(leafpack_all_reduce(tree, dead_group, NULL), "alive");
  /* A handle of another kind is none of this one. */
  REFUSED(leafpack_tree_num_leaves((const leafpack_tree*)(const void*)group, &leaves), "alive");
  OK(leafpack_set_log(count_warnings, &warnings));
  leafpack_tree_free(dead_tree);
  CHECK_INT(warnings, 1);
  OK(leafpack_set_log(NULL, NULL));
}

static void wrong_paths(void) {
  int32_t there = 0;
  leafpack_component wrong[] = {LEAFPACK_BY_NAME("x")};
  wrong[0].kind = 0;
  REFUSED(leafpack_tree_contains(tree, wrong, 1, &there), "kind 0");
  wrong[0].kind = LEAFPACK_NAME;
  wrong[0].name = NULL;
  REFUSED(leafpack_tree_contains(tree, wrong, 1, &there), "NULL");
  wrong[0].name = "x";
  wrong[0].reserved = 7;
  REFUSED(leafpack_tree_contains(tree, wrong, 1, &there), "reserved is 7");
  wrong[0].reserved = 0;
  wrong[0].position = 3;
  REFUSED(leafpack_tree_contains(tree, wrong, 1, &there), "a name with the position 3");
  wrong[0].kind = LEAFPACK_POSITION;
  REFUSED(leafpack_tree_contains(tree, wrong, 1, &there), "the position 3 with a name");
  wrong[0].name = NULL;
  REFUSED(leafpack_tree_contains(tree, wrong, 1, &there), "the position 3 with a name");
  wrong[0].name_size = 0;
  OK(leafpack_tree_contains(tree, wrong, 1, &there));
  CHECK_INT(there, 0);
  wrong[0] = (leafpack_component)LEAFPACK_BY_NAME("x");
  wrong[0].name_size = 0; /* the empty name is a name */
  OK(leafpack_tree_contains(tree, wrong, 1, &there));
  CHECK_INT(there, 0);
}

static void wrong_options(void) {
  leafpack_reduce_options reduce = LEAFPACK_REDUCE_OPTIONS_INIT;
  leafpack_call_options call = LEAFPACK_CALL_OPTIONS_INIT;
  leafpack_transfer_options transfer = LEAFPACK_TRANSFER_OPTIONS_INIT;
  leafpack_group_options options = LEAFPACK_GROUP_OPTIONS_INIT;
  leafpack_group* made = NULL;
  leafpack_stats stats = LEAFPACK_STATS_INIT;
#define WRONG_REDUCE(member, value, part)                        \
  do {                                                           \
    leafpack_reduce_options wrong = reduce;                      \
    wrong.member = (value);                                      \
    REFUSED(leafpack_all_reduce(tree, group, &wrong), part);     \
    REFUSED(leafpack_reduce(tree, 0, group, &wrong), part);      \
    REFUSED(leafpack_all_reduce_async(tree, group, &wrong, &work), part); \
  } while (0)
  WRONG_REDUCE(struct_size, 7, "struct_size 7");
  WRONG_REDUCE(op, 9, "options.op");
  WRONG_REDUCE(op, -1, "options.op");
  WRONG_REDUCE(bucketing, 3, "options.bucketing");
  WRONG_REDUCE(bucket_bytes, 100, "options.bucket_bytes");
  WRONG_REDUCE(bucketing, LEAFPACK_MAX_BYTES, "0");
  WRONG_REDUCE(leaves, 3, "options.leaves");
  WRONG_REDUCE(leaves, LEAFPACK_CHOSEN_LEAVES, "takes_leaf is NULL");
  WRONG_REDUCE(on_failure, 2, "options.on_failure");
  WRONG_REDUCE(check, 3, "options.check");
  WRONG_REDUCE(reserved, 1, "options.reserved");
  WRONG_REDUCE(timeout_ms, -5, "");
  WRONG_REDUCE(max_in_flight_bytes, -5, "");
  stats.struct_size = 3;
  WRONG_REDUCE(stats, &stats, "struct_size 3");
  call.check = 77;
  REFUSED(leafpack_barrier(group, &call), "options.check");
  REFUSED(leafpack_broadcast(tree, 0, group, &call, &result), "options.check");
  call.check = 0;
  REFUSED(leafpack_broadcast(tree, 1, group, &call, &result), "1");
  REFUSED(leafpack_broadcast(tree, -1, group, &call, &result), "");
  REFUSED(leafpack_all_gather_joined(tree, 2, NULL, group, &call, &result), "joining is 2");
  REFUSED(leafpack_all_to_all((const leafpack_tree* const*)&tree, 0, group, &call, &result), "");
  transfer.struct_size = 1;
  REFUSED(leafpack_send(tree, 0, group, &transfer), "struct_size 1");
  REFUSED(leafpack_send(tree, 0, group, NULL), ""); /* to itself */
  REFUSED(leafpack_send(tree, 5, group, NULL), "no other rank");
  options.backend = "carrier pigeon";
  FAILS(leafpack_groups_in_process(1, &options, &made), LEAFPACK_NOT_FOUND, "carrier pigeon");
  options.backend = NULL;
  options.timeout_ms = -1;
  REFUSED(leafpack_groups_in_process(1, &options, &made), "");
  REFUSED(leafpack_groups_in_process(0, NULL, &made), "0");
  REFUSED(leafpack_groups_in_process(-1, NULL, &made), "-1");
  REFUSED(leafpack_group_from_url("smoke://signal", 0, 1, NULL, &made), "smoke");
  REFUSED(leafpack_group_from_file("/nowhere/at/all", 0, 1, NULL, &made), "/nowhere");
  const int32_t nobody[] = {3};
  REFUSED(leafpack_group_of_ranks(group, nobody, 1, NULL, NULL, &made), "3");
  REFUSED(leafpack_group_of_ranks(group, nobody, 2, NULL, NULL, &made), "num_ranks");
  REFUSED(leafpack_group_of_ranks(group, nobody, 0, NULL, NULL, &made), "");
  REFUSED(leafpack_group_shutdown(group, 0), "timeout_ms");
  options = (leafpack_group_options)LEAFPACK_GROUP_OPTIONS_INIT;
  options.refusal = "no group today";
  REFUSED(leafpack_groups_in_process(1, &options, &made), "no group today");
  CHECK(made == NULL);

  /* Overlapping leaves and an op that the dtype does not have: refused by path. */
  float data[4] = {0};
  const int64_t sizes[] = {3};
  const leafpack_component names[] = {LEAFPACK_BY_NAME("low"), LEAFPACK_BY_NAME("high")};
  leafpack_tree* overlapping = new_tree();
  for (int i = 0; i < 2; ++i) {
    leafpack_buffer buffer = LEAFPACK_BUFFER_INIT;
    leafpack_tensor* tensor = NULL;
    buffer.data = data + i;
    buffer.num_dims = 1;
    buffer.sizes = sizes;
    OK(leafpack_tensor_from_buffer(&buffer, &tensor));
    OK(leafpack_tree_set_tensor(overlapping, names + i, 1, tensor));
    leafpack_tensor_free(tensor);
  }
  leafpack_layout* layout = NULL;
  for (int i = 0; i < 2; ++i) {
    leafpack_error* clash = i == 0 ? leafpack_layout_of(overlapping, &layout)
                                   : leafpack_all_reduce(overlapping, group, NULL);
    CHECK_TEXT(leafpack_error_path(clash), "high"); /* the first in order */
    REFUSED(clash, "leaves high and low overlap");
  }
  leafpack_tree_free(overlapping);
  reduce.op = LEAFPACK_BAND;
  leafpack_error* error = leafpack_all_reduce(tree, group, &reduce);
  CHECK_INT(leafpack_error_kind(error), LEAFPACK_KIND_UNSUPPORTED);
  CHECK_TEXT(leafpack_error_path(error), "x");
  CHECK_INT(leafpack_error_tree_unchanged(error), 1);
  leafpack_error_free(error);
}

/* Sizes that no machine has: told at once, before memory is asked for or read. */
static void huge_numbers(void) {
  leafpack_value* value = NULL;
  leafpack_tensor* tensor = NULL;
  leafpack_group* made = NULL;
  leafpack_store* store = NULL;
  int32_t there = 0;
  const int64_t sizes[] = {(int64_t)1 << 44};
  leafpack_component name[] = {LEAFPACK_BY_NAME("x")};
  name[0].name_size = (size_t)1 << 62;
  REFUSED(leafpack_value_bytes("x", SIZE_MAX, &value), "data has 18446744073709551615 bytes");
  REFUSED(leafpack_value_string("x", (size_t)1 << 60, &value), "text has 1152921504606846976 bytes");
  REFUSED(leafpack_tree_contains(tree, name, 1, &there), "path has 4611686018427387904 bytes");
  REFUSED(leafpack_all_gather_bytes("x", SIZE_MAX, group, NULL, &result), "data has");
  REFUSED(leafpack_isend_bytes("x", SIZE_MAX, 0, group, NULL, &work), "data has");
  FAILS(leafpack_tensor_zeros(LEAFPACK_FLOAT32, 1, sizes, &tensor), LEAFPACK_RESOURCE_EXHAUSTED,
        "memory");
  REFUSED(leafpack_groups_in_process(INT32_MAX, NULL, &made), "2147483647");
  OK(leafpack_store_memory(0, &store));
  REFUSED(leafpack_group_from_store(store, "p", 0, INT32_MAX, NULL, NULL, &made), "2147483647");
  leafpack_store_free(store);
  store = NULL;
  REFUSED(leafpack_store_file("/nowhere/at/all", 500, &store), "/nowhere");
  REFUSED(leafpack_store_file("/tmp", 500, &store), "/tmp");
  CHECK(value == NULL && tensor == NULL && made == NULL && store == NULL);
}

static int32_t never_called(void* context) {
  (void)context;
  CHECK(0);
  return 1;
}

/* What was compiled before a struct grew: members behind its end are not read. */
static void earlier_versions(void) {
  leafpack_group_options options = LEAFPACK_GROUP_OPTIONS_INIT;
  leafpack_group* half = NULL;
  options.struct_size = offsetof(leafpack_group_options, interrupt);
  options.backend = "gloo";
  options.interrupt = never_called;
  OK(leafpack_group_split(group, 0, 0, &options, &half));
  leafpack_group_free(half);
  options.struct_size -= 8;
  REFUSED(leafpack_group_split(group, 0, 0, &options, &half), "struct_size 24");

  leafpack_call_options call = LEAFPACK_CALL_OPTIONS_INIT;
  call.struct_size = offsetof(leafpack_call_options, refusal);
  call.refusal = "not read";
  OK(leafpack_barrier(group, &call));
  leafpack_reduce_options reduce = LEAFPACK_REDUCE_OPTIONS_INIT;
  reduce.struct_size = offsetof(leafpack_reduce_options, refusal);
  reduce.refusal = "not read";
  OK(leafpack_all_reduce(tree, group, &reduce));
  reduce.struct_size -= 8;
  REFUSED(leafpack_all_reduce(tree, group, &reduce), "struct_size 104");
}

static void wrong_waits(void) {
  OK(leafpack_all_reduce_async(tree, group, NULL, &work));
  REFUSED(leafpack_work_wait(work, -2), "-2");
  OK(leafpack_work_wait(work, LEAFPACK_NO_TIMEOUT));
  OK(leafpack_work_wait(work, 0)); /* again, and at once */
  OK(leafpack_work_cancel(work));  /* too late, and no harm */
  OK(leafpack_work_result(work, &result));
  size_t trees = 9;
  OK(leafpack_result_num_trees(result, &trees));
  CHECK_INT(trees, 0);
  leafpack_result_free(result);
  leafpack_work_free(work);
  REFUSED(leafpack_work_wait(work, 0), "alive");
}

int main(void) {
  leafpack_group* dead = NULL;
  tree = new_tree();
  add_floats(tree, "x", 4, 1);
  dead_tree = new_tree();
  leafpack_tree_free(dead_tree);
  OK(leafpack_groups_in_process(1, NULL, &group));
  OK(leafpack_groups_in_process(1, NULL, &dead));
  leafpack_group_free(dead);
  dead_group = dead;
  wrong_paths();
  dead_handles();
  null_arguments();
  wrong_options();
  huge_numbers();
  earlier_versions();
  wrong_waits();
  OK(leafpack_all_reduce(tree, group, NULL)); /* the group is usable after all of this */
  leafpack_tree_free(tree);
  leafpack_group_free(group);
  check_no_leaks();
  return 0;
}
