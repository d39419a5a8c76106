// What every collective does when ranks disagree, one refuses, or one does not come: an error on every rank
// that names path and ranks, nothing changed, and a group whose next call works.
#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/core/backend.h"
#include "distributed/core/error.h"
#include "distributed/tree/all_reduce.h"
#include "distributed/tree/barrier.h"
#include "distributed/tree/collectives.h"
#include "distributed/tree/reduce.h"
#include "tensordict/flat_tree.h"
#include "tensordict/tensor_dict.h"
#include "testing/conformance/suite.h"
#include "testing/matchers.h"

namespace leafpack::conformance {
namespace {

using ::testing::HasSubstr;

// Of the calls of a rank that waits for one that does not come.
constexpr absl::Duration kShort = absl::Milliseconds(400);

// What a rank says in a call of any collective.
struct Arguments {
  TensorDict tree;
  int root = 0;
  ReduceOp op = ReduceOp::kSum;
  std::string name = "step";
  absl::Duration timeout = absl::InfiniteDuration();
};

// A copy of each leaf.
TensorDict CopyOf(const TensorDict& tree) {
  TensorDict copy;
  tree.Visit([&](const NestedKey& path, const at::Tensor& leaf) {
    EXPECT_THAT(copy.Set(path, leaf.defined() ? leaf.clone() : leaf), IsOk());
  });
  return copy;
}

enum class Layouts { kNone, kAny, kEqual };

struct Collective {
  std::string name;  // as errors have it
  Layouts layouts;   // what the ranks' trees must have in common
  bool reduces, rooted;
  std::function<absl::Status(const Arguments&, const Group&)> call;
};

AllReduceOptions Reducing(const Arguments& a) {
  AllReduceOptions options;
  options.op = a.op;
  options.name = a.name;
  options.timeout = a.timeout;
  return options;
}
CallOptions Moving(const Arguments& a) {
  CallOptions options;
  options.name = a.name;
  options.timeout = a.timeout;
  return options;
}

const std::vector<Collective>& Collectives() {
  static const auto* all = new std::vector<Collective>{
      {"all_reduce", Layouts::kEqual, true, false,
       [](const Arguments& a, const Group& group) { return AllReduce(a.tree, group, Reducing(a)); }},
      {"reduce", Layouts::kEqual, true, true,
       [](const Arguments& a, const Group& group) {
         return Reduce(a.tree, GroupRank(a.root), group, Reducing(a));
       }},
      {"reduce_scatter", Layouts::kEqual, true, false,
       [](const Arguments& a, const Group& group) {
         std::vector<TensorDict> trees;
         for (int r = 0; r < group.size(); ++r) {
           trees.push_back(r == group.rank().value() ? a.tree : CopyOf(a.tree));
         }
         return ReduceScatter(trees, group, Reducing(a));
       }},
      {"broadcast", Layouts::kEqual, false, true,
       [](const Arguments& a, const Group& group) {
         return Broadcast(a.tree, GroupRank(a.root), group, Moving(a)).status();
       }},
      {"scatter", Layouts::kEqual, false, true,
       [](const Arguments& a, const Group& group) {
         std::vector<TreeArg> trees;
         if (group.rank().value() == a.root) {
           for (int r = 0; r < group.size(); ++r) trees.emplace_back(CopyOf(a.tree));
         }
         return Scatter(a.tree, trees, GroupRank(a.root), group, Moving(a)).status();
       }},
      {"all_gather", Layouts::kAny, false, false,
       [](const Arguments& a, const Group& group) {
         return AllGather(a.tree, group, Moving(a)).status();
       }},
      {"all_gather", Layouts::kEqual, false, false,  // joined
       [](const Arguments& a, const Group& group) {
         return AllGatherJoined(a.tree, Joining::kStack, std::nullopt, group, Moving(a)).status();
       }},
      {"gather", Layouts::kAny, false, true,
       [](const Arguments& a, const Group& group) {
         return Gather(a.tree, GroupRank(a.root), group, Moving(a)).status();
       }},
      {"gather", Layouts::kEqual, false, true,  // and stacked
       [](const Arguments& a, const Group& group) {
         return GatherAndStack(a.tree, GroupRank(a.root), group, Moving(a)).status();
       }},
      {"all_to_all", Layouts::kAny, false, false,
       [](const Arguments& a, const Group& group) {
         const std::vector<TreeArg> trees(static_cast<size_t>(group.size()), TreeArg(a.tree));
         return AllToAll(trees, group, Moving(a)).status();
       }},
      {"barrier", Layouts::kNone, false, false,
       [](const Arguments& a, const Group& group) { return Barrier(group, Moving(a)); }},
  };
  return *all;
}

at::Tensor Floats(at::IntArrayRef sizes, int rank) {
  int64_t numel = 1;
  for (const int64_t size : sizes) numel *= size;
  return at::arange(numel, at::kFloat).remainder(5).add(rank).reshape(sizes);
}

// Whether the tree rides in the control channel.
TensorDict MakeTree(int rank, bool large) {
  TensorDict tree;
  EXPECT_THAT(tree.Set({"a", "x"}, Floats({3}, rank)), IsOk());
  EXPECT_THAT(tree.Set({"k"}, Floats({6}, rank)), IsOk());
  EXPECT_THAT(tree.Set({"shape"}, Floats({2, 3}, rank)), IsOk());
  if (large) {
    EXPECT_THAT(tree.Set({"big"}, Floats({30'000}, rank)), IsOk());
  }
  return tree;
}

// The leaves as they are before a call.
std::vector<at::Tensor> Contents(const TensorDict& tree) {
  std::vector<at::Tensor> contents;
  for (const at::Tensor& leaf : Flatten(tree).leaves) {
    contents.push_back(leaf.defined() ? leaf.clone() : leaf);
  }
  return contents;
}

void ExpectUnchanged(const TensorDict& tree, const std::vector<at::Tensor>& before) {
  const FlatTree flat = Flatten(tree);
  ASSERT_EQ(flat.size(), before.size());
  for (size_t i = 0; i < flat.size(); ++i) {
    ASSERT_EQ(flat.leaves[i].defined(), before[i].defined());
    if (!before[i].defined()) continue;
    EXPECT_THAT(flat.leaves[i], BitEq(before[i])) << (*flat.paths)[i];
  }
}

// A way in which one rank, the odd one, differs from the others.
struct Difference {
  std::string name;
  std::function<void(Arguments&, int ranks)> change;
  // What every rank must be told: of the odd rank, and of the others.
  std::string odd, others;
  // In the details; one of these, as a missing leaf may be told by what stands in its place.
  std::vector<std::string> paths;
};

void Set(TensorDict& tree, const NestedKey& key, at::Tensor leaf) {
  ASSERT_THAT(tree.Set(key, std::move(leaf)), IsOk());
}

// Of trees, where layouts must be equal.
std::vector<Difference> LayoutDifferences() {
  return {
      {"other key",
       [](Arguments& a, int) {
         ASSERT_THAT(a.tree.Erase({"k"}), IsOk());
         Set(a.tree, {"kk"}, Floats({6}, 0));
       },
       "kk", "k", {"k", "kk"}},
      {"extra key", [](Arguments& a, int) { Set(a.tree, {"zz"}, Floats({1}, 0)); }, "zz", "",
       {"zz"}},
      {"other shape of equal bytes",
       [](Arguments& a, int) { Set(a.tree, {"shape"}, Floats({3, 2}, 0)); }, "[3, 2]", "[2, 3]",
       {"shape"}},
      {"other dtype of the same size",
       [](Arguments& a, int) { Set(a.tree, {"k"}, at::zeros({6}, at::kInt)); }, "int32", "float32",
       {"k"}},
      {"one element more", [](Arguments& a, int) { Set(a.tree, {"k"}, Floats({7}, 0)); }, "[7]",
       "[6]", {"k"}},
      {"much larger", [](Arguments& a, int) { Set(a.tree, {"k"}, Floats({50'000}, 0)); }, "[50000]",
       "[6]", {"k"}},
      {"empty tree", [](Arguments& a, int) { a.tree = TensorDict(); }, "", "a.x", {"a.x"}},
  };
}

// Of arguments, for collectives that have them. A backend of little use averages float32 too.
Difference OtherName() {
  return {"other name", [](Arguments& a, int) { a.name = "other"; }, "other", "step", {""}};
}
Difference OtherRoot() {
  return {"other root", [](Arguments& a, int ranks) { a.root = (a.root + 1) % ranks; }, "root", "",
          {""}};
}
Difference OtherOp() {
  return {"other op", [](Arguments& a, int) { a.op = ReduceOp::kAvg; }, "avg", "sum", {""}};
}

bool TakesInt(const Backend& backend) {
  return backend.SupportsAllReduce(at::kInt, ReduceOpKind::kSum, c10::kCPU).ok() &&
         backend.SupportsExchange(at::kInt, c10::kCPU).ok();
}

// A rank is asked for what it called, for a second: on a machine that stalls so long the ranks are named, but not
// what differs.
bool IsDescribed(const absl::Status& status) {
  return !absl::StrContains(status.message(), "no description came");
}

std::string NameOf(const Group& group, int rank) {
  return absl::StrCat("rank ", group.ToGlobal(GroupRank(rank))->value());
}

// The next call of the same collective works, and all ranks are in step.
void ExpectUsable(const Collective& collective, const Group& group, bool large) {
  Arguments good;
  good.tree = MakeTree(group.rank().value(), large);
  EXPECT_THAT(collective.call(good, group), IsOk()) << "the call after a failed one";
}

// `body` for every collective, both carriers, and (in turn) each rank as the odd one.
void ForEach(const Group& group, const std::function<void(const Collective&, bool large, int odd)>& body) {
  int odd = 0;
  for (const Collective& collective : Collectives()) {
    for (const bool large : {false, true}) {
      SCOPED_TRACE(absl::StrCat(collective.name, large ? ", messages" : ", frame", ", rank ", odd,
                                " is odd"));
      body(collective, large, odd);
      if (::testing::Test::HasFatalFailure()) return;
      odd = (odd + 1) % group.size();
    }
  }
}

void CheckDifference(const Difference& difference, const Collective& collective, bool large, int odd,
                     const Group& group) {
  SCOPED_TRACE(difference.name);
  const bool is_odd = group.rank().value() == odd;
  Arguments arguments;
  arguments.tree = MakeTree(group.rank().value(), large);
  if (is_odd) difference.change(arguments, group.size());
  const std::vector<at::Tensor> before = Contents(arguments.tree);
  const absl::Status status = collective.call(arguments, group);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  const ErrorDetails details = GetErrorDetails(status);
  EXPECT_EQ(details.kind, ErrorKind::kLayoutMismatch) << status;
  const bool described = IsDescribed(status);
  if (described) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(difference.odd));
    EXPECT_THAT(std::string(status.message()), HasSubstr(difference.others));
    EXPECT_THAT(std::string(status.message()), HasSubstr(NameOf(group, odd)));
  }
  std::vector<std::string> paths = difference.paths;
  for (const std::string& path : difference.paths) {
    // Of trees of several, errors say which: "[1].k". Where one ends early, the next one begins.
    if (collective.name != "reduce_scatter" || path.empty()) continue;
    for (int r = 0; r < group.size(); ++r) {
      paths.push_back(absl::StrCat("[", r, "].", path));
      paths.push_back(absl::StrCat("[", r, "].a.x"));
    }
  }
  if (described) {
    EXPECT_THAT(details.path, ::testing::AnyOfArray(paths)) << status;
  }
  EXPECT_FALSE(details.ranks.empty()) << status;
  EXPECT_TRUE(details.tree_unchanged);
  ExpectUnchanged(arguments.tree, before);
  ExpectUsable(collective, group, large);
}

TEST_P(Conformance, OtherLayoutsAreToldToAll) {
  if (ranks() == 1) GTEST_SKIP() << "alone nobody disagrees";
  OnRanks([&](const Group& group) {
    ForEach(group, [&](const Collective& collective, bool large, int odd) {
      if (collective.layouts != Layouts::kEqual) return;
      for (const Difference& difference : LayoutDifferences()) {
        // A backend that declines int32 refuses it, in place of comparing it.
        if (difference.odd == "int32" && !TakesInt(group.backend())) continue;
        CheckDifference(difference, collective, large, odd, group);
      }
    });
  });
}

TEST_P(Conformance, OtherArgumentsAreToldToAll) {
  if (ranks() == 1) GTEST_SKIP() << "alone nobody disagrees";
  OnRanks([&](const Group& group) {
    ForEach(group, [&](const Collective& collective, bool large, int odd) {
      CheckDifference(OtherName(), collective, large, odd, group);
      if (collective.rooted) CheckDifference(OtherRoot(), collective, large, odd, group);
      if (collective.reduces) CheckDifference(OtherOp(), collective, large, odd, group);
    });
  });
}

TEST_P(Conformance, OtherCollectivesAreToldToAll) {
  if (ranks() == 1) GTEST_SKIP() << "alone nobody disagrees";
  OnRanks([&](const Group& group) {
    ForEach(group, [&](const Collective& collective, bool large, int odd) {
      const bool is_odd = group.rank().value() == odd;
      for (const Collective& other : Collectives()) {
        if (other.name == collective.name) continue;
        SCOPED_TRACE(absl::StrCat("against ", other.name));
        Arguments arguments;
        arguments.tree = MakeTree(group.rank().value(), large);
        const std::vector<at::Tensor> before = Contents(arguments.tree);
        const absl::Status status = (is_odd ? other : collective).call(arguments, group);
        EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
        const ErrorDetails details = GetErrorDetails(status);
        EXPECT_EQ(details.kind, ErrorKind::kLayoutMismatch) << status;
        if (IsDescribed(status)) {
          EXPECT_THAT(std::string(status.message()), HasSubstr(collective.name));
          EXPECT_THAT(std::string(status.message()), HasSubstr(other.name));
          EXPECT_THAT(std::string(status.message()), HasSubstr(NameOf(group, odd)));
        }
        EXPECT_TRUE(details.tree_unchanged);
        ExpectUnchanged(arguments.tree, before);
      }
      ExpectUsable(collective, group, large);
    });
  });
}

// What one rank finds wrong with its own arguments: its own error there, one that names it elsewhere.
TEST_P(Conformance, RefusalsAreToldToAll) {
  struct Refusal {
    std::string name;
    std::function<void(Arguments&)> change;
    std::string path;
    bool reducing_only;
    bool of_trees;
  };
  const std::vector<Refusal> refusals = {
      {"a leaf that overlaps itself",
       [](Arguments& a) { Set(a.tree, {"wide"}, Floats({1, 3}, 0).expand({2, 3})); }, "wide", false,
       true},
      {"leaves that overlap in part",
       [](Arguments& a) {
         const at::Tensor all = Floats({10}, 0);
         Set(a.tree, {"w"}, all.slice(0, 0, 6));
         Set(a.tree, {"wide"}, all.slice(0, 4, 10));
       },
       "w", false, true},
      {"an undefined leaf", [](Arguments& a) { Set(a.tree, {"k"}, at::Tensor()); }, "k", true, true},
      {"a root that is no member", [](Arguments& a) { a.root = 7; }, "", false, false},
      {"a timeout that is none",
       [](Arguments& a) { a.timeout = absl::ZeroDuration(); }, "", false, false},
  };
  OnRanks([&](const Group& group) {
    ForEach(group, [&](const Collective& collective, bool large, int odd) {
      for (const Refusal& refusal : refusals) {
        if (refusal.of_trees && collective.layouts == Layouts::kNone) continue;
        if (refusal.reducing_only && !collective.reduces) continue;
        if (absl::StrContains(refusal.name, "root") && !collective.rooted) continue;
        SCOPED_TRACE(refusal.name);
        const bool is_odd = group.rank().value() == odd;
        Arguments arguments;
        arguments.tree = MakeTree(group.rank().value(), large);
        if (is_odd) refusal.change(arguments);
        const std::vector<at::Tensor> before = Contents(arguments.tree);
        const absl::Status status = collective.call(arguments, group);
        const ErrorDetails details = GetErrorDetails(status);
        if (is_odd) {
          EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
        } else {
          EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
          EXPECT_EQ(details.kind, ErrorKind::kPeerRefused) << status;
          EXPECT_THAT(details.ranks,
                      ::testing::ElementsAre(*group.ToGlobal(GroupRank(odd)))) << status;
          EXPECT_THAT(std::string(status.message()), HasSubstr(NameOf(group, odd)));
        }
        EXPECT_THAT(std::string(status.message()), HasSubstr(refusal.path));
        EXPECT_TRUE(details.tree_unchanged);
        ExpectUnchanged(arguments.tree, before);
        ExpectUsable(collective, group, large);
      }
    });
  });
}

// Undefined leaves are moved as undefined: they are part of a layout.
TEST_P(Conformance, AnUndefinedLeafOnOneRankIsToldToAll) {
  if (ranks() == 1) GTEST_SKIP() << "alone nobody disagrees";
  OnRanks([&](const Group& group) {
    ForEach(group, [&](const Collective& collective, bool large, int odd) {
      if (collective.reduces || collective.layouts != Layouts::kEqual) return;
      CheckDifference({"an undefined leaf",
                       [](Arguments& a, int) { Set(a.tree, {"k"}, at::Tensor()); }, "undefined",
                       "[6]", {"k"}},
                      collective, large, odd, group);
    });
  });
}

// Where layouts may differ, an empty tree, an extra key and an undefined leaf are no errors.
TEST_P(Conformance, AnyLayoutsGoWhereTheyMayDiffer) {
  OnRanks([&](const Group& group) {
    ForEach(group, [&](const Collective& collective, bool large, int odd) {
      if (collective.layouts != Layouts::kAny) return;
      for (const Difference& difference : LayoutDifferences()) {
        if (difference.odd == "int32" && !TakesInt(group.backend())) continue;
        Arguments arguments;
        arguments.tree = MakeTree(group.rank().value(), large);
        if (group.rank().value() == odd) difference.change(arguments, group.size());
        const std::vector<at::Tensor> before = Contents(arguments.tree);
        EXPECT_THAT(collective.call(arguments, group), IsOk()) << difference.name;
        ExpectUnchanged(arguments.tree, before);
      }
    });
  });
}

TEST_P(Conformance, ARankThatDoesNotComeIsNamedAtTheDeadline) {
  if (ranks() == 1) GTEST_SKIP() << "alone nobody is missing";
  std::vector<std::atomic<int>> over(2 * Collectives().size());
  OnRanks([&](const Group& group) {
    size_t round = 0;
    ForEach(group, [&](const Collective& collective, bool large, int odd) {
      std::atomic<int>& given_up = over[round++];
      // The data path is there: only the rank is missing.
      ExpectUsable(collective, group, large);
      Arguments arguments;
      arguments.tree = MakeTree(group.rank().value(), large);
      const std::vector<at::Tensor> before = Contents(arguments.tree);
      const bool is_odd = group.rank().value() == odd;
      if (is_odd) {
        const absl::Time last = absl::Now() + absl::Minutes(1);
        while (given_up < group.size() - 1 && absl::Now() < last) {
          absl::SleepFor(absl::Milliseconds(1));
        }
      } else {
        arguments.timeout = kShort;
      }
      const absl::Status status = collective.call(arguments, group);
      const ErrorDetails details = GetErrorDetails(status);
      if (is_odd) {
        // It came late.
        EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
      } else {
        ++given_up;
        // One rank's deadline may end the call for another, a moment before its own does.
        EXPECT_TRUE(absl::IsDeadlineExceeded(status) || absl::IsCancelled(status)) << status;
        EXPECT_EQ(details.kind, ErrorKind::kDeadline) << status;
        if (absl::IsDeadlineExceeded(status)) {
          EXPECT_THAT(std::string(status.message()), HasSubstr(NameOf(group, odd)));
          EXPECT_THAT(details.ranks,
                      ::testing::ElementsAre(*group.ToGlobal(GroupRank(odd)))) << status;
        }
      }
      EXPECT_TRUE(details.tree_unchanged);
      ExpectUnchanged(arguments.tree, before);
      ExpectUsable(collective, group, large);
    });
  });
}

}  // namespace
}  // namespace leafpack::conformance
