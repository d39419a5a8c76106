// The header in C++: everything in it compiles, with its warnings as errors, and links.
#include "bindings/c/leafpack.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>

namespace {

TEST(Header, WorksInCpp) {
  leafpack_tree* tree = nullptr;
  ASSERT_EQ(leafpack_tree_new(nullptr, 0, &tree), nullptr);
  const leafpack_component path[] = {LEAFPACK_BY_NAME("encoder"), LEAFPACK_AT(3)};
  float data[4] = {};
  const int64_t sizes[] = {4};
  leafpack_buffer buffer = LEAFPACK_BUFFER_INIT;
  buffer.data = data;
  buffer.num_dims = 1;
  buffer.sizes = sizes;
  leafpack_tensor* tensor = nullptr;
  ASSERT_EQ(leafpack_tensor_from_buffer(&buffer, &tensor), nullptr);
  EXPECT_EQ(leafpack_tree_set_tensor(tree, path, 2, tensor), nullptr);
  leafpack_group* group = nullptr;
  leafpack_group_options options = LEAFPACK_GROUP_OPTIONS_INIT;
  ASSERT_EQ(leafpack_groups_in_process(1, &options, &group), nullptr);
  leafpack_reduce_options reduce = LEAFPACK_REDUCE_OPTIONS_INIT;
  leafpack_stats stats = LEAFPACK_STATS_INIT;
  reduce.stats = &stats;
  EXPECT_EQ(leafpack_all_reduce(tree, group, &reduce), nullptr);
  EXPECT_EQ(stats.leaves, 1);
  leafpack_call_options call = LEAFPACK_CALL_OPTIONS_INIT;
  EXPECT_EQ(leafpack_barrier(group, &call), nullptr);
  const leafpack_transfer_options transfer = LEAFPACK_TRANSFER_OPTIONS_INIT;
  leafpack_error* error = leafpack_send(tree, 0, group, &transfer);
  ASSERT_NE(error, nullptr);
  EXPECT_EQ(leafpack_error_code(error), LEAFPACK_INVALID_ARGUMENT);
  leafpack_error_free(error);
  leafpack_tensor_info info = LEAFPACK_TENSOR_INFO_INIT;
  EXPECT_EQ(leafpack_tensor_get_info(tensor, &info), nullptr);
  EXPECT_EQ(info.data, data);
  leafpack_tensor_free(tensor);
  leafpack_group_free(group);
  leafpack_tree_free(tree);
  EXPECT_EQ(leafpack_live_handles(), 0);
}

struct Caught {
  int32_t code = LEAFPACK_OK;
  int32_t kind = LEAFPACK_KIND_OTHER;
  std::string message;
};

Caught Take(leafpack_error* error) {
  Caught caught{leafpack_error_code(error), leafpack_error_kind(error), leafpack_error_message(error)};
  leafpack_error_free(error);
  return caught;
}

// Two ranks with one leaf each.
class CallbackThatThrows : public testing::Test {
 protected:
  void SetUp() override {
    leafpack_group_options options = LEAFPACK_GROUP_OPTIONS_INIT;
    options.timeout_ms = 60000;
    ASSERT_EQ(leafpack_groups_in_process(2, &options, groups_), nullptr);
    const leafpack_component path[] = {LEAFPACK_BY_NAME("x")};
    const int64_t sizes[] = {1};
    for (int rank = 0; rank < 2; ++rank) {
      leafpack_buffer buffer = LEAFPACK_BUFFER_INIT;
      buffer.data = &elements_[rank];
      buffer.num_dims = 1;
      buffer.sizes = sizes;
      buffer.dtype = LEAFPACK_FLOAT32;
      leafpack_tensor* tensor = nullptr;
      ASSERT_EQ(leafpack_tensor_from_buffer(&buffer, &tensor), nullptr);
      ASSERT_EQ(leafpack_tree_new(nullptr, 0, &trees_[rank]), nullptr);
      ASSERT_EQ(leafpack_tree_set_tensor(trees_[rank], path, 1, tensor), nullptr);
      leafpack_tensor_free(tensor);
    }
  }

  // The group is usable, and nothing has changed before.
  void TearDown() override {
    EXPECT_EQ(elements_[0], 1);
    std::thread other([&] { EXPECT_EQ(Take(leafpack_all_reduce(trees_[1], groups_[1], nullptr)).message, ""); });
    EXPECT_EQ(Take(leafpack_all_reduce(trees_[0], groups_[0], nullptr)).message, "");
    other.join();
    EXPECT_EQ(elements_[0], 3);
    for (int rank = 0; rank < 2; ++rank) {
      leafpack_tree_free(trees_[rank]);
      leafpack_group_free(groups_[rank]);
    }
    EXPECT_EQ(leafpack_live_handles(), 0);
  }

  leafpack_group* groups_[2] = {};
  leafpack_tree* trees_[2] = {};
  float elements_[2] = {1, 2};
};

TEST_F(CallbackThatThrows, OfAFilterRefusesTheCallOnAllRanks) {
  leafpack_reduce_options throwing = LEAFPACK_REDUCE_OPTIONS_INIT;
  throwing.leaves = LEAFPACK_CHOSEN_LEAVES;
  throwing.takes_leaf = [](void*, const char* path, const leafpack_component*, size_t) -> int32_t {
    throw std::runtime_error(std::string("no idea about ") + path);
  };
  for (const bool async : {false, true}) {
    const auto call = [&](int rank, const leafpack_reduce_options* options) {
      if (!async) return Take(leafpack_all_reduce(trees_[rank], groups_[rank], options));
      leafpack_work* work = nullptr;
      leafpack_error* error = leafpack_all_reduce_async(trees_[rank], groups_[rank], options, &work);
      if (error == nullptr) error = leafpack_work_wait(work, LEAFPACK_NO_TIMEOUT);
      leafpack_work_free(work);
      return Take(error);
    };
    Caught other;
    std::thread thread([&] { other = call(1, nullptr); });
    const Caught own = call(0, &throwing);
    thread.join();
    const std::string text = "on rank 0: the filter of leaves threw: no idea about x";
    EXPECT_EQ(own.code, LEAFPACK_INVALID_ARGUMENT) << own.message;
    EXPECT_NE(own.message.find(text), std::string::npos) << own.message;
    EXPECT_EQ(other.kind, LEAFPACK_KIND_PEER_REFUSED) << other.message;
    EXPECT_NE(other.message.find(text), std::string::npos) << other.message;
  }
}

TEST_F(CallbackThatThrows, OfAnInterruptGivesTheCallUpAndIsLogged) {
  std::string logged;
  ASSERT_EQ(leafpack_set_log(
                [](void* context, int32_t severity, const char*, int32_t, const char* message) {
                  if (severity == LEAFPACK_LOG_ERROR) *static_cast<std::string*>(context) = message;
                },
                &logged),
            nullptr);
  leafpack_call_options call = LEAFPACK_CALL_OPTIONS_INIT;
  call.interrupt = [](void*) -> int32_t { throw std::runtime_error("no patience"); };
  EXPECT_EQ(Take(leafpack_barrier(groups_[0], &call)).kind, LEAFPACK_KIND_INTERRUPTED);
  EXPECT_EQ(logged, "leafpack: options.interrupt threw: no patience");
  call.interrupt = [](void*) -> int32_t { throw 7; };
  leafpack_transfer_options transfer = LEAFPACK_TRANSFER_OPTIONS_INIT;
  transfer.interrupt = call.interrupt;
  leafpack_result* result = nullptr;
  EXPECT_EQ(Take(leafpack_recv(nullptr, 1, groups_[0], &transfer, &result)).code, LEAFPACK_CANCELLED);
  leafpack_group_options making = LEAFPACK_GROUP_OPTIONS_INIT;
  making.interrupt = call.interrupt;
  leafpack_group* made = nullptr;
  EXPECT_EQ(Take(leafpack_group_split(groups_[0], 0, 0, &making, &made)).kind, LEAFPACK_KIND_INTERRUPTED);
  ASSERT_EQ(leafpack_set_log(nullptr, nullptr), nullptr);
  // The other rank comes too late to both, and hears of it.
  EXPECT_EQ(Take(leafpack_barrier(groups_[1], nullptr)).code, LEAFPACK_CANCELLED);
  EXPECT_EQ(Take(leafpack_group_split(groups_[1], 0, 0, nullptr, &made)).code, LEAFPACK_CANCELLED);
}

}  // namespace
