// All-reduce, reduce and reduce-scatter: every dtype, op, layout and carrier.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/core/backend.h"
#include "distributed/core/error.h"
#include "distributed/tree/all_reduce.h"
#include "distributed/tree/all_reduce_testutil.h"
#include "distributed/tree/reduce.h"
#include "testing/conformance/sample.h"
#include "testing/conformance/suite.h"
#include "testing/matchers.h"

namespace leafpack::conformance {
namespace {

using ::leafpack::testing::AllDtypes;
using ::leafpack::testing::AllOps;
using ::testing::HasSubstr;

enum class Kind { kAllReduce, kReduce, kReduceScatter };

// What the backend says of a reduction: all-reduce is its own, the others move bytes by exchanges.
absl::Status Declared(const Backend& backend, Kind kind, at::ScalarType dtype, ReduceOpKind op) {
  return kind == Kind::kAllReduce ? backend.SupportsAllReduce(dtype, op, c10::kCPU)
                                  : backend.SupportsExchange(dtype, c10::kCPU);
}

// The dtypes of a reduction that must work.
std::vector<at::ScalarType> Able(const Group& group, Kind kind, ReduceOpKind op) {
  std::vector<at::ScalarType> able;
  for (const at::ScalarType dtype : AllDtypes()) {
    if (CheckOpAllowed(op, dtype).ok() && Declared(group.backend(), kind, dtype, op).ok()) {
      able.push_back(dtype);
    }
  }
  return able;
}

absl::Status Finish(const absl::StatusOr<TreeWork>& work) {
  return work.ok() ? work->Wait() : work.status();
}

absl::Status RunAllReduce(const TensorDict& tree, const Group& group, const AllReduceOptions& options,
                          bool async) {
  return async ? Finish(AllReduceAsync(tree, group, options)) : AllReduce(tree, group, options);
}
absl::Status RunReduce(const TensorDict& tree, int root, const Group& group,
                       const ReduceOptions& options, bool async) {
  return async ? Finish(ReduceAsync(tree, GroupRank(root), group, options))
               : Reduce(tree, GroupRank(root), group, options);
}
absl::Status RunReduceScatter(const std::vector<TensorDict>& trees, const Group& group,
                              const ReduceOptions& options, bool async) {
  return async ? Finish(ReduceScatterAsync(trees, group, options))
               : ReduceScatter(trees, group, options);
}

// One op and layout on one rank, over all that the backend can do.
struct Cell {
  const Group& group;
  const LayoutSpec& layout;
  Carrier carrier;
  ReduceOpKind op;
  int root;

  int rank() const { return group.rank().value(); }
  int ranks() const { return group.size(); }
  AllReduceOptions Options(bool async) const {
    AllReduceOptions options;
    options.op = OpOfRank(op, rank());
    options.on_failure = async ? OnFailure::kRestore : OnFailure::kReport;
    return options;
  }
};

void CheckAllReduce(const Cell& cell, const Sample& sample, const std::vector<at::Tensor>& reduced) {
  for (const bool async : {false, true}) {
    const SampleTree mine = sample.Make(cell.rank());
    CollectiveStats stats;
    AllReduceOptions options = cell.Options(async);
    if (!async) options.stats = &stats;
    ASSERT_THAT(RunAllReduce(mine.tree, cell.group, options, async), IsOk());
    sample.Expect(mine, reduced);
    if (!async && cell.ranks() > 1) {
      EXPECT_EQ(stats.buckets == 0, cell.carrier == Carrier::kFrame) << sample.name();
    }
  }
}

void CheckReduce(const Cell& cell, const Sample& sample, const std::vector<at::Tensor>& reduced) {
  for (const bool async : {false, true}) {
    const int root = (cell.root + (async ? 1 : 0)) % cell.ranks();
    const SampleTree mine = sample.Make(cell.rank());
    ASSERT_THAT(RunReduce(mine.tree, root, cell.group, cell.Options(async), async), IsOk());
    if (cell.rank() == root) {
      sample.Expect(mine, reduced);
    } else {
      sample.Expect(mine, cell.rank());
    }
  }
}

void CheckReduceScatter(const Cell& cell, const std::vector<const Sample*>& samples,
                        const std::vector<at::Tensor>& own_reduced) {
  for (const bool async : {false, true}) {
    std::vector<SampleTree> mine;
    std::vector<TensorDict> trees;
    for (const Sample* sample : samples) {
      mine.push_back(sample->Make(cell.rank()));
      trees.push_back(mine.back().tree);
    }
    ASSERT_THAT(RunReduceScatter(trees, cell.group, cell.Options(async), async), IsOk());
    for (int to = 0; to < cell.ranks(); ++to) {
      const auto i = static_cast<size_t>(to);
      if (to == cell.rank()) {
        samples[i]->Expect(mine[i], own_reduced);
      } else {
        samples[i]->Expect(mine[i], cell.rank());
      }
    }
  }
}

// `check` for every op, layout and carrier.
void ForEachCell(const Group& group, const std::function<void(const Cell&)>& check) {
  int root = 0;
  for (const LayoutSpec& layout : Layouts()) {
    for (const Carrier carrier : CarriersOf(layout)) {
      for (const ReduceOpKind op : AllOps()) {
        SCOPED_TRACE(absl::StrCat(layout.name, ", ", Name(carrier), ", ", ReduceOpName(op)));
        check({group, layout, carrier, op, root});
        if (::testing::Test::HasFatalFailure()) return;
        root = (root + 1) % group.size();
      }
    }
  }
}

TEST_P(Conformance, AllReduce) {
  OnRanks([&](const Group& group) {
    ForEachCell(group, [&](const Cell& cell) {
      const std::vector<at::ScalarType> dtypes = Able(group, Kind::kAllReduce, cell.op);
      if (dtypes.empty()) return;  // each is refused, below
      const Sample& sample = SharedSample(cell.layout, cell.carrier, dtypes, ranks());
      CheckAllReduce(cell, sample, sample.Reduced(cell.op));
    });
  });
}

TEST_P(Conformance, Reduce) {
  OnRanks([&](const Group& group) {
    ForEachCell(group, [&](const Cell& cell) {
      const std::vector<at::ScalarType> dtypes = Able(group, Kind::kReduce, cell.op);
      if (dtypes.empty()) return;  // each is refused, below
      const Sample& sample = SharedSample(cell.layout, cell.carrier, dtypes, ranks());
      CheckReduce(cell, sample, sample.Reduced(cell.op));
    });
  });
}

TEST_P(Conformance, ReduceScatter) {
  OnRanks([&](const Group& group) {
    ForEachCell(group, [&](const Cell& cell) {
      const std::vector<at::ScalarType> dtypes = Able(group, Kind::kReduceScatter, cell.op);
      if (dtypes.empty()) return;  // each is refused, below
      std::vector<const Sample*> samples;
      for (int to = 0; to < ranks(); ++to) {
        samples.push_back(&SharedSample(cell.layout, cell.carrier, dtypes, ranks(), to));
      }
      CheckReduceScatter(cell, samples,
                         samples[static_cast<size_t>(cell.rank())]->Reduced(cell.op));
    });
  });
}

// What cannot be, for a dtype and op, is refused on every rank with the code that the declaration has, names
// the leaf, and has moved nothing.
TEST_P(Conformance, ReductionsThatCannotBeAreRefused) {
  OnRanks([&](const Group& group) {
    const int rank = group.rank().value();
    const LayoutSpec layout = Layouts().front();
    for (const Kind kind : {Kind::kAllReduce, Kind::kReduce, Kind::kReduceScatter}) {
      for (const ReduceOpKind op : AllOps()) {
        for (const at::ScalarType dtype : AllDtypes()) {
          const absl::Status allowed = CheckOpAllowed(op, dtype);
          const absl::Status declared = Declared(group.backend(), kind, dtype, op);
          if (allowed.ok() && complete()) {
            EXPECT_THAT(declared, IsOk()) << "a complete backend declines " << ReduceOpName(op)
                                          << " of " << c10::toString(dtype);
          }
          if (allowed.ok() && declared.ok()) continue;
          if (allowed.ok()) {
            EXPECT_EQ(declared.code(), absl::StatusCode::kUnimplemented) << declared;
          }
          for (const Carrier carrier : {Carrier::kFrame, Carrier::kMessages}) {
            SCOPED_TRACE(absl::StrCat(static_cast<int>(kind), ", ", ReduceOpName(op), ", ",
                                      c10::toString(dtype), ", ", Name(carrier)));
            const Sample& sample = SharedSample(layout, carrier, {dtype}, ranks());
            const SampleTree mine = sample.Make(rank);
            std::vector<SampleTree> others;
            std::vector<TensorDict> trees;
            for (int to = 0; to < ranks(); ++to) {
              trees.push_back(to == rank ? mine.tree : others.emplace_back(sample.Make(rank)).tree);
            }
            const AllReduceOptions options = {.op = OpOfRank(op, rank)};
            const absl::Status status =
                kind == Kind::kAllReduce ? AllReduce(mine.tree, group, options)
                : kind == Kind::kReduce  ? Reduce(mine.tree, GroupRank(0), group, options)
                                         : ReduceScatter(trees, group, options);
            EXPECT_EQ(status.code(), allowed.ok() ? declared.code() : allowed.code()) << status;
            const ErrorDetails details = GetErrorDetails(status);
            EXPECT_EQ(details.kind, ErrorKind::kUnsupported) << status;
            EXPECT_THAT(details.path, HasSubstr(c10::toString(dtype))) << status;
            EXPECT_TRUE(details.tree_unchanged);
            sample.Expect(mine, rank);
            for (const SampleTree& other : others) sample.Expect(other, rank);
          }
        }
      }
    }
    // The group is none the worse.
    const Sample& sample =
        SharedSample(layout, Carrier::kMessages,
                     Able(group, Kind::kAllReduce, ReduceOpKind::kSum), ranks());
    const SampleTree mine = sample.Make(rank);
    ASSERT_THAT(AllReduce(mine.tree, group), IsOk());
    sample.Expect(mine, sample.Reduced(ReduceOpKind::kSum));
  });
}

}  // namespace
}  // namespace leafpack::conformance
