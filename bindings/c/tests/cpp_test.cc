// The header in C++: everything in it compiles, with its warnings as errors, and links.
#include "bindings/c/leafpack.h"

#include <gtest/gtest.h>

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

}  // namespace
