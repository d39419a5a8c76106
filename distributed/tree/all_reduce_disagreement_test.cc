// Ranks that call different things: every rank gets one error that says what differs, nothing has
// changed, and the next call works. 2 to 4 processes.
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/core/error.h"
#include "distributed/tree/all_reduce.h"
#include "distributed/tree/fault_testutil.h"
#include "testing/matchers.h"
#include "testing/processes.h"

namespace leafpack {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;

// Deadline of calls; an error that took half of it was a time-out in disguise.
constexpr absl::Duration kTimeout = absl::Seconds(40);

struct Case {
  std::string name;
  // What the odd rank does otherwise.
  std::function<void(TensorDict& tree, AllReduceOptions& options)> change;
  // What every rank must be told of: of the others, and of the odd one.
  std::string others, odd;
  std::string path;      // of the details; empty: an argument differs
  std::string odd_path = "";  // where the odd rank has another leaf in its place
};

at::Tensor Floats(at::IntArrayRef sizes) { return at::zeros(sizes, at::kFloat); }

void Set(TensorDict& tree, const NestedKey& key, at::Tensor leaf) {
  ASSERT_THAT(tree.Set(key, std::move(leaf)), IsOk());
}

std::vector<Case> Cases() {
  return {
      {"OtherName",
       [](TensorDict& tree, AllReduceOptions&) {
         ASSERT_THAT(tree.Erase({"k8"}), IsOk());
         Set(tree, {"k9"}, Floats({6}));
       },
       "k8", "k9", "k8", "k9"},
      {"OneKeyMore",
       [](TensorDict& tree, AllReduceOptions&) { Set(tree, {"zz"}, Floats({1})); }, "no further leaf",
       "zz", "zz"},
      {"OneKeyLess",
       [](TensorDict& tree, AllReduceOptions&) { ASSERT_THAT(tree.Erase({"shape"}), IsOk()); },
       "shape", "twin", "shape", "twin"},
      {"OneKeyMoreInFront",
       [](TensorDict& tree, AllReduceOptions&) { Set(tree, {"0"}, Floats({1})); }, "a.x", "0", "a.x", "0"},
      {"Shape", [](TensorDict& tree, AllReduceOptions&) { Set(tree, {"shape"}, Floats({3, 2})); },
       "[2, 3]", "[3, 2]", "shape"},
      {"OneElementMore",
       [](TensorDict& tree, AllReduceOptions&) { Set(tree, {"n"}, Floats({1025})); }, "1024", "1025",
       "n"},
      {"FewerElements", [](TensorDict& tree, AllReduceOptions&) { Set(tree, {"k8"}, Floats({4})); },
       "[6]", "[4]", "k8"},
      {"MuchLarger",  // one rank would send a frame and the others data, or the reverse
       [](TensorDict& tree, AllReduceOptions&) { Set(tree, {"k8"}, Floats({300'000})); }, "[6]",
       "[300000]", "k8"},
      {"Dtype",
       [](TensorDict& tree, AllReduceOptions&) { Set(tree, {"k8"}, at::zeros({6}, at::kInt)); },
       "float32", "int32", "k8"},
      {"PositionForName",
       [](TensorDict& tree, AllReduceOptions&) {
         ASSERT_THAT(tree.Erase({"list", 0}), IsOk());
         Set(tree, {"list", "0"}, Floats({2}));
       },
       "list[0]", "list", "list[0]", "list.0"},
      {"Tied",  // one region under two names, where the others have two regions
       [](TensorDict& tree, AllReduceOptions&) {
         const absl::StatusOr<at::Tensor> leaf = tree.Get({"k8"});
         ASSERT_THAT(leaf, IsOk());
         Set(tree, {"twin"}, *leaf);
       },
       "twin", "k8", "twin"},
      {"Op", [](TensorDict&, AllReduceOptions& options) { options.op = ReduceOp::kMax; }, "op = sum",
       "op = max", ""},
      {"Bucketing",
       [](TensorDict&, AllReduceOptions& options) { options.bucketing = Bucketing::PerLeaf(); },
       "bucketing = auto", "bucketing = per leaf", ""},
      {"BucketBytes",
       [](TensorDict&, AllReduceOptions& options) {
         options.bucketing = Bucketing::MaxBytes(1 << 20);
       },
       "bucketing = auto", "1048576", ""},
      {"Name", [](TensorDict&, AllReduceOptions& options) { options.name = "other"; }, "grads",
       "other", ""},
      {"Leaves",
       [](TensorDict&, AllReduceOptions& options) { options.leaves = LeafFilter::Floating(); },
       "leaves = all", "leaves = floating", ""},
      {"OnFailure",
       [](TensorDict&, AllReduceOptions& options) { options.on_failure = OnFailure::kRestore; },
       "on_failure = report", "on_failure = restore", ""},
  };
}

TensorDict BaseTree(TreeSize size) {
  TensorDict tree;
  Set(tree, {"a", "x"}, Floats({3}));
  Set(tree, {"k8"}, Floats({6}));
  Set(tree, {"list", 0}, Floats({2}));
  Set(tree, {"n"}, Floats({1024}));
  Set(tree, {"shape"}, Floats({2, 3}));
  Set(tree, {"twin"}, Floats({6}));
  if (size == TreeSize::kData) Set(tree, {"big"}, Floats({100'000}));
  return tree;
}

struct Setting {
  int ranks;
  int odd;  // the rank that differs
  TreeSize size;
};

class Disagreement : public ::testing::TestWithParam<Setting> {};

// One run of processes goes through all cases on one group, so that each case also proves that the
// group was left in order by the one before.
TEST_P(Disagreement, IsToldToAllRanksAndNothingHasChanged) {
  const Setting setting = GetParam();
  RankProcesses job(setting.ranks);
  job.SetTimeout(absl::Seconds(200));
  job.Run([&](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    for (const Case& c : Cases()) {
      SCOPED_TRACE(c.name);
      TensorDict tree = BaseTree(setting.size);
      AllReduceOptions options;
      options.name = "grads";
      if (rank.rank() == setting.odd) c.change(tree, options);
      tree.Visit([](const NestedKey&, const at::Tensor& leaf) { leaf.fill_(3); });
      const Snapshot before(tree);
      const absl::Time start = absl::Now();
      const absl::Status status = AllReduce(tree, group, options);
      EXPECT_LT(absl::Now() - start, kTimeout / 2);
      ExpectFault(status, absl::StatusCode::kFailedPrecondition, ErrorKind::kLayoutMismatch, {});
      EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(c.others), HasSubstr(c.odd)));
      EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat("rank ", setting.odd)));
      const ErrorDetails details = GetErrorDetails(status);
      EXPECT_THAT(details.path, AnyOf(Eq(c.path), Eq(c.odd_path.empty() ? c.path : c.odd_path)))
          << status;
      EXPECT_TRUE(details.tree_unchanged);
      if (setting.ranks > 2) {
        EXPECT_EQ(details.ranks, std::vector<GlobalRank>{GlobalRank(setting.odd)}) << status;
      }
      before.ExpectUnchanged();
      ExpectUsable(group);
      if (::testing::Test::HasFailure()) return;
    }
  });
}

std::string SettingName(const ::testing::TestParamInfo<Setting>& info) {
  return absl::StrCat(info.param.ranks, "Ranks", info.param.odd, "Differs",
                      info.param.size == TreeSize::kFrame ? "Frame" : "Data");
}

INSTANTIATE_TEST_SUITE_P(Ranks, Disagreement,
                         ::testing::Values(Setting{2, 1, TreeSize::kFrame},
                                           Setting{2, 0, TreeSize::kData},
                                           Setting{3, 0, TreeSize::kFrame},
                                           Setting{3, 2, TreeSize::kData},
                                           Setting{4, 2, TreeSize::kFrame},
                                           Setting{4, 1, TreeSize::kData}),
                         SettingName);

// Not a disagreement: the order in which leaves were set.
TEST(Agreement, OrderOfInsertionDoesNotMatter) {
  RankProcesses job(3);
  job.Run([](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    std::vector<std::string> names = {"b", "a", "d", "c"};
    for (int turn = 0; turn < rank.rank(); ++turn) {
      names.push_back(names.front());
      names.erase(names.begin());
    }
    for (const int64_t scale : {1, 20'000}) {
      TensorDict tree;
      // Each leaf has a size of its own: a mix-up could not go unseen.
      for (const std::string& name : names) Set(tree, {name}, at::empty({scale * name[0]}, at::kFloat));
      Fill(tree, rank.rank());
      ASSERT_THAT(AllReduce(tree, group), IsOk());
      ExpectSummed(tree, 3);
    }
  });
}

// Strides are not part of the agreement: ranks may lay out the same leaf differently.
TEST(Agreement, StridesMayDiffer) {
  RankProcesses job(2);
  job.Run([](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    for (const int64_t rows : {4, 400}) {
      TensorDict tree;
      const at::Tensor leaf = rank.rank() == 0 ? at::empty({rows, 100}, at::kFloat)
                                               : at::empty({100, rows}, at::kFloat).t();
      Set(tree, {"m"}, leaf);
      Fill(tree, rank.rank());
      ASSERT_THAT(AllReduce(tree, group), IsOk());
      ExpectSummed(tree, 2);
    }
  });
}

// Three sides: each is shown with its ranks.
TEST(Disagreements, SidesAreShownWithTheirRanks) {
  RankProcesses job(4);
  job.Run([](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    const std::vector<int64_t> sizes = {7, 8, 7, 9};
    TensorDict tree;
    Set(tree, {"w"}, Floats({sizes[static_cast<size_t>(rank.rank())]}));
    const absl::Status status = AllReduce(tree, group);
    ExpectFault(status, absl::StatusCode::kFailedPrecondition, ErrorKind::kLayoutMismatch, {1, 3});
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("[7]"), HasSubstr("[8]"), HasSubstr("[9]"),
                      HasSubstr("ranks 0 and 2"), HasSubstr("rank 1"), HasSubstr("rank 3")));
    ExpectUsable(group);
  });
}

// Rank 1 forgot a call: it is told so.
TEST(Disagreements, ARankThatIsOneCallBehindIsNamed) {
  RankProcesses job(2);
  job.Run([](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    const auto call = [&](const char* name) {
      const TensorDict tree = MakeTestTree(rank.rank(), TreeSize::kFrame);
      return AllReduce(tree, group, {.name = name});
    };
    ASSERT_THAT(call("first"), IsOk());
    const bool behind = rank.rank() == 1;
    const absl::Status one = call(behind ? "third" : "second");
    EXPECT_THAT(one, StatusIs(absl::StatusCode::kFailedPrecondition));
    const absl::Status two = call(behind ? "fourth" : "third");
    EXPECT_THAT(two, StatusIs(absl::StatusCode::kFailedPrecondition,
                              HasSubstr("rank 0 is one call behind rank 1")));
    ExpectUsable(group);
  });
}

// A rank that finds its own tree no good raises its own error; the others are told its reason.
struct Refusal {
  std::string name;
  std::function<void(TensorDict& tree, AllReduceOptions& options)> change;
  absl::StatusCode code;
  std::string reason;  // in the text on every rank
};

std::vector<Refusal> Refusals() {
  return {
      {"Expanded",
       [](TensorDict& tree, AllReduceOptions&) { Set(tree, {"bad"}, Floats({1}).expand({8})); },
       absl::StatusCode::kInvalidArgument, "bad"},
      {"Overlapping",
       [](TensorDict& tree, AllReduceOptions&) {
         const at::Tensor base = Floats({10});
         Set(tree, {"bad"}, base.slice(0, 0, 6));
         Set(tree, {"worse"}, base.slice(0, 5, 10));
       },
       absl::StatusCode::kInvalidArgument, "bad"},
      {"AverageOfIntegers",
       [](TensorDict& tree, AllReduceOptions& options) {
         Set(tree, {"bad"}, at::zeros({4}, at::kInt));
         options.op = ReduceOp::kAvg;
       },
       absl::StatusCode::kInvalidArgument, "bad"},
      {"Undefined", [](TensorDict& tree, AllReduceOptions&) { Set(tree, {"bad"}, at::Tensor()); },
       absl::StatusCode::kInvalidArgument, "bad"},
      {"GradFn",
       [](TensorDict& tree, AllReduceOptions&) {
         at::Tensor parameter = Floats({4});
         parameter.set_requires_grad(true);
         Set(tree, {"bad"}, parameter.mul(2));
       },
       absl::StatusCode::kInvalidArgument, "bad"},
      {"Cap",
       [](TensorDict&, AllReduceOptions& options) { options.bucketing = Bucketing::MaxBytes(0); },
       absl::StatusCode::kInvalidArgument, "0"},
      {"Timeout",
       [](TensorDict&, AllReduceOptions& options) { options.timeout = -absl::Seconds(1); },
       absl::StatusCode::kInvalidArgument, "timeout"},
  };
}

class RefusalTest : public ::testing::TestWithParam<Setting> {};

TEST_P(RefusalTest, IsToldToTheOthersAndNothingHasChanged) {
  const Setting setting = GetParam();
  RankProcesses job(setting.ranks);
  job.SetTimeout(absl::Seconds(200));
  job.Run([&](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    for (const Refusal& c : Refusals()) {
      SCOPED_TRACE(c.name);
      TensorDict tree = MakeTestTree(rank.rank(), setting.size);
      AllReduceOptions options;
      const TensorDict good = MakeTestTree(rank.rank(), setting.size);
      for (const char* key : {"a", "b"}) {
        if (absl::StatusOr<TensorDict> node = good.GetDict(key); node.ok()) {
          ASSERT_THAT(tree.Set(key, *node), IsOk());
        }
      }
      const Snapshot before(tree);
      const bool refuses = rank.rank() == setting.odd;
      if (refuses) c.change(tree, options);
      const absl::Time start = absl::Now();
      const absl::Status status = AllReduce(tree, group, options);
      EXPECT_LT(absl::Now() - start, kTimeout / 2);
      EXPECT_THAT(std::string(status.message()), HasSubstr(c.reason));
      if (refuses) {
        EXPECT_EQ(status.code(), c.code) << status;
      } else {
        ExpectFault(status, absl::StatusCode::kFailedPrecondition, ErrorKind::kPeerRefused,
                    {setting.odd});
      }
      before.ExpectUnchanged();
      ExpectUsable(group);
      if (::testing::Test::HasFailure()) return;
    }
    // A binding that could not even read its tree.
    const TensorDict tree = MakeTestTree(rank.rank(), setting.size);
    const absl::Status status =
        rank.rank() == setting.odd
            ? RefuseCall(group, CollectiveKind::kAllReduce,
                         absl::InvalidArgumentError("a leaf is a str"))
            : AllReduce(tree, group);
    EXPECT_THAT(std::string(status.message()), HasSubstr("a leaf is a str"));
    ExpectFilled(tree, rank.rank());
    ExpectUsable(group);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, RefusalTest,
                         ::testing::Values(Setting{2, 0, TreeSize::kFrame},
                                           Setting{2, 1, TreeSize::kData},
                                           Setting{4, 3, TreeSize::kFrame},
                                           Setting{4, 0, TreeSize::kData}),
                         SettingName);

// Async calls: the error comes with Wait, and calls before and after it are not touched.
TEST(Disagreements, AmongAsyncCallsOnlyTheOddOneFails) {
  RankProcesses job(3);
  job.Run([](RankContext& rank) {
    const Group group = MakeTestGroup(rank, kTimeout);
    for (const TreeSize size : {TreeSize::kFrame, TreeSize::kData}) {
      std::vector<TensorDict> trees;
      std::vector<TreeWork> works;
      for (int i = 0; i < 5; ++i) {
        trees.push_back(MakeTestTree(rank.rank(), size));
        if (i == 2 && rank.rank() == 1) {
          Set(trees.back(), {"extra"}, Floats({1}));
          Fill(trees.back(), rank.rank());
        }
        absl::StatusOr<TreeWork> work = AllReduceAsync(trees.back(), group);
        ASSERT_THAT(work, IsOk());
        works.push_back(*work);
      }
      for (size_t i = 0; i < works.size(); ++i) {
        const absl::Status status = works[i].Wait();
        if (i == 2) {
          ExpectFault(status, absl::StatusCode::kFailedPrecondition, ErrorKind::kLayoutMismatch, {1});
          ExpectFilled(trees[i], rank.rank());
        } else {
          EXPECT_THAT(status, IsOk()) << i;
          ExpectSummed(trees[i], 3);
        }
      }
      ExpectUsable(group);
    }
  });
}

}  // namespace
}  // namespace leafpack
