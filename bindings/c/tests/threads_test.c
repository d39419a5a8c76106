/* Ranks that are threads of one process, one tree read by many threads, and handles that one thread frees
 * while another one uses them. */
#include <pthread.h>

#include "bindings/c/tests/check.h"

enum { kRanks = 4, kCalls = 50 };

typedef struct place {
  leafpack_group* group;
  const leafpack_tree* shared;
  int32_t rank;
} place;

static void* run_rank(void* context) {
  const place* own = context;
  int32_t rank = -1;
  OK(leafpack_group_rank(own->group, &rank));
  CHECK_INT(rank, own->rank);
  leafpack_tree* tree = new_tree();
  float* x = add_floats(tree, "x", 100, 0);
  for (int call = 0; call < kCalls; ++call) {
    for (int i = 0; i < 100; ++i) x[i] = (float)(rank + i + call);
    if (call % 2 == 0) {
      OK(leafpack_all_reduce(tree, own->group, NULL));
    } else {
      leafpack_work* work = NULL;
      OK(leafpack_all_reduce_async(tree, own->group, NULL, &work));
      OK(leafpack_work_wait(work, LEAFPACK_NO_TIMEOUT));
      leafpack_work_free(work);
    }
    for (int i = 0; i < 100; ++i) CHECK(x[i] == (float)(kRanks * (i + call) + 6));
    leafpack_layout* layout = NULL;
    size_t leaves = 0;
    OK(leafpack_layout_of(own->shared, &layout));
    OK(leafpack_tree_num_leaves(own->shared, &leaves));
    CHECK_INT(leaves, 2);
    leafpack_layout_free(layout);
  }
  leafpack_tree_free(tree);
  return NULL;
}

static void ranks_as_threads(void) {
  leafpack_group* groups[kRanks] = {NULL};
  pthread_t threads[kRanks];
  place places[kRanks];
  leafpack_tree* shared = new_tree();
  add_floats(shared, "a", 1, 0);
  add_floats(shared, "b", 1, 0);
  OK(leafpack_groups_in_process(kRanks, NULL, groups));
  for (int i = 0; i < kRanks; ++i) {
    places[i].group = groups[i];
    places[i].shared = shared;
    places[i].rank = i;
    CHECK_INT(pthread_create(&threads[i], NULL, run_rank, &places[i]), 0);
  }
  for (int i = 0; i < kRanks; ++i) CHECK_INT(pthread_join(threads[i], NULL), 0);
  for (int i = 0; i < kRanks; ++i) leafpack_group_free(groups[i]);
  leafpack_tree_free(shared);
  check_no_leaks();
}

typedef struct wait_for {
  leafpack_work* work;
  int32_t code;
} wait_for;

static void* wait_for_work(void* context) {
  wait_for* waiting = context;
  leafpack_error* error = leafpack_work_wait(waiting->work, LEAFPACK_NO_TIMEOUT);
  waiting->code = leafpack_error_code(error);
  leafpack_error_free(error);
  return NULL;
}

/* Two threads wait for a call whose peer never comes; it is cancelled, and its handle freed under them. */
static void freed_while_waited_for(void) {
  leafpack_group* groups[2] = {NULL};
  leafpack_tree* tree = new_tree();
  leafpack_work* work = NULL;
  pthread_t threads[2];
  wait_for waiting[2];
  add_floats(tree, "x", 3, 0);
  OK(leafpack_groups_in_process(2, NULL, groups));
  OK(leafpack_all_reduce_async(tree, groups[0], NULL, &work));
  FAILS(leafpack_work_wait(work, 0), LEAFPACK_DEADLINE_EXCEEDED, "not over");
  int32_t done = 1;
  OK(leafpack_work_is_done(work, &done));
  CHECK_INT(done, 0);
  leafpack_result* result = NULL;
  FAILS(leafpack_work_result(work, &result), LEAFPACK_FAILED_PRECONDITION, "not over");
  for (int i = 0; i < 2; ++i) {
    waiting[i].work = work;
    waiting[i].code = -1;
    CHECK_INT(pthread_create(&threads[i], NULL, wait_for_work, &waiting[i]), 0);
  }
  OK(leafpack_work_cancel(work));
  leafpack_work_free(work);
  for (int i = 0; i < 2; ++i) {
    CHECK_INT(pthread_join(threads[i], NULL), 0);
    /* It waited and was told, or it came when the handle was dead. */
    CHECK(waiting[i].code == LEAFPACK_CANCELLED || waiting[i].code == LEAFPACK_INVALID_ARGUMENT);
  }
  leafpack_tree_free(tree);
  leafpack_group_free(groups[0]);
  leafpack_group_free(groups[1]);
  check_no_leaks();
}

int main(void) {
  ranks_as_threads();
  freed_while_waited_for();
  return 0;
}
