// The collectives that move leaves and reduce nothing: every dtype, layout and carrier.
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <c10/core/ScalarType.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/core/backend.h"
#include "distributed/core/error.h"
#include "distributed/tree/all_reduce_testutil.h"
#include "distributed/tree/barrier.h"
#include "distributed/tree/collectives.h"
#include "tensordict/flat_tree.h"
#include "testing/conformance/sample.h"
#include "testing/conformance/suite.h"
#include "testing/matchers.h"

namespace leafpack::conformance {
namespace {

using ::leafpack::testing::AllDtypes;
using ::testing::HasSubstr;
using Trees = std::vector<TreeArg>;

std::vector<at::ScalarType> Movable(const Group& group) {
  std::vector<at::ScalarType> movable;
  for (const at::ScalarType dtype : AllDtypes()) {
    if (group.backend().SupportsExchange(dtype, c10::kCPU).ok()) movable.push_back(dtype);
  }
  return movable;
}

absl::StatusOr<TreeResult> Finish(const absl::StatusOr<TreeWork>& work) {
  if (!work.ok()) return work.status();
  const absl::Status status = work->Wait();
  if (!status.ok()) return status;
  return work->result();
}

// One layout on one rank, over all dtypes that the backend moves.
struct Cell {
  const Group& group;
  const LayoutSpec& layout;
  Carrier carrier;
  int root;
  bool async;

  int rank() const { return group.rank().value(); }
  int ranks() const { return group.size(); }
  bool is_root() const { return rank() == root; }
  // The values of `salt`; its trees have another layout than those of another salt above 0.
  const Sample& Of(int salt) const {
    return SharedSample(layout, carrier, Movable(group), ranks(), salt);
  }
};

void ForEachCell(const Group& group, const std::function<void(const Cell&)>& check) {
  int root = 0;
  for (const LayoutSpec& layout : Layouts()) {
    for (const Carrier carrier : CarriersOf(layout)) {
      for (const bool async : {false, true}) {
        SCOPED_TRACE(absl::StrCat(layout.name, ", ", Name(carrier), async ? ", async" : ""));
        check({group, layout, carrier, root, async});
        if (::testing::Test::HasFatalFailure()) return;
        root = (root + 1) % group.size();
      }
    }
  }
}

TEST_P(Conformance, BroadcastInPlace) {
  OnRanks([&](const Group& group) {
    ForEachCell(group, [&](const Cell& cell) {
      const Sample& sample = cell.Of(0);
      const SampleTree mine = sample.Make(cell.rank());
      const GroupRank root(cell.root);
      const absl::StatusOr<TreeResult> result =
          cell.async ? Finish(BroadcastAsync(mine.tree, root, group,
                                             {.on_failure = OnFailure::kRestore}))
                     : Broadcast(mine.tree, root, group);
      ASSERT_THAT(result, IsOk());
      sample.Expect(mine, cell.root);
      EXPECT_TRUE(result->Dict()->IsSame(mine.tree));
    });
  });
}

TEST_P(Conformance, BroadcastIntoNothing) {
  OnRanks([&](const Group& group) {
    ForEachCell(group, [&](const Cell& cell) {
      const Sample& sample = cell.Of(0);
      const SampleTree mine = sample.Make(cell.rank());
      std::optional<TreeArg> tree;
      if (cell.is_root()) tree = mine.tree;
      const GroupRank root(cell.root);
      const absl::StatusOr<TreeResult> result =
          cell.async ? Finish(BroadcastAsync(tree, root, group)) : Broadcast(tree, root, group);
      ASSERT_THAT(result, IsOk());
      sample.Expect(*result->Dict(), cell.root);
      sample.Expect(mine, cell.rank());
      if (cell.layout.name == "nested") {
        EXPECT_TRUE(result->Dict()->Contains({"meta", "hollow"}));
      }
    });
  });
}

// `differ`: each rank has a layout of its own.
void ExpectAll(const Cell& cell, const TreeResult& result, bool differ) {
  ASSERT_EQ(result.trees.size(), static_cast<size_t>(cell.ranks()));
  for (int r = 0; r < cell.ranks(); ++r) {
    const absl::StatusOr<TensorDict> tree = result.trees[static_cast<size_t>(r)].ToTensorDict();
    ASSERT_THAT(tree, IsOk());
    cell.Of(differ ? r : 0).Expect(*tree, r);
  }
}

TEST_P(Conformance, AllGather) {
  OnRanks([&](const Group& group) {
    ForEachCell(group, [&](const Cell& cell) {
      for (const bool differ : {false, true}) {
        const Sample& sample = cell.Of(differ ? cell.rank() : 0);
        const SampleTree mine = sample.Make(cell.rank());
        const absl::StatusOr<TreeResult> result =
            cell.async ? Finish(AllGatherAsync(mine.tree, group)) : AllGather(mine.tree, group);
        ASSERT_THAT(result, IsOk());
        ExpectAll(cell, *result, differ);
        sample.Expect(mine, cell.rank());
      }
    });
  });
}

TEST_P(Conformance, Gather) {
  OnRanks([&](const Group& group) {
    ForEachCell(group, [&](const Cell& cell) {
      for (const bool differ : {false, true}) {
        const Sample& sample = cell.Of(differ ? cell.rank() : 0);
        const SampleTree mine = sample.Make(cell.rank());
        const GroupRank root(cell.root);
        const absl::StatusOr<TreeResult> result =
            cell.async ? Finish(GatherAsync(mine.tree, root, group))
                       : Gather(mine.tree, root, group);
        ASSERT_THAT(result, IsOk());
        if (cell.is_root()) {
          ExpectAll(cell, *result, differ);
        } else {
          EXPECT_TRUE(result->trees.empty());
        }
        sample.Expect(mine, cell.rank());
      }
    });
  });
}

// The values of all ranks in one tree.
std::vector<at::Tensor> Joined(const Cell& cell, Joining joining) {
  std::vector<at::Tensor> joined;
  const Sample& sample = cell.Of(0);
  for (size_t i = 0; i < sample.Values(0).size(); ++i) {
    std::vector<at::Tensor> leaves;
    for (int r = 0; r < cell.ranks(); ++r) leaves.push_back(sample.Values(r)[i]);
    joined.push_back(joining == Joining::kStack ? at::stack(leaves) : at::cat(leaves));
  }
  return joined;
}

TEST_P(Conformance, AllGatherJoined) {
  OnRanks([&](const Group& group) {
    ForEachCell(group, [&](const Cell& cell) {
      const Sample& sample = cell.Of(0);
      for (const Joining joining : {Joining::kStack, Joining::kConcat}) {
        // A leaf of no dimension, or one whose transpose lies in the same memory, cannot be concatenated.
        const std::string& name = cell.layout.name;
        const bool refused = name == "scalars" || name == "strided" || name == "tied";
        if (joining == Joining::kConcat && refused) continue;
        SCOPED_TRACE(joining == Joining::kStack ? "stack" : "concat");
        const SampleTree mine = sample.Make(cell.rank());
        std::optional<TreeArg> out;
        for (int round = 0; round < 2; ++round) {  // new, and then into what was made
          const absl::StatusOr<TreeResult> result =
              cell.async ? Finish(AllGatherJoinedAsync(mine.tree, joining, out, group))
                         : AllGatherJoined(mine.tree, joining, out, group);
          ASSERT_THAT(result, IsOk());
          const absl::StatusOr<TensorDict> tree = result->Dict();
          ASSERT_THAT(tree, IsOk());
          sample.Expect(*tree, Joined(cell, joining));
          out = *tree;
          for (const at::Tensor& leaf : Flatten(*tree).leaves) {
            if (leaf.defined()) leaf.zero_();
          }
        }
        sample.Expect(mine, cell.rank());
      }
    });
  });
}

TEST_P(Conformance, GatherAndStack) {
  OnRanks([&](const Group& group) {
    ForEachCell(group, [&](const Cell& cell) {
      const Sample& sample = cell.Of(0);
      const SampleTree mine = sample.Make(cell.rank());
      const GroupRank root(cell.root);
      const absl::StatusOr<TreeResult> result =
          cell.async ? Finish(GatherAndStackAsync(mine.tree, root, group))
                     : GatherAndStack(mine.tree, root, group);
      ASSERT_THAT(result, IsOk());
      if (cell.is_root()) {
        sample.Expect(*result->Dict(), Joined(cell, Joining::kStack));
      } else {
        EXPECT_TRUE(result->trees.empty());
      }
      sample.Expect(mine, cell.rank());
    });
  });
}

TEST_P(Conformance, Scatter) {
  OnRanks([&](const Group& group) {
    ForEachCell(group, [&](const Cell& cell) {
      for (const bool in_place : {false, true}) {
        // Rank r is sent the tree of salt r with the values of the rank after it.
        const int valued = (cell.rank() + 1) % cell.ranks();
        std::vector<SampleTree> sent;
        Trees trees;
        for (int to = 0; cell.is_root() && to < cell.ranks(); ++to) {
          sent.push_back(cell.Of(to).Make((to + 1) % cell.ranks()));
          trees.emplace_back(sent.back().tree);
        }
        const Sample& sample = cell.Of(cell.rank());
        const SampleTree mine = sample.Make(cell.rank());
        std::optional<TreeArg> tree;
        if (in_place) tree = mine.tree;
        const GroupRank root(cell.root);
        const absl::StatusOr<TreeResult> result =
            cell.async ? Finish(ScatterAsync(tree, trees, root, group))
                       : Scatter(tree, trees, root, group);
        ASSERT_THAT(result, IsOk());
        sample.Expect(*result->Dict(), valued);
        sample.Expect(mine, in_place ? valued : cell.rank());
        for (int to = 0; cell.is_root() && to < cell.ranks(); ++to) {
          cell.Of(to).Expect(sent[static_cast<size_t>(to)], (to + 1) % cell.ranks());
        }
      }
    });
  });
}

TEST_P(Conformance, AllToAll) {
  OnRanks([&](const Group& group) {
    ForEachCell(group, [&](const Cell& cell) {
      std::vector<SampleTree> sent;
      Trees trees;
      for (int to = 0; to < cell.ranks(); ++to) {
        sent.push_back(cell.Of(to).Make(cell.rank()));
        trees.emplace_back(sent.back().tree);
      }
      const absl::StatusOr<TreeResult> result =
          cell.async ? Finish(AllToAllAsync(trees, group)) : AllToAll(trees, group);
      ASSERT_THAT(result, IsOk());
      ASSERT_EQ(result->trees.size(), static_cast<size_t>(cell.ranks()));
      for (int r = 0; r < cell.ranks(); ++r) {
        const absl::StatusOr<TensorDict> tree = result->trees[static_cast<size_t>(r)].ToTensorDict();
        ASSERT_THAT(tree, IsOk());
        cell.Of(cell.rank()).Expect(*tree, r);
        cell.Of(r).Expect(sent[static_cast<size_t>(r)], cell.rank());
      }
    });
  });
}

TEST_P(Conformance, Bytes) {
  OnRanks([&](const Group& group) {
    const int rank = group.rank().value();
    for (const size_t length : {size_t{0}, size_t{1}, size_t{1000}, size_t{300'001}}) {
      for (int root = 0; root < ranks(); ++root) {
        const auto of = [&](int r) {
          return std::string(r == 1 ? 0 : length + static_cast<size_t>(r), static_cast<char>('a' + r));
        };
        std::vector<std::string> all;
        for (int r = 0; r < ranks(); ++r) all.push_back(of(r));
        const std::vector<std::string> none;
        absl::StatusOr<TreeResult> result =
            BroadcastBytes(rank == root ? of(root) : "ignored", GroupRank(root), group);
        ASSERT_THAT(result, IsOk());
        EXPECT_EQ(result->bytes, std::vector<std::string>{of(root)});
        result = AllGatherBytes(of(rank), group);
        ASSERT_THAT(result, IsOk());
        EXPECT_EQ(result->bytes, all);
        result = GatherBytes(of(rank), GroupRank(root), group);
        ASSERT_THAT(result, IsOk());
        EXPECT_EQ(result->bytes, rank == root ? all : none);
        result = ScatterBytes(rank == root ? all : none, GroupRank(root), group);
        ASSERT_THAT(result, IsOk());
        EXPECT_EQ(result->bytes, std::vector<std::string>{of(rank)});
      }
    }
  });
}

TEST_P(Conformance, BytesInFlight) {
  OnRanks([&](const Group& group) {
    const int rank = group.rank().value();
    const GroupRank root(ranks() - 1);
    std::vector<std::string> all;
    for (int r = 0; r < ranks(); ++r) {
      all.emplace_back(static_cast<size_t>(5 + 100'000 * r), static_cast<char>('a' + r));
    }
    const std::vector<std::string> none;
    const bool is_root = group.rank() == root;
    std::string own = all[static_cast<size_t>(rank)];
    std::vector<absl::StatusOr<TreeWork>> works;
    works.push_back(BroadcastBytesAsync(is_root ? own : "ignored", root, group));
    works.push_back(AllGatherBytesAsync(own, group));
    works.push_back(GatherBytesAsync(own, root, group));
    works.push_back(ScatterBytesAsync(is_root ? all : none, root, group));
    own.assign(own.size(), '.');  // was copied
    const std::vector<std::vector<std::string>> expected = {
        {all.back()}, all, is_root ? all : none, {all[static_cast<size_t>(rank)]}};
    for (size_t i = 0; i < works.size(); ++i) {
      ASSERT_THAT(works[i], IsOk());
      ASSERT_THAT(works[i]->Wait(), IsOk());
      EXPECT_EQ(works[i]->result().bytes, expected[i]) << i;
    }
  });
}

TEST_P(Conformance, BarrierBetweenCalls) {
  OnRanks([&](const Group& group) {
    const Sample& sample =
        SharedSample(Layouts().front(), Carrier::kMessages, Movable(group), ranks());
    for (int round = 0; round < 5; ++round) {
      ASSERT_THAT(Barrier(group), IsOk());
      const SampleTree mine = sample.Make(group.rank().value());
      ASSERT_THAT(Broadcast(mine.tree, GroupRank(0), group), IsOk());
      sample.Expect(mine, 0);
      ASSERT_THAT(Barrier(group), IsOk());
    }
  });
}

// What the backend declares that it cannot move is refused on every rank, by path, and nothing has moved.
TEST_P(Conformance, DtypesThatCannotBeMovedAreRefused) {
  OnRanks([&](const Group& group) {
    const int rank = group.rank().value();
    const GroupRank root(ranks() - 1);
    for (const at::ScalarType dtype : AllDtypes()) {
      const absl::Status declared = group.backend().SupportsExchange(dtype, c10::kCPU);
      if (complete()) {
        EXPECT_THAT(declared, IsOk()) << "a complete backend does not move "
                                      << c10::toString(dtype);
      }
      if (declared.ok()) continue;
      EXPECT_EQ(declared.code(), absl::StatusCode::kUnimplemented) << declared;
      for (const Carrier carrier : {Carrier::kFrame, Carrier::kMessages}) {
        SCOPED_TRACE(absl::StrCat(c10::toString(dtype), ", ", Name(carrier)));
        const Sample& sample = SharedSample(Layouts().front(), carrier, {dtype}, ranks());
        const SampleTree mine = sample.Make(rank);
        const Trees trees(static_cast<size_t>(ranks()), TreeArg(mine.tree));
        for (const absl::Status& status :
             {Broadcast(mine.tree, root, group).status(), AllGather(mine.tree, group).status(),
              AllGatherJoined(mine.tree, Joining::kStack, std::nullopt, group).status(),
              Gather(mine.tree, root, group).status(),
              GatherAndStack(mine.tree, root, group).status(),
              Scatter(mine.tree, rank == root.value() ? trees : Trees(), root, group).status(),
              AllToAll(trees, group).status()}) {
          EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
          const ErrorDetails details = GetErrorDetails(status);
          EXPECT_EQ(details.kind, ErrorKind::kUnsupported) << status;
          EXPECT_THAT(details.path, HasSubstr(c10::toString(dtype))) << status;
          EXPECT_TRUE(details.tree_unchanged);
        }
        sample.Expect(mine, rank);
      }
    }
    ASSERT_THAT(Barrier(group), IsOk());
  });
}

}  // namespace
}  // namespace leafpack::conformance
