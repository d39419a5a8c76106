#include "distributed/tree/fault_testutil.h"

#include <signal.h>
#include <sys/types.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "absl/log/absl_check.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "testing/faults.h"
#include "testing/matchers.h"

namespace leafpack {
namespace {

void ExpectValues(const TensorDict& tree, float factor) {
  tree.Visit([&](const NestedKey& path, const at::Tensor& leaf) {
    const at::Tensor values = leaf.to(at::kFloat).contiguous();
    const float* data = values.const_data_ptr<float>();
    int64_t wrong = 0, first = -1;
    for (int64_t j = 0; j < values.numel(); ++j) {
      if (data[j] == factor * static_cast<float>(1 + j % 5)) continue;
      if (first < 0) first = j;
      ++wrong;
    }
    if (wrong > 0) {
      ADD_FAILURE() << path.ToString() << ": " << wrong << " of " << values.numel()
                    << " elements are wrong, first element " << first << ": " << data[first]
                    << ", not " << factor * static_cast<float>(1 + first % 5);
    }
  });
}

}  // namespace

Group MakeTestGroup(const RankContext& rank, absl::Duration timeout, const std::string& name) {
  auto store =
      c10::make_intrusive<c10d::FileStore>(absl::StrCat(rank.directory(), "/store"), rank.size());
  GroupOptions options;
  options.timeout = timeout;
  if (const char* backend = std::getenv("LEAFPACK_TEST_BACKEND")) options.backend = backend;
  absl::StatusOr<Group> group =
      Group::Create(std::move(store), name, GroupRank(rank.rank()), rank.size(), {}, options);
  ABSL_CHECK_OK(group.status());
  return *std::move(group);
}

TensorDict MakeTestTree(int rank, int64_t elements) {
  TensorDict tree;
  ABSL_CHECK_OK(tree.Set({"a", "x"}, at::empty({5}, at::kFloat)));
  ABSL_CHECK_OK(tree.Set({"a", "y"}, at::empty({3, 2}, at::kFloat)));
  ABSL_CHECK_OK(tree.Set("b", at::empty({elements}, at::kFloat)));
  Fill(tree, rank);
  return tree;
}

TensorDict MakeTestTree(int rank, TreeSize size) {
  return MakeTestTree(rank, size == TreeSize::kFrame ? 100 : 200'000);
}

void Fill(const TensorDict& tree, int rank) {
  tree.Visit([&](const NestedKey&, const at::Tensor& leaf) {
    at::Tensor values = at::empty(leaf.sizes(), at::kFloat);
    float* data = values.mutable_data_ptr<float>();
    for (int64_t j = 0; j < values.numel(); ++j) {
      data[j] = static_cast<float>(rank + 1) * static_cast<float>(1 + j % 5);
    }
    leaf.copy_(values);
  });
}

void ExpectFilled(const TensorDict& tree, int rank) {
  ExpectValues(tree, static_cast<float>(rank + 1));
}

void ExpectSummed(const TensorDict& tree, int ranks) {
  ExpectValues(tree, static_cast<float>(ranks * (ranks + 1)) / 2);
}

Snapshot::Snapshot(const TensorDict& tree) {
  tree.Visit([&](const NestedKey& path, const at::Tensor& leaf) {
    // All bytes of the storage, so that a write beside the leaf is seen too.
    const c10::Storage& storage = leaf.storage();
    const at::Tensor bytes =
        at::from_blob(storage.mutable_data(), {static_cast<int64_t>(storage.nbytes())}, at::kByte);
    paths_.push_back(path.ToString());
    storages_.push_back(leaf);
    copies_.push_back(bytes.clone());
  });
}

void Snapshot::ExpectUnchanged() const {
  for (size_t i = 0; i < copies_.size(); ++i) {
    const c10::Storage& storage = storages_[i].storage();
    ASSERT_EQ(storage.nbytes(), copies_[i].nbytes());
    EXPECT_EQ(std::memcmp(storage.data(), copies_[i].const_data_ptr(), storage.nbytes()), 0)
        << "leaf " << paths_[i] << " has changed";
  }
}

void ExpectUsable(const Group& group) {
  for (const TreeSize size : {TreeSize::kFrame, TreeSize::kData}) {
    const TensorDict tree = MakeTestTree(group.rank().value(), size);
    ASSERT_THAT(AllReduce(tree, group, {.name = "usable"}), IsOk())
        << (size == TreeSize::kFrame ? "small tree" : "large tree");
    ExpectSummed(tree, group.size());
  }
}

void ExpectFault(const absl::Status& status, absl::StatusCode code, ErrorKind kind,
                 const std::vector<int>& ranks) {
  EXPECT_EQ(status.code(), code) << status;
  const ErrorDetails details = GetErrorDetails(status);
  EXPECT_EQ(static_cast<int>(details.kind), static_cast<int>(kind)) << status;
  if (ranks.empty()) return;
  std::vector<int> named;
  for (const GlobalRank rank : details.ranks) named.push_back(rank.value());
  EXPECT_EQ(named, ranks) << status;
  for (const int rank : ranks) {
    EXPECT_THAT(std::string(status.message()),
                ::testing::ContainsRegex(absl::StrCat("(^|[^0-9])", rank, "($|[^0-9])")));
  }
}

void LetGoOn(RankContext& rank, int stopped, int event) {
  rank.Signal(event);
  if (rank.Count(event) < rank.size() - 1) return;
  const pid_t pid = rank.PidOf(stopped);
  const absl::Time until = absl::Now() + absl::Seconds(20);
  while (!IsStopped(pid) && absl::Now() < until) absl::SleepFor(absl::Milliseconds(2));
  kill(pid, SIGCONT);
}

void ExpectUsableSoon(RankContext& rank, const Group& group, int event) {
  ASSERT_TRUE(rank.Barrier(event));
  std::vector<std::string> seen;
  for (int attempt = 0; attempt < 6; ++attempt) {
    const TensorDict tree = MakeTestTree(group.rank().value(), TreeSize::kFrame);
    const Snapshot before(tree);
    const absl::Status status = AllReduce(tree, group, {.timeout = absl::Seconds(20)});
    if (status.ok()) {
      ExpectSummed(tree, group.size());
      ExpectUsable(group);
      return;
    }
    before.ExpectUnchanged();
    seen.push_back(status.ToString());
    ASSERT_NE(status.code(), absl::StatusCode::kUnavailable) << status;
  }
  ADD_FAILURE() << "no call succeeds; the last says " << seen.back();
}

}  // namespace leafpack
