// The backend over a mock of CUDA and NCCL: values, what is packed, order of streams, ends and errors.
#include "distributed/backends/nccl/nccl_backend.h"

#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/backends/nccl/mock_device.h"
#include "distributed/backends/nccl/nccl_context.h"
#include "distributed/backends/nccl/reduction_plan.h"
#include "distributed/core/reduce/reduce.h"

namespace leafpack::nccl_internal {
namespace {

using at::ScalarType;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Minutes(1);

#define LEAFPACK_ASSERT_OK(expression)         \
  do {                                         \
    const absl::Status status_ = (expression); \
    ASSERT_TRUE(status_.ok()) << status_;      \
  } while (false)

const std::vector<ReduceOpKind> kOps = {
    ReduceOpKind::kSum, ReduceOpKind::kAvg,  ReduceOpKind::kProduct, ReduceOpKind::kMin,
    ReduceOpKind::kMax, ReduceOpKind::kBand, ReduceOpKind::kBor,     ReduceOpKind::kBxor};
const std::vector<ScalarType> kDtypes = {
    ScalarType::Bool,   ScalarType::Byte,         ScalarType::UInt16,
    ScalarType::UInt32, ScalarType::UInt64,       ScalarType::Char,
    ScalarType::Short,  ScalarType::Int,          ScalarType::Long,
    ScalarType::Half,   ScalarType::BFloat16,     ScalarType::Float,
    ScalarType::Double, ScalarType::ComplexFloat, ScalarType::ComplexDouble,
    ScalarType::Float8_e4m3fn, ScalarType::Float8_e5m2};

// Small whole numbers, exact in every dtype, that differ between leaves and ranks.
at::Tensor MakeLeaf(int leaf, ScalarType dtype, at::IntArrayRef sizes, int rank) {
  const int64_t numel = c10::multiply_integers(sizes);
  const at::Tensor numbers = at::arange(numel, at::kLong).mul(5).add(leaf * 3 + rank * 11).remainder(4).view(sizes);
  return dtype == ScalarType::Bool ? numbers.eq(1) : numbers.to(dtype);
}

// Reduced here, in rank order.
at::Tensor Expected(int leaf, ScalarType dtype, at::IntArrayRef sizes, int ranks, ReduceOpKind op) {
  std::vector<at::Tensor> leaves;
  std::vector<const void*> inputs;
  for (int rank = 0; rank < ranks; ++rank) {
    leaves.push_back(MakeLeaf(leaf, dtype, sizes, rank));
    inputs.push_back(leaves.back().const_data_ptr());
  }
  const at::Tensor result = at::empty_like(leaves[0]);
  EXPECT_EQ(ReduceInto(op, dtype, inputs, result.mutable_data_ptr(), result.numel()), absl::OkStatus());
  return result;
}

LeafView ViewOf(const at::Tensor& leaf) {
  LeafView view;
  view.data = leaf.data_ptr();
  view.dtype = leaf.scalar_type();
  view.sizes = leaf.sizes().vec();
  view.strides = leaf.strides().vec();
  view.keep_alive = std::make_shared<at::Tensor>(leaf);
  return view;
}

std::vector<LeafView> ViewsOf(const std::vector<at::Tensor>& leaves) {
  std::vector<LeafView> views;
  for (const at::Tensor& leaf : leaves) views.push_back(ViewOf(leaf));
  return views;
}

// Waits in slices, as the engine does.
absl::Status Finish(DataWork& work) {
  const absl::Time until = absl::Now() + kPatience;
  while (absl::Now() < until) {
    const absl::StatusOr<bool> done = work.WaitFor(absl::Milliseconds(20));
    if (!done.ok()) return done.status();
    if (*done) return absl::OkStatus();
  }
  return absl::DeadlineExceededError("the work did not end");
}

// Ranks as threads, each with a context of one group.
class Ranks {
 public:
  explicit Ranks(int size) : size_(size) {
    absl::StatusOr<std::unique_ptr<Backend>> backend =
        NcclBackend::Make(std::make_shared<MockDevice>(control));
    EXPECT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
  }

  void Run(const std::function<void(int rank, DataContext& context)>& body) {
    const auto store = c10::make_intrusive<c10d::HashStore>();
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size_; ++rank) {
      threads.emplace_back([&, rank] {
        DataContextOptions options;
        options.store = store;
        options.rank = rank;
        options.size = size_;
        absl::StatusOr<std::shared_ptr<DataContext>> context =
            backend_->Open(options, absl::Now() + kPatience);
        ASSERT_TRUE(context.ok()) << context.status();
        body(rank, **context);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  const Backend& backend() const { return *backend_; }
  const std::shared_ptr<MockControl> control = std::make_shared<MockControl>();

 private:
  const int size_;
  std::unique_ptr<Backend> backend_;
};

absl::Status AllReduce(DataContext& context, const std::vector<at::Tensor>& leaves, ReduceOp op) {
  absl::StatusOr<std::unique_ptr<DataWork>> work = context.AllReduce(ViewsOf(leaves), op);
  if (!work.ok()) return work.status();
  return Finish(**work);
}

// A gate on a stream: what is put on it afterwards waits until Open.
class Gate {
 public:
  explicit Gate(MockStream& stream) {
    stream.Put([open = open_] { open->WaitForNotification(); });
  }
  ~Gate() { Open(); }
  void Open() {
    if (!open_->HasBeenNotified()) open_->Notify();
  }

 private:
  const std::shared_ptr<absl::Notification> open_ = std::make_shared<absl::Notification>();
};

TEST(NcclBackend, EveryDtypeAndOpIsReducedOrRefused) {
  int reduced = 0;
  for (const int size : {1, 2, 3}) {
    Ranks ranks(size);
    for (const ScalarType dtype : kDtypes) {
      for (const ReduceOpKind op : kOps) {
        const absl::Status supported = ranks.backend().SupportsAllReduce(dtype, op, c10::DeviceType::CPU);
        const std::string what = absl::StrCat(c10::toString(dtype), " ", ReduceOpName(op), " on ", size);
        ranks.Run([&](int rank, DataContext& context) {
          const int before = ranks.control->groups;
          // Two are packed, the third is too large; it is strided on odd ranks.
          const int64_t rows =
              supported.ok() ? kAloneBytes / static_cast<int64_t>(c10::elementSize(dtype)) / 64 : 1;
          std::vector<at::Tensor> leaves = {MakeLeaf(0, dtype, {3, 5}, rank),
                                            MakeLeaf(1, dtype, {7}, rank),
                                            MakeLeaf(2, dtype, {rows, 64}, rank)};
          if (rank % 2 == 1) {
            for (at::Tensor& leaf : leaves) {
              if (leaf.dim() == 2) leaf = leaf.t().clone(at::MemoryFormat::Contiguous).t();
            }
          }
          const absl::Status status = AllReduce(context, leaves, {op});
          EXPECT_EQ(status.code(), supported.code()) << what << status;
          if (!supported.ok()) {
            EXPECT_EQ(ranks.control->groups, before);
            return;
          }
          for (int i = 0; i < 3; ++i) {
            const at::Tensor& have = leaves[static_cast<size_t>(i)];
            const at::Tensor want = Expected(i, dtype, have.sizes(), size, op);
            if (op == ReduceOpKind::kAvg) {  // rounded twice, once by each rank
              EXPECT_TRUE(have.to(at::kComplexDouble).allclose(want.to(at::kComplexDouble), 2e-2)) << what;
            } else {
              EXPECT_TRUE(have.contiguous().view(at::kByte).equal(want.view(at::kByte))) << what << " leaf " << i;
            }
          }
        });
        if (supported.ok()) ++reduced;
      }
    }
  }
  // Floating types, integers, bool, unsigned integers, complex numbers: as docs/cuda.md says.
  EXPECT_EQ(reduced, 3 * (4 * 5 + 4 * 4 + 6 + 2 * 2 + 2 * 2));
}

TEST(NcclBackend, NanIsKeptOnEveryRank) {
  Ranks ranks(3);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      ranks.Run([&](int rank, DataContext& context) {
        const auto options = at::TensorOptions().dtype(dtype);
        std::vector<at::Tensor> leaves = {at::full({4}, rank, options), at::full({3}, rank, options)};
        leaves[0][rank] = nan;
        LEAFPACK_ASSERT_OK(AllReduce(context, leaves, op));
        for (int i = 0; i < 3; ++i) EXPECT_TRUE(std::isnan(leaves[0][i].item<double>())) << i;
        const double rest = op == ReduceOp::kMin ? 0 : 2;
        EXPECT_EQ(leaves[0][3].item<double>(), rest);
        EXPECT_EQ(leaves[1].sum().item<double>(), 3 * rest);
      });
    }
  }
}

TEST(NcclBackend, ManySmallLeavesAreOneMemberAndTwoCopies) {
  Ranks ranks(1);
  ranks.Run([&](int, DataContext& context) {
    std::vector<at::Tensor> leaves;
    for (int i = 0; i < 100; ++i) leaves.push_back(at::ones({1000}));
    leaves.push_back(at::ones({kAloneBytes / 4}));
    leaves.push_back(at::ones({kAloneBytes / 4 + 3}));
    leaves.push_back(at::ones({3}, at::kDouble));
    LEAFPACK_ASSERT_OK(AllReduce(context, leaves, ReduceOp::kSum));
    EXPECT_EQ(ranks.control->groups, 1);
    EXPECT_EQ(ranks.control->members, 4);
    EXPECT_EQ(ranks.control->allocations, 1);
    EXPECT_EQ(ranks.control->runs, 2);
    // Nothing to pack: NCCL alone.
    LEAFPACK_ASSERT_OK(AllReduce(context, {leaves[100], leaves[102]}, ReduceOp::kSum));
    EXPECT_EQ(ranks.control->groups, 2);
    EXPECT_EQ(ranks.control->runs, 2);
    // Nothing at all.
    LEAFPACK_ASSERT_OK(AllReduce(context, {at::empty({0})}, ReduceOp::kSum));
    LEAFPACK_ASSERT_OK(AllReduce(context, {}, ReduceOp::kSum));
    EXPECT_EQ(ranks.control->groups, 2);
  });
}

// Another rank may hold the same leaves in other strides: the mock refuses calls that differ.
TEST(NcclBackend, ElementsBetweenThoseOfAStridedLeafAreLeftAlone) {
  Ranks ranks(2);
  ranks.Run([&](int rank, DataContext& context) {
    for (const int64_t numel : {int64_t{10}, kAloneBytes}) {
      const at::Tensor base = at::full({2 * numel}, 5.0);
      std::vector<at::Tensor> leaves = {rank == 0 ? base.slice(0, 0, 2 * numel, 2) : at::ones({numel}),
                                        at::ones({4})};
      if (rank == 0) leaves[0].fill_(1);
      LEAFPACK_ASSERT_OK(AllReduce(context, leaves, ReduceOp::kSum));
      EXPECT_TRUE(leaves[0].eq(2).all().item<bool>());
      EXPECT_TRUE(leaves[1].eq(2).all().item<bool>());
      if (rank == 0) {
        EXPECT_TRUE(base.slice(0, 1, 2 * numel, 2).eq(5).all().item<bool>());
      }
    }
  });
}

TEST(NcclBackend, FollowsTheCallersStreamAndTheWaitersFollowsIt) {
  Ranks ranks(2);
  ranks.Run([&](int rank, DataContext& context) {
    const auto stream = std::make_shared<MockStream>();
    const WithMockStream current(stream);
    const at::Tensor small = at::full({8}, -1.0), other = at::full({2}, -1.0);
    const at::Tensor large = at::full({kAloneBytes}, -1.0);
    Gate gate(*stream);
    // What computes the leaves has not run when the call is made.
    stream->Put([&] {
      for (const at::Tensor& leaf : {small, other, large}) leaf.fill_(rank + 1);
    });
    absl::StatusOr<std::unique_ptr<DataWork>> work =
        context.AllReduce(ViewsOf({small, other, large}), ReduceOp::kSum);
    LEAFPACK_ASSERT_OK(work.status());
    EXPECT_FALSE((*work)->IsDone());
    const absl::StatusOr<bool> early = (*work)->WaitFor(absl::Milliseconds(5));
    LEAFPACK_ASSERT_OK(early.status());
    EXPECT_FALSE(*early);
    // The wait timed out, and yet what is put on the stream now comes after the reduction.
    double seen = 0;
    stream->Put([&] { seen = small[0].item<double>() + large[5].item<double>() + other[1].item<double>(); });
    gate.Open();
    LEAFPACK_ASSERT_OK(Finish(**work));
    EXPECT_TRUE((*work)->IsDone());
    stream->Await(stream->put());
    EXPECT_EQ(seen, 9);
    EXPECT_TRUE(large.eq(3).all().item<bool>());
  });
}

TEST(NcclBackend, SeveralWorksEndInOrderAndMayBeDropped) {
  Ranks ranks(2);
  ranks.Run([&](int, DataContext& context) {
    const at::Tensor leaf = at::ones({10});
    std::unique_ptr<DataWork> last;
    for (int i = 0; i < 5; ++i) {
      absl::StatusOr<std::unique_ptr<DataWork>> work = context.AllReduce(ViewsOf({leaf}), ReduceOp::kSum);
      LEAFPACK_ASSERT_OK(work.status());
      last = *std::move(work);
    }
    LEAFPACK_ASSERT_OK(Finish(*last));
    EXPECT_TRUE(leaf.eq(32).all().item<bool>());
  });
}

// The device uses the memory although nobody holds the work.
TEST(NcclBackend, MemoryIsKeptUntilTheDeviceIsThroughWithIt) {
  Ranks ranks(1);
  ranks.Run([&](int, DataContext& context) {
    const auto stream = std::make_shared<MockStream>();
    const WithMockStream current(stream);
    std::weak_ptr<const void> memory;
    {
      Gate gate(*stream);
      LeafView view = ViewOf(at::ones({10}));
      memory = view.keep_alive;
      {
        std::vector<LeafView> views;
        views.push_back(std::move(view));
        LEAFPACK_ASSERT_OK(context.AllReduce(std::move(views), ReduceOp::kSum).status());
      }
      EXPECT_FALSE(memory.expired());
    }
    // Let go of at the next call after that, at the latest.
    absl::StatusOr<std::unique_ptr<DataWork>> work = context.AllReduce(ViewsOf({at::ones({1})}), ReduceOp::kSum);
    LEAFPACK_ASSERT_OK(work.status());
    LEAFPACK_ASSERT_OK(Finish(**work));
    LEAFPACK_ASSERT_OK(context.AllReduce({}, ReduceOp::kSum).status());
    EXPECT_TRUE(memory.expired());
  });
}

TEST(NcclBackend, AbortEndsWorksWithAnErrorAndLetsGoOfTheLeavesFirst) {
  Ranks ranks(2);
  ranks.Run([&](int rank, DataContext& context) {
    if (rank == 1) return;  // never comes
    const at::Tensor leaf = at::ones({10});
    absl::StatusOr<std::unique_ptr<DataWork>> work = context.AllReduce(ViewsOf({leaf}), ReduceOp::kSum);
    LEAFPACK_ASSERT_OK(work.status());
    EXPECT_FALSE(*(*work)->WaitFor(absl::Milliseconds(20)));
    std::thread other([&] { context.Abort(); });
    EXPECT_EQ(Finish(**work).code(), absl::StatusCode::kCancelled);
    other.join();
    EXPECT_TRUE((*work)->IsDone());
    // Nothing is written any more.
    leaf.fill_(3);
    absl::SleepFor(absl::Milliseconds(20));
    EXPECT_TRUE(leaf.eq(3).all().item<bool>());
    EXPECT_EQ(context.AllReduce(ViewsOf({leaf}), ReduceOp::kSum).status().code(), absl::StatusCode::kCancelled);
    context.Abort();
    EXPECT_EQ(ranks.control->aborts, 1);
  });
}

TEST(NcclBackend, ADeviceThatDoesNotLetGoHoldsNobodyForLong) {
  Ranks ranks(2);
  ranks.Run([&](int rank, DataContext& context) {
    if (rank == 1) return;
    ranks.control->deaf = true;
    absl::StatusOr<std::unique_ptr<DataWork>> work =
        context.AllReduce(ViewsOf({at::ones({10})}), ReduceOp::kSum);
    LEAFPACK_ASSERT_OK(work.status());
    context.Abort();
    EXPECT_EQ(Finish(**work).code(), absl::StatusCode::kCancelled);
    work->reset();
    ranks.control->deaf = false;
  });
}

TEST(NcclBackend, AnErrorOfNcclEndsTheWork) {
  Ranks ranks(2);
  ranks.Run([&](int rank, DataContext& context) {
    if (rank == 1) return;
    absl::StatusOr<std::unique_ptr<DataWork>> work =
        context.AllReduce(ViewsOf({at::ones({10})}), ReduceOp::kSum);
    LEAFPACK_ASSERT_OK(work.status());
    ranks.control->broken = true;
    const absl::Status status = Finish(**work);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(status.message(), HasSubstr("remote process exited"));
    context.Abort();
  });
}

TEST(NcclBackend, NoMemoryIsAnErrorBeforeAnythingMoves) {
  Ranks ranks(1);
  ranks.Run([&](int, DataContext& context) {
    ranks.control->no_memory = true;
    const at::Tensor leaf = at::ones({10});
    const absl::Status status =
        context.AllReduce(ViewsOf({leaf, at::ones({3})}), ReduceOp::kSum).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(ranks.control->groups, 0);
    // What needs none still goes.
    LEAFPACK_ASSERT_OK(AllReduce(context, {leaf}, ReduceOp::kSum));
  });
}

TEST(NcclBackend, RefusesOtherDevicesBeforeAnythingMoves) {
  Ranks ranks(1);
  ranks.Run([&](int, DataContext& context) {
    std::vector<LeafView> views = ViewsOf({at::ones({10}), at::ones({10})});
    views[1].device = c10::Device(c10::kCUDA, 1);
    const absl::Status status = context.AllReduce(std::move(views), ReduceOp::kSum).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(status.message(), HasSubstr("cuda:1"));
    EXPECT_EQ(ranks.control->groups, 0);
  });
}

TEST(NcclBackend, SaysWhatItServes) {
  const auto control = std::make_shared<MockControl>();
  control->current = c10::Device(c10::kCUDA, 2);
  absl::StatusOr<std::unique_ptr<Backend>> backend = NcclBackend::Make(std::make_shared<MockDevice>(control));
  LEAFPACK_ASSERT_OK(backend.status());
  EXPECT_EQ((*backend)->SupportsAllReduce(at::kFloat, ReduceOpKind::kSum, c10::DeviceType::CUDA),
            absl::OkStatus());
  EXPECT_EQ((*backend)->SupportsAllReduce(at::kFloat, ReduceOpKind::kSum, c10::DeviceType::CPU).code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_EQ((*backend)->SupportsExchange(at::kFloat, c10::DeviceType::CUDA).code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_TRUE((*backend)->MustEnqueueInCallerThread());
  const DeviceTraits* traits = DeviceTraits::Of(**backend);
  ASSERT_NE(traits, nullptr);
  EXPECT_EQ(traits->CheckDevice(c10::Device(c10::kCUDA, 2)), absl::OkStatus());
  const absl::Status other = traits->CheckDevice(c10::Device(c10::kCUDA, 3));
  EXPECT_EQ(other.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(other.message(), HasSubstr("cuda:3"));
  EXPECT_THAT(other.message(), HasSubstr("cuda:2"));
}

TEST(NcclBackend, TellsWhyItCannotConnect) {
  Ranks ranks(1);
  ranks.control->fail_connect = true;
  DataContextOptions options;
  options.store = c10::make_intrusive<c10d::HashStore>();
  absl::StatusOr<std::unique_ptr<Backend>> backend =
      NcclBackend::Make(std::make_shared<MockDevice>(ranks.control));
  LEAFPACK_ASSERT_OK(backend.status());
  EXPECT_EQ((*backend)->Open(options, absl::Now() + kPatience).status().code(), absl::StatusCode::kUnavailable);
  options.rank = 3;
  EXPECT_EQ((*backend)->Open(options, absl::Now() + kPatience).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace leafpack::nccl_internal
