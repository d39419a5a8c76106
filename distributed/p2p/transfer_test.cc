#include "distributed/p2p/transfer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "distributed/core/engine.h"
#include "distributed/core/error.h"
#include "distributed/core/flight/recorder.h"
#include "distributed/distributed.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tensordict/flat_tree.h"
#include "tensordict/non_tensor.h"
#include "tensordict/tensor_dict.h"
#include "testing/faults.h"
#include "testing/matchers.h"
#include "testing/threads.h"

namespace leafpack {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

// Runs `body` on threads, each with its handle of one group.
void WithRanks(int ranks, const std::function<void(const Group&)>& body) {
  absl::StatusOr<std::vector<Group>> groups = LocalGroups(ranks);
  ASSERT_THAT(groups.status(), IsOk());
  RunRanksAsThreads(ranks, [&](int rank) { body((*groups)[static_cast<size_t>(rank)]); });
}

// {"a": {"x": [3] int64, "y": [2, 0]}, "b": [elements], "c"[0]: bool [7]}, values depend on `seed`.
TensorDict MakeTree(int seed, int64_t elements = 1000) {
  TensorDict tree;
  EXPECT_THAT(tree.Set({"a", "x"}, at::arange(seed, seed + 3)), IsOk());
  EXPECT_THAT(tree.Set({"a", "y"}, at::zeros({2, 0})), IsOk());
  EXPECT_THAT(tree.Set("b", at::arange(elements).to(at::kFloat).add(seed)), IsOk());
  EXPECT_THAT(tree.Set({"c", 0}, at::arange(7).add(seed).remainder(2).to(at::kBool)), IsOk());
  return tree;
}

// Equal paths and bits.
void ExpectSame(const TensorDict& actual, const TensorDict& expected) {
  const FlatTree a = Flatten(actual);
  const FlatTree e = Flatten(expected);
  ASSERT_EQ(a.paths->digest(), e.paths->digest());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_EQ(a.leaves[i].defined(), e.leaves[i].defined());
    if (!a.leaves[i].defined()) continue;
    EXPECT_THAT(a.leaves[i].contiguous(), BitEq(e.leaves[i].contiguous()))
        << (*a.paths)[i].ToString();
  }
}

TEST(TransferTest, IntoATreeAndIntoNothing) {
  WithRanks(2, [](const Group& group) {
    for (const int64_t elements : {int64_t{0}, int64_t{10}, int64_t{1} << 20}) {
      if (group.rank().value() == 0) {
        ASSERT_THAT(Send(MakeTree(5, elements), GroupRank(1), group), IsOk());
        ASSERT_THAT(Send(MakeTree(6, elements), GlobalRank(1), group), IsOk());
        ASSERT_THAT(InitRemote(MakeTree(7, elements), GroupRank(1), group), IsOk());
        continue;
      }
      const TensorDict tree = MakeTree(1, elements);
      EXPECT_THAT(Recv(tree, GroupRank(0), group), IsOkAndHolds(GroupRank(0)));
      ExpectSame(tree, MakeTree(5, elements));
      absl::StatusOr<TreeFromRank> fresh = RecvNew(std::nullopt, group);
      ASSERT_THAT(fresh.status(), IsOk());
      EXPECT_EQ(fresh->source, GroupRank(0));
      ExpectSame(*fresh->tree.ToTensorDict(), MakeTree(6, elements));
      absl::StatusOr<TensorDict> remote = FromRemoteInit(GlobalRank(0), group);
      ASSERT_THAT(remote, IsOk());
      ExpectSame(*remote, MakeTree(7, elements));
    }
  });
}

TEST(TransferTest, SparseIndicesOutOfRangeAreRefused) {
  WithRanks(2, [](const Group& group) {
    for (const int64_t index : {int64_t{5}, int64_t{-1}}) {
      TensorDict tree;
      if (group.rank().value() == 0) {
        const at::Tensor wild = at::_sparse_coo_tensor_unsafe(
            at::full({1, 1}, index, at::kLong), at::zeros({1, 2}), {5, 2});
        ASSERT_THAT(tree.Set("s", wild), IsOk());
        for (int i = 0; i < 2; ++i) {
          EXPECT_EQ(Send(tree, GroupRank(1), group).code(), Code::kFailedPrecondition);
        }
        continue;
      }
      const absl::Status fresh = RecvNew(GroupRank(0), group).status();
      EXPECT_EQ(fresh.code(), Code::kInvalidArgument) << fresh;
      EXPECT_EQ(GetErrorDetails(fresh).path, "s");
      const at::Tensor own = at::sparse_coo_tensor(at::zeros({1, 1}, at::kLong), at::full({1, 2}, 7.0),
                                                   {5, 2});
      ASSERT_THAT(tree.Set("s", own), IsOk());
      const absl::Status into = Recv(tree, GroupRank(0), group).status();
      EXPECT_EQ(into.code(), Code::kInvalidArgument) << into;
      EXPECT_EQ(own.to_dense().sum().item<double>(), 14.0);
    }
  });
}

TEST(TransferTest, StructureComesAlong) {
  WithRanks(2, [](const Group& group) {
    TensorDict tree({2});
    const at::Tensor w = at::arange(6).to(at::kFloat).view({2, 3});
    ASSERT_THAT(tree.Set("w", w), IsOk());
    ASSERT_THAT(tree.Set("none", at::Tensor()), IsOk());
    ASSERT_THAT(tree.Set("empty", TensorDict({2, 4})), IsOk());
    TensorDict tied;
    ASSERT_THAT(tied.Set("a", w), IsOk());
    ASSERT_THAT(tied.Set("b", w.t()), IsOk());
    ASSERT_THAT(tied.Set("step", NonTensor(12)), IsOk());
    const at::Tensor sparse = at::sparse_coo_tensor(
        at::arange(4).view({1, 4}), at::arange(8).to(at::kFloat).view({4, 2}), {9, 2});
    TensorDict with_sparse;
    ASSERT_THAT(with_sparse.Set("s", sparse), IsOk());
    if (group.rank().value() == 0) {
      ASSERT_THAT(Send(tree, GroupRank(1), group), IsOk());
      ASSERT_THAT(Send(tied, GroupRank(1), group), IsOk());
      ASSERT_THAT(Send(TensorDict({5}), GroupRank(1), group), IsOk());
      ASSERT_THAT(Send(with_sparse, GroupRank(1), group), IsOk());
      ASSERT_THAT(Send(with_sparse, GroupRank(1), group), IsOk());
      return;
    }
    absl::StatusOr<TensorDict> got = FromRemoteInit(GroupRank(0), group);
    ASSERT_THAT(got, IsOk());
    EXPECT_EQ(got->batch_size(), at::IntArrayRef({2}));
    EXPECT_EQ(got->GetDict("empty")->batch_size(), at::IntArrayRef({2, 4}));
    EXPECT_FALSE(got->Get("none")->defined());
    got = FromRemoteInit(GroupRank(0), group);
    ASSERT_THAT(got, IsOk());
    EXPECT_THAT(*got->Get("a"), BitEq(w));
    got->Get("a")->fill_(7);
    EXPECT_THAT(got->Get("b")->contiguous(), BitEq(at::full({3, 2}, 7.0f)));
    EXPECT_THAT(got->GetNonTensor("step"), IsOkAndHolds(NonTensor(12)));
    got = FromRemoteInit(GroupRank(0), group);
    ASSERT_THAT(got, IsOk());
    EXPECT_TRUE(got->empty());
    EXPECT_EQ(got->batch_size(), at::IntArrayRef({5}));
    got = FromRemoteInit(GroupRank(0), group);
    ASSERT_THAT(got, IsOk());
    EXPECT_TRUE(at::equal(got->Get("s")->to_dense(), sparse.to_dense()));
    TensorDict own;
    const at::Tensor other =
        at::sparse_coo_tensor(at::zeros({1, 1}, at::kLong), at::zeros({1, 2}), {9, 2});
    ASSERT_THAT(own.Set("s", other), IsOk());
    ASSERT_THAT(Recv(own, GroupRank(0), group), IsOk());
    EXPECT_TRUE(at::equal(other.to_dense(), sparse.to_dense()));
  });
}

TEST(TransferTest, StridedLeavesKeepToThemselves) {
  WithRanks(2, [](const Group& group) {
    const bool sends = group.rank().value() == 0;
    const at::Tensor whole = sends ? at::arange(200000).to(at::kFloat).view({1000, 200})
                                   : at::full({1000, 200}, -1.0f);
    TensorDict tree;
    ASSERT_THAT(tree.Set("t", at::arange(12).view({3, 4}).t().mul(sends ? 1 : 0)), IsOk());
    ASSERT_THAT(tree.Set("left", whole.narrow(1, 0, 100)), IsOk());
    ASSERT_THAT(tree.Set("right", whole.narrow(1, 150, 50)), IsOk());
    if (sends) {
      ASSERT_THAT(Send(tree, GroupRank(1), group), IsOk());
      return;
    }
    ASSERT_THAT(Recv(tree, GroupRank(0), group), IsOk());
    const at::Tensor expected = at::arange(200000).to(at::kFloat).view({1000, 200});
    expected.narrow(1, 100, 50).fill_(-1);
    EXPECT_THAT(whole, BitEq(expected));
    EXPECT_THAT(tree.Get("t")->contiguous(), BitEq(at::arange(12).view({3, 4}).t().contiguous()));
  });
}

TEST(TransferTest, AMismatchNamesPathAndRanksAndChangesNothing) {
  struct Case {
    std::function<void(TensorDict&)> change;
    std::string path;
    std::string text;
  };
  const std::vector<Case> cases = {
      {[](TensorDict& t) { (void)t.Set("b", at::zeros({1001})); }, "b",
       "b: rank 0 sends float32 [1000], rank 1 receives float32 [1001]"},
      {[](TensorDict& t) { (void)t.Set("b", at::zeros({1000}, at::kInt)); }, "b",
       "b: rank 0 sends float32 [1000], rank 1 receives int32 [1000]"},
      {[](TensorDict& t) { (void)t.Set("b", at::zeros({10, 100})); }, "b", "receives float32 [10, 100]"},
      {[](TensorDict& t) { (void)t.Erase({"a", "x"}); }, "a.x", "a.x: rank 0 has int64 [3], rank 1 has no such leaf (its next is a.y)"},
      {[](TensorDict& t) { (void)t.Set("z", at::zeros({1})); }, "z", "z: rank 1 has float32 [1], rank 0 has no such leaf"},
      {[](TensorDict& t) { (void)t.Set("b", at::Tensor()); }, "b", "rank 1 receives an undefined tensor"},
      {[](TensorDict& t) { (void)t.Clear(); }, "a.x", "rank 1 has no such leaf"},
  };
  WithRanks(2, [&](const Group& group) {
    const bool sends = group.rank().value() == 0;
    for (const Case& c : cases) {
      SCOPED_TRACE(c.text);
      const TensorDict tree = MakeTree(sends ? 3 : 4);
      TensorDict changed = MakeTree(4);
      c.change(changed);
      const absl::Status status =
          sends ? Send(tree, GroupRank(1), group) : Recv(changed, GroupRank(0), group).status();
      EXPECT_THAT(status, StatusIs(Code::kFailedPrecondition, HasSubstr(c.text)));
      const ErrorDetails details = GetErrorDetails(status);
      EXPECT_EQ(details.kind, ErrorKind::kLayoutMismatch);
      EXPECT_EQ(details.path, c.path);
      EXPECT_THAT(details.ranks, ElementsAre(GlobalRank(sends ? 1 : 0)));
      EXPECT_TRUE(details.tree_unchanged);
      TensorDict untouched = MakeTree(4);
      c.change(untouched);
      ExpectSame(changed, untouched);
      // The next one is as good as ever.
      const TensorDict next = MakeTree(sends ? 8 : 0);
      ASSERT_THAT(sends ? Send(next, GroupRank(1), group) : Recv(next, GroupRank(0), group).status(),
                  IsOk());
      ExpectSame(next, MakeTree(8));
    }
    // Other differences than leaves.
    EXPECT_THAT(sends ? Send(MakeTree(1), GroupRank(1), group, {.name = "one"})
                      : Recv(MakeTree(1), GroupRank(0), group, {.name = "two"}).status(),
                StatusIs(Code::kFailedPrecondition, HasSubstr("rank 0 sends 'one', rank 1 receives 'two'")));
    EXPECT_THAT(sends ? SendBytes("text", GroupRank(1), group)
                      : Recv(MakeTree(1), GroupRank(0), group).status(),
                StatusIs(Code::kFailedPrecondition, HasSubstr("rank 0 sends bytes, rank 1 receives a tree")));
    EXPECT_THAT(sends ? Send(MakeTree(1), GroupRank(1), group)
                      : RecvNew(GroupRank(0), group, {.max_bytes = 4000}).status(),
                StatusIs(sends ? Code::kFailedPrecondition : Code::kResourceExhausted,
                         HasSubstr("takes 4000 at most")));
  });
}

TEST(TransferTest, BatchOfLargeTreesInBothDirections) {
  WithRanks(3, [](const Group& group) {
    const int rank = group.rank().value();
    std::vector<BatchItem> items;
    std::vector<TensorDict> received;
    for (int r = 0; r < 3; ++r) {
      if (r == rank) continue;
      items.push_back(SendItem{MakeTree(10 * rank + r, 1 << 20), GroupRank(r)});
    }
    for (int r = 0; r < 3; ++r) {
      if (r == rank) continue;
      received.push_back(MakeTree(0, 1 << 20));
      items.push_back(RecvItem{received.back(), GroupRank(r)});
    }
    items.push_back(SendItem{MakeTree(77), GroupRank((rank + 1) % 3), {.tag = 4}});
    items.push_back(RecvItem{std::nullopt, std::nullopt, {.tag = 4}});
    absl::StatusOr<std::vector<TransferWork>> works = PostBatch(items, group);
    ASSERT_THAT(works.status(), IsOk());
    ASSERT_THAT(WaitAll(*works), IsOk());
    size_t i = 0;
    for (int r = 0; r < 3; ++r) {
      if (r != rank) ExpectSame(received[i++], MakeTree(10 * r + rank, 1 << 20));
    }
    EXPECT_THAT(works->back().source(), IsOkAndHolds(GroupRank((rank + 2) % 3)));
    ExpectSame(*works->back().received()->ToTensorDict(), MakeTree(77));
    EXPECT_THAT((*works)[0].source(), StatusIs(Code::kFailedPrecondition));
    EXPECT_THAT((*works)[0].received().status(), StatusIs(Code::kFailedPrecondition));
  });
}

TEST(TransferTest, ManyInFlightWithTags) {
  WithRanks(2, [](const Group& group) {
    const bool sends = group.rank().value() == 0;
    std::vector<TransferWork> works;
    std::vector<TensorDict> trees;
    for (int i = 0; i < 100; ++i) {
      // The receiver asks for tags in the opposite order within each ten.
      const int tag = sends ? i : i / 10 * 10 + 9 - i % 10;
      trees.push_back(MakeTree(sends ? tag : 0, i % 10 == 0 ? 200000 : 50));
      const TensorDict& tree = trees.back();
      absl::StatusOr<TransferWork> work =
          sends ? Isend(tree, GroupRank(1), group, {.tag = tag})
                : Irecv(MakeTree(0, tag % 10 == 0 ? 200000 : 50), GroupRank(0), group, {.tag = tag});
      ASSERT_THAT(work.status(), IsOk());
      works.push_back(*work);
    }
    ASSERT_THAT(WaitAll(works), IsOk());
    for (const TransferWork& work : works) EXPECT_TRUE(work.IsDone());
  });
}

// Nobody waits on the sender's side: the mailbox's thread carries it.
TEST(TransferTest, ADroppedHandleGoesOn) {
  WithRanks(2, [](const Group& group) {
    if (group.rank().value() == 0) {
      ASSERT_THAT(Isend(MakeTree(3, 1 << 20), GroupRank(1), group).status(), IsOk());
      EXPECT_THAT(RecvBytes(GroupRank(1), group), IsOkAndHolds("got it"));
      return;
    }
    absl::SleepFor(absl::Milliseconds(20));
    const TensorDict tree = MakeTree(0, 1 << 20);
    ASSERT_THAT(Recv(tree, GroupRank(0), group), IsOk());
    ExpectSame(tree, MakeTree(3, 1 << 20));
    EXPECT_THAT(SendBytes("got it", GroupRank(0), group), IsOk());
  });
}

TEST(TransferTest, Bytes) {
  WithRanks(2, [](const Group& group) {
    for (const size_t size : {size_t{0}, size_t{1}, size_t{100000}}) {
      const std::string bytes(size, 'q');
      if (group.rank().value() == 0) {
        EXPECT_THAT(SendBytes(bytes, GroupRank(1), group, {.tag = -5}), IsOk());
      } else {
        EXPECT_THAT(RecvBytes(std::nullopt, group, {.tag = -5}), IsOkAndHolds(bytes));
      }
    }
  });
}

TEST(TransferTest, BadArgumentsAreRefusedAtOnce) {
  WithRanks(2, [](const Group& group) {
    const TensorDict tree = MakeTree(1);
    const int own = group.rank().value();
    EXPECT_THAT(Send(tree, GroupRank(own), group),
                StatusIs(Code::kInvalidArgument,
                         HasSubstr(absl::StrCat("rank ", own, " cannot send to itself"))));
    EXPECT_THAT(Recv(tree, GroupRank(own), group),
                StatusIs(Code::kInvalidArgument, HasSubstr("cannot receive from itself")));
    EXPECT_THAT(Send(tree, GroupRank(2), group), StatusIs(Code::kInvalidArgument, HasSubstr("2")));
    EXPECT_THAT(Send(tree, GlobalRank(-1), group), StatusIs(Code::kInvalidArgument));
    EXPECT_THAT(Send(tree, GroupRank(1 - own), group, {.timeout = absl::ZeroDuration()}),
                StatusIs(Code::kInvalidArgument, HasSubstr("timeout")));
    EXPECT_THAT(Send(tree, GroupRank(1 - own), group, {.name = std::string(257, 'n')}),
                StatusIs(Code::kInvalidArgument, HasSubstr("257")));
    TensorDict overlaps;
    ASSERT_THAT(overlaps.Set("o", at::zeros({1}).expand({4})), IsOk());
    EXPECT_THAT(Recv(overlaps, GroupRank(1 - own), group),
                StatusIs(Code::kInvalidArgument, HasSubstr("o")));
    TensorDict computed;
    const at::Tensor leaf = at::zeros({2}).requires_grad_();
    ASSERT_THAT(computed.Set("g", leaf.mul(2)), IsOk());
    EXPECT_THAT(Recv(computed, GroupRank(1 - own), group),
                StatusIs(Code::kInvalidArgument, HasSubstr("g")));
    TensorDict meta;
    ASSERT_THAT(meta.Set("m", at::zeros({2}, at::TensorOptions().device(at::kMeta))), IsOk());
    const absl::Status status = Send(meta, GroupRank(1 - own), group);
    EXPECT_THAT(status, StatusIs(Code::kUnimplemented, HasSubstr("m is on meta")));
    EXPECT_EQ(GetErrorDetails(status).path, "m");
    // A bad item keeps the whole batch from starting.
    EXPECT_THAT(PostBatch({SendItem{tree, GroupRank(1 - own)}, SendItem{meta, GroupRank(1 - own)}}, group)
                    .status(),
                StatusIs(Code::kUnimplemented, HasSubstr("PostBatch[1] on rank ")));
  });
  WithRanks(1, [](const Group& group) {
    EXPECT_THAT(RecvNew(std::nullopt, group).status(),
                StatusIs(Code::kInvalidArgument, HasSubstr("no other rank")));
    EXPECT_THAT(Send(MakeTree(1), GroupRank(0), group), StatusIs(Code::kInvalidArgument));
  });
}

TEST(TransferTest, AutogradIsTold) {
  WithRanks(2, [](const Group& group) {
    TensorDict tree;
    const at::Tensor leaf = at::zeros({3}).requires_grad_();
    ASSERT_THAT(tree.Set("w", leaf), IsOk());
    if (group.rank().value() == 0) {
      {
        const c10::AutoGradMode no_grad(false);
        leaf.fill_(4);
      }
      EXPECT_THAT(Send(tree, GroupRank(1), group), IsOk());
      return;
    }
    const auto version = leaf._version();
    EXPECT_THAT(Recv(tree, GroupRank(0), group), IsOk());
    EXPECT_GT(leaf._version(), version);
    EXPECT_TRUE(leaf.requires_grad());
    EXPECT_THAT(leaf.detach(), BitEq(at::full({3}, 4.0f)));
  });
}

// Global ranks 7, 5 and 9; errors speak of them.
TEST(TransferTest, SubGroupsSpeakOfGlobalRanks) {
  const std::vector<GlobalRank> global = {GlobalRank(7), GlobalRank(5), GlobalRank(9)};
  const auto store = c10::make_intrusive<c10d::HashStore>();
  RunRanksAsThreads(3, [&](int rank) {
    absl::StatusOr<Group> group = GroupFromStore(store, "sub", rank, 3, global);
    ASSERT_THAT(group.status(), IsOk());
    const TensorDict tree = MakeTree(rank);
    if (rank == 0) {
      EXPECT_THAT(Recv(tree, GlobalRank(9), *group), IsOkAndHolds(GroupRank(2)));
      ExpectSame(tree, MakeTree(2));
      const absl::Status late =
          Recv(tree, GlobalRank(5), *group, {.timeout = absl::Milliseconds(100)}).status();
      EXPECT_THAT(late, StatusIs(Code::kDeadlineExceeded, HasSubstr("recv from rank 5 on rank 7")));
      EXPECT_THAT(GetErrorDetails(late).ranks, ElementsAre(GlobalRank(5)));
    } else if (rank == 2) {
      EXPECT_THAT(Send(tree, GlobalRank(7), *group), IsOk());
      EXPECT_THAT(Send(tree, GlobalRank(1), *group),
                  StatusIs(Code::kInvalidArgument, HasSubstr("global rank 1")));
    }
  });
}

// The last recorded transfer of this kind.
FlightCall LastOf(const Group& group, std::string_view kind) {
  FlightCall last;
  for (const FlightCall& call : group.engine().flight().Calls()) {
    if (call.kind == kind) last = call;
  }
  EXPECT_EQ(last.kind, kind);
  return last;
}

TEST(TransferTest, TheFlightRecorderHasThem) {
  WithRanks(2, [](const Group& group) {
    const bool sends = group.rank().value() == 0;
    for (const int64_t elements : {int64_t{10}, int64_t{1} << 20}) {
      const TensorDict tree = MakeTree(1, elements);
      const TransferOptions options = {.tag = 7, .name = "weights"};
      if (sends) {
        ASSERT_THAT(Send(tree, GroupRank(1), group, options), IsOk());
      } else {
        ASSERT_THAT(Recv(tree, GroupRank(0), group, options), IsOk());
      }
      const FlightCall call = LastOf(group, sends ? "send" : "recv");
      EXPECT_EQ(call.peer, sends ? 1 : 0);
      EXPECT_EQ(call.tag, 7);
      EXPECT_EQ(call.name, "weights");
      EXPECT_EQ(call.number, elements == 10 ? 1u : 2u);
      EXPECT_EQ(call.leaves, 4);
      EXPECT_EQ(call.bytes, 3 * 8 + 7 + 4 * elements);
      EXPECT_EQ(call.state, FlightState::kDone);
      EXPECT_FALSE(call.async);
      EXPECT_LE(call.posted, call.ended);
      if (!sends) {
        EXPECT_GT(call.in_data, 0);
      }
    }
    if (sends) return;
    // One that nobody answers, and one that failed.
    absl::StatusOr<TransferWork> work = IrecvNew(std::nullopt, group, {.tag = 8});
    ASSERT_THAT(work.status(), IsOk());
    FlightCall call = LastOf(group, "recv");
    EXPECT_EQ(call.state, FlightState::kPosted);
    EXPECT_EQ(call.peer, -1);
    EXPECT_EQ(call.tag, 8);
    EXPECT_TRUE(call.async);
    work->Cancel();
    EXPECT_THAT(work->Wait(), StatusIs(Code::kCancelled));
    call = LastOf(group, "recv");
    EXPECT_EQ(call.state, FlightState::kFailed);
    EXPECT_THAT(call.reason, HasSubstr("given up"));
  });
}

TEST(TransferTest, NothingIsLeftBehind) {
  const auto once = [](const Group& group) {
    if (group.rank().value() == 0) {
      absl::StatusOr<TransferWork> work = Isend(MakeTree(1, 1 << 18), GroupRank(1), group);
      ASSERT_THAT(work.status(), IsOk());
      EXPECT_THAT(work->Wait(), IsOk());
    } else {
      EXPECT_THAT(RecvNew(GroupRank(0), group).status(), IsOk());
    }
  };
  WithRanks(2, once);  // what the process keeps is there now
  absl::SleepFor(absl::Milliseconds(200));
  const int threads = CountThreads();
  const int descriptors = CountDescriptors();
  WithRanks(2, once);
  for (int i = 0; i < 100 && CountThreads() > threads; ++i) absl::SleepFor(absl::Milliseconds(20));
  EXPECT_EQ(CountThreads(), threads);
  EXPECT_EQ(CountDescriptors(), descriptors);
}

}  // namespace
}  // namespace leafpack
