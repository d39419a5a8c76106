// What a backend that packs for itself is given, tried with one that packs for Gloo.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/backends/gloo/gloo_backend.h"
#include "distributed/core/backend.h"
#include "distributed/core/error.h"
#include "distributed/tree/all_reduce.h"
#include "distributed/tree/all_reduce_testutil.h"

namespace leafpack {
namespace {

using ::leafpack::testing::WithGroup;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int kRanks = 2;
constexpr int64_t kNumel = 40'000;  // too many for a frame

int64_t ElementCount(const LeafView& view) {
  int64_t count = 1;
  for (const int64_t size : view.sizes) count *= size;
  return count;
}

// Calls copy(address of an element) in row-major order of the indices.
void ForEachElement(const LeafView& view, const std::function<void(char*)>& copy) {
  const auto element = static_cast<int64_t>(c10::elementSize(view.dtype));
  for (int64_t i = 0; i < ElementCount(view); ++i) {
    int64_t rest = i;
    int64_t at = 0;
    for (size_t d = view.sizes.size(); d-- > 0;) {
      at += rest % view.sizes[d] * view.strides[d];
      rest /= view.sizes[d];
    }
    copy(static_cast<char*>(view.data) + at * element);
  }
}

// One view of an operation, as it came.
struct Seen {
  void* data;
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
};

class ViewsBackend : public GlooBackend {
 public:
  std::string_view name() const override { return "views"; }
  bool PacksForItself() const override { return true; }
  BackendCost Cost(int ranks) const override {
    BackendCost cost = GlooBackend::Cost(ranks);
    cost.pack_per_byte = 0;
    return cost;
  }
  absl::StatusOr<std::shared_ptr<DataContext>> Open(const DataContextOptions& options,
                                                    absl::Time deadline) override;

  // The operations since the last call.
  std::vector<std::vector<Seen>> Take() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(operations_, {});
  }
  // The n-th operation from now on fails on this rank.
  void FailOperation(int n) {
    absl::MutexLock lock(&mutex_);
    fail_in_ = n;
  }
  bool Note(const std::vector<LeafView>& views) {
    absl::MutexLock lock(&mutex_);
    std::vector<Seen>& seen = operations_.emplace_back();
    for (const LeafView& view : views) {
      EXPECT_NE(view.keep_alive, nullptr);
      seen.push_back({view.data, view.dtype, {view.sizes.begin(), view.sizes.end()},
                      {view.strides.begin(), view.strides.end()}});
    }
    return fail_in_ != 0 && --fail_in_ == 0;
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::vector<Seen>> operations_ ABSL_GUARDED_BY(mutex_);
  int fail_in_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Works on a copy of each view, which it writes back once all are done.
class ViewsWork : public DataWork {
 public:
  ViewsWork(std::vector<LeafView> views, std::vector<std::shared_ptr<std::vector<char>>> copies,
            std::vector<std::unique_ptr<DataWork>> works)
      : views_(std::move(views)), copies_(std::move(copies)), works_(std::move(works)) {}

  bool IsDone() override { return works_.empty() || works_.back()->IsDone(); }
  absl::StatusOr<bool> WaitFor(absl::Duration slice) override {
    while (!works_.empty()) {
      absl::StatusOr<bool> done = works_.back()->WaitFor(slice);
      if (!done.ok() || !*done) return done;
      works_.pop_back();
    }
    for (size_t i = 0; i < views_.size(); ++i) {
      const char* next = copies_[i]->data();
      const size_t element = c10::elementSize(views_[i].dtype);
      ForEachElement(views_[i], [&](char* to) {
        std::memcpy(to, next, element);
        next += element;
      });
    }
    views_.clear();
    return true;
  }

 private:
  std::vector<LeafView> views_;
  std::vector<std::shared_ptr<std::vector<char>>> copies_;
  std::vector<std::unique_ptr<DataWork>> works_;
};

class ViewsContext : public DataContext {
 public:
  ViewsContext(std::shared_ptr<DataContext> inner, ViewsBackend* backend)
      : inner_(std::move(inner)), backend_(backend) {}

  absl::StatusOr<std::unique_ptr<DataWork>> AllReduce(std::vector<LeafView> views,
                                                      const ReduceOp& op) override {
    if (backend_->Note(views)) return absl::InternalError("told to fail");
    std::vector<std::shared_ptr<std::vector<char>>> copies;
    std::vector<std::unique_ptr<DataWork>> works;
    for (const LeafView& view : views) {
      copies.push_back(std::make_shared<std::vector<char>>());
      ForEachElement(view, [&](const char* from) {
        copies.back()->insert(copies.back()->end(), from, from + c10::elementSize(view.dtype));
      });
      LeafView copy;
      copy.data = copies.back()->data();
      copy.dtype = view.dtype;
      copy.sizes = {ElementCount(view)};
      copy.strides = {1};
      copy.keep_alive = copies.back();
      absl::StatusOr<std::unique_ptr<DataWork>> work = inner_->AllReduce({copy}, op);
      if (!work.ok()) return work.status();
      works.push_back(*std::move(work));
    }
    return std::make_unique<ViewsWork>(std::move(views), std::move(copies), std::move(works));
  }
  void Abort() override { inner_->Abort(); }

 private:
  const std::shared_ptr<DataContext> inner_;
  ViewsBackend* const backend_;
};

absl::StatusOr<std::shared_ptr<DataContext>> ViewsBackend::Open(const DataContextOptions& options,
                                                                absl::Time deadline) {
  absl::StatusOr<std::shared_ptr<DataContext>> inner = GlooBackend::Open(options, deadline);
  if (!inner.ok()) return inner.status();
  return std::make_shared<ViewsContext>(*std::move(inner), this);
}

void WithViews(const std::function<void(const Group&, ViewsBackend&)>& body) {
  [[maybe_unused]] static const bool registered =
      RegisterBackend("views", []() -> absl::StatusOr<std::unique_ptr<Backend>> {
        return std::make_unique<ViewsBackend>();
      });
  WithGroup(
      kRanks,
      [&](const Group& group) { body(group, static_cast<ViewsBackend&>(group.backend())); },
      {.backend = "views"});
}

// Per element j, rank r holds j % 7 + r.
at::Tensor Values(at::IntArrayRef sizes, int rank, at::ScalarType dtype = at::kFloat) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  return at::arange(numel).remainder(7).add(rank).view(sizes).to(dtype);
}
at::Tensor Sum(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
  return Values(sizes, 0, dtype).mul(kRanks).add(kRanks * (kRanks - 1) / 2);
}

TEST(LeafViews, LeavesOfAllDtypesGoWhereTheyAreInOneOperation) {
  WithViews([](const Group& group, ViewsBackend& backend) {
    const int rank = group.rank().value();
    const at::Tensor run = Values({kNumel}, rank);
    const at::Tensor number = Values({}, rank, at::kLong);
    const at::Tensor wide = at::zeros({kNumel, 2});
    const at::Tensor column = wide.slice(1, 1, 2);
    column.copy_(Values({kNumel, 1}, rank));
    TensorDict tree;
    ASSERT_TRUE(tree.Set("a", run).ok());
    ASSERT_TRUE(tree.Set("b", number).ok());
    ASSERT_TRUE(tree.Set("c", column).ok());
    LEAFPACK_ASSERT_OK(AllReduce(tree, group));
    EXPECT_TRUE(at::equal(run, Sum({kNumel})));
    EXPECT_TRUE(at::equal(number, Sum({}, at::kLong)));
    EXPECT_TRUE(at::equal(column, Sum({kNumel, 1})));
    EXPECT_TRUE(at::equal(wide.slice(1, 0, 1), at::zeros({kNumel, 1})));

    const std::vector<std::vector<Seen>> operations = backend.Take();
    ASSERT_EQ(operations.size(), 1u);
    ASSERT_EQ(operations[0].size(), 3u);
    std::vector<Seen> seen = operations[0];  // by bucket: a and c, then b
    EXPECT_EQ(seen[0].data, run.data_ptr());
    EXPECT_EQ(seen[1].data, column.data_ptr());
    EXPECT_THAT(seen[1].sizes, ElementsAre(kNumel, 1));
    EXPECT_EQ(seen[1].strides[0], 2);
    EXPECT_EQ(seen[2].data, number.data_ptr());
    EXPECT_EQ(seen[2].dtype, at::kLong);
  });
}

TEST(LeafViews, EqualStridesAreTakenInMemoryOrderAndOthersByIndex) {
  WithViews([](const Group& group, ViewsBackend& backend) {
    const int rank = group.rank().value();
    for (const bool equal : {true, false}) {
      at::Tensor leaf = at::zeros({200, 300});
      if (equal || rank == 0) leaf = at::zeros({300, 200}).t();
      leaf.copy_(Values({200, 300}, rank));
      TensorDict tree;
      ASSERT_TRUE(tree.Set("a", leaf).ok());
      LEAFPACK_ASSERT_OK(AllReduce(tree, group));
      EXPECT_TRUE(at::equal(leaf, Sum({200, 300})));
      const std::vector<std::vector<Seen>> operations = backend.Take();
      ASSERT_EQ(operations.size(), 1u);
      ASSERT_EQ(operations[0].size(), 1u);
      EXPECT_EQ(operations[0][0].data, leaf.data_ptr());
      if (equal || rank == 1) {
        EXPECT_THAT(operations[0][0].strides, ElementsAre(1));
      } else {
        EXPECT_THAT(operations[0][0].strides, ElementsAre(1, 200));
      }
    }
  });
}

TEST(LeafViews, PerLeafIsOneOperationEach) {
  WithViews([](const Group& group, ViewsBackend& backend) {
    TensorDict tree;
    for (const char* name : {"a", "b", "c"}) {
      ASSERT_TRUE(tree.Set(name, Values({kNumel}, group.rank().value())).ok());
    }
    LEAFPACK_ASSERT_OK(AllReduce(tree, group, {.bucketing = Bucketing::PerLeaf()}));
    EXPECT_EQ(backend.Take().size(), 3u);
  });
}

// Leaves that cannot be taken as they are come as packed ones, in as many views.
TEST(LeafViews, ALazyConjugateAndAFactorArePacked) {
  WithViews([](const Group& group, ViewsBackend& backend) {
    const int rank = group.rank().value();
    at::Tensor plain = at::full({kNumel}, 1.0, at::kComplexFloat);
    const at::Tensor lazy = rank == 0 ? plain.conj() : plain;
    const at::Tensor other = at::full({3}, 2.0, at::kComplexFloat);
    TensorDict tree;
    ASSERT_TRUE(tree.Set("a", lazy).ok());
    ASSERT_TRUE(tree.Set("b", other).ok());
    LEAFPACK_ASSERT_OK(AllReduce(tree, group));
    EXPECT_TRUE(at::equal(lazy.resolve_conj(), at::full({kNumel}, 2.0, at::kComplexFloat)));
    std::vector<std::vector<Seen>> operations = backend.Take();
    ASSERT_EQ(operations.size(), 1u);
    ASSERT_EQ(operations[0].size(), 2u);
    EXPECT_EQ(operations[0][0].data == plain.data_ptr(), rank == 1);

    LEAFPACK_ASSERT_OK(AllReduce(tree, group, {.op = ReduceOp::PremulSum(rank + 1.0)}));
    EXPECT_TRUE(at::equal(lazy.resolve_conj(), at::full({kNumel}, 6.0, at::kComplexFloat)));
    EXPECT_TRUE(at::equal(other, at::full({3}, 12.0, at::kComplexFloat)));
    operations = backend.Take();
    ASSERT_EQ(operations.size(), 1u);
    ASSERT_EQ(operations[0].size(), 2u);
    EXPECT_NE(operations[0][1].data, other.data_ptr());
  });
}

TEST(LeafViews, AFailureTellsWhatIsDone) {
  WithViews([](const Group& group, ViewsBackend& backend) {
    const int rank = group.rank().value();
    for (const OnFailure on_failure : {OnFailure::kReport, OnFailure::kRestore}) {
      TensorDict tree;
      std::vector<at::Tensor> leaves;
      for (const char* name : {"a", "b", "c"}) {
        leaves.push_back(Values({kNumel}, rank));
        ASSERT_TRUE(tree.Set(name, leaves.back()).ok());
      }
      if (rank == 1) backend.FailOperation(2);
      const absl::Status status = AllReduce(
          tree, group, {.bucketing = Bucketing::PerLeaf(), .on_failure = on_failure});
      EXPECT_FALSE(status.ok());
      const ErrorDetails details = GetErrorDetails(status);
      if (on_failure == OnFailure::kRestore) {
        EXPECT_TRUE(details.tree_unchanged);
        EXPECT_THAT(details.paths_done, IsEmpty());
      }
      for (size_t i = 0; i < leaves.size(); ++i) {
        const std::string path(1, static_cast<char>('a' + i));
        if (std::ranges::count(details.paths_done, path) != 0) {
          EXPECT_TRUE(at::equal(leaves[i], Sum({kNumel}))) << path;
        } else if (details.tree_unchanged) {
          EXPECT_TRUE(at::equal(leaves[i], Values({kNumel}, rank))) << path;
        }
      }
      LEAFPACK_ASSERT_OK(AllReduce(tree, group));
      backend.Take();
    }
  });
}

}  // namespace
}  // namespace leafpack
