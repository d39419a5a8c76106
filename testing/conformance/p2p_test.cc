// Sends and receives of every dtype and layout, on 2 to 4 ranks. They use no backend, so once is enough.
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/distributed.h"
#include "distributed/tree/all_reduce_testutil.h"
#include "testing/conformance/sample.h"
#include "testing/matchers.h"
#include "testing/threads.h"

namespace leafpack::conformance {
namespace {

using ::leafpack::testing::AllDtypes;
using ::testing::HasSubstr;

class Transfers : public ::testing::TestWithParam<int> {
 protected:
  int ranks() const { return GetParam(); }
  void OnRanks(const std::function<void(const Group&)>& body) const {
    absl::StatusOr<std::vector<Group>> groups = LocalGroups(ranks());
    ASSERT_THAT(groups.status(), IsOk());
    RunRanksAsThreads(
        ranks(),
        [&](int rank) {
          const Group group = std::move((*groups)[static_cast<size_t>(rank)]);
          body(group);
        },
        {.deadline = absl::Minutes(4), .after_failure = absl::Minutes(1)});
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Transfers, ::testing::Values(2, 3, 4),
                         ::testing::PrintToStringParamName());

void ForEachSample(int ranks, const std::function<void(const Sample&)>& check) {
  for (const LayoutSpec& layout : Layouts()) {
    for (const Carrier carrier : CarriersOf(layout)) {
      const Sample& sample = SharedSample(layout, carrier, AllDtypes(), ranks);
      SCOPED_TRACE(sample.name());
      check(sample);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}

// Each rank sends to the next one and receives from the one before, posted together: nobody waits for
// another one's receive.
TEST_P(Transfers, AroundARingIntoTreesAndIntoNothing) {
  OnRanks([&](const Group& group) {
    const int rank = group.rank().value();
    const int before = (rank + ranks() - 1) % ranks();
    const GroupRank next((rank + 1) % ranks());
    ForEachSample(ranks(), [&](const Sample& sample) {
      for (const bool into_nothing : {false, true}) {
        const SampleTree sent = sample.Make(rank);
        const SampleTree mine = sample.Make(rank, before);
        std::optional<TensorDict> into;
        if (!into_nothing) into = mine.tree;
        absl::StatusOr<std::vector<TransferWork>> works =
            PostBatch({SendItem{.tree = sent.tree, .to = next},
                       RecvItem{.tree = into, .from = GroupRank(before)}},
                      group);
        ASSERT_THAT(works, IsOk());
        ASSERT_THAT(WaitAll(*works), IsOk());
        EXPECT_THAT(works->back().source(), IsOkAndHolds(GroupRank(before)));
        sample.Expect(sent, rank);
        if (into_nothing) {
          const absl::StatusOr<ReceivedTree> got = works->back().received();
          ASSERT_THAT(got, IsOk());
          sample.Expect(*got->ToTensorDict(), before);
          sample.Expect(mine, rank);
        } else {
          sample.Expect(mine, before);
        }
      }
    });
  });
}

// Blocking calls: rank 0 takes one tree from each, from whom it says and from any.
TEST_P(Transfers, ToOneRankFromAGivenOneAndFromAny) {
  OnRanks([&](const Group& group) {
    const int rank = group.rank().value();
    int64_t tag = 0;
    ForEachSample(ranks(), [&](const Sample& sample) {
      for (const bool any : {false, true}) {
        ++tag;  // a rank may be a layout ahead
        const SampleTree mine = sample.Make(rank);
        if (rank > 0) {
          ASSERT_THAT(Send(mine.tree, GroupRank(0), group, {.tag = tag}), IsOk());
          sample.Expect(mine, rank);
          continue;
        }
        std::vector<bool> seen(static_cast<size_t>(ranks()));
        for (int r = 1; r < ranks(); ++r) {
          std::optional<PeerRank> from;
          if (!any) from = GroupRank(r);
          const absl::StatusOr<GroupRank> source = Recv(mine.tree, from, group, {.tag = tag});
          ASSERT_THAT(source, IsOk());
          EXPECT_TRUE(any || *source == GroupRank(r)) << source->value();
          EXPECT_FALSE(seen[static_cast<size_t>(source->value())]);
          seen[static_cast<size_t>(source->value())] = true;
          sample.Expect(mine, source->value());
        }
      }
    });
  });
}

TEST_P(Transfers, MismatchesAreToldToBothAndNothingChanges) {
  OnRanks([&](const Group& group) {
    const int rank = group.rank().value();
    if (rank > 1) return;
    const auto same = [](const std::string& name) { return absl::StrCat("Float.", name); };
    struct Difference {
      LayoutSpec sent;
      std::string path;
    };
    const LayoutSpec base = {"base", {{{"k"}, {6}}, {{"shape"}, {2, 3}}}};
    const std::vector<Difference> differences = {
        {{"other key", {{{"kk"}, {6}}, {{"shape"}, {2, 3}}}}, same("k")},
        {{"other shape", {{{"k"}, {6}}, {{"shape"}, {3, 2}}}}, same("shape")},
        {{"one more", {{{"k"}, {7}}, {{"shape"}, {2, 3}}}}, same("k")},
        {{"extra key", {{{"k"}, {6}}, {{"shape"}, {2, 3}}, {{"zz"}, {1}}}}, same("zz")},
        {{"nothing", {}}, same("k")},
    };
    for (const Carrier carrier : {Carrier::kFrame, Carrier::kMessages}) {
      const Sample& good = SharedSample(base, carrier, {at::kFloat}, 2);
      const auto check = [&](const Sample& sent, const std::string& path) {
        SCOPED_TRACE(sent.name());
        const SampleTree mine = (rank == 0 ? sent : good).Make(rank);
        const absl::Status status = rank == 0
                                        ? Send(mine.tree, GroupRank(1), group)
                                        : Recv(mine.tree, GroupRank(0), group).status();
        EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
        const ErrorDetails details = GetErrorDetails(status);
        EXPECT_EQ(details.kind, ErrorKind::kLayoutMismatch) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr(path));
        EXPECT_FALSE(details.ranks.empty()) << status;
        EXPECT_TRUE(details.tree_unchanged);
        (rank == 0 ? sent : good).Expect(mine, rank);
        // The next one is as good as ever.
        const SampleTree again = good.Make(rank);
        ASSERT_THAT(rank == 0 ? Send(again.tree, GroupRank(1), group)
                              : Recv(again.tree, GroupRank(0), group).status(),
                    IsOk());
        good.Expect(again, 0);
      };
      for (const Difference& difference : differences) {
        check(SharedSample(difference.sent, carrier, {at::kFloat}, 2), difference.path);
      }
      check(SharedSample(base, carrier, {at::kInt}, 2), "Int.k");
    }
  });
}

}  // namespace
}  // namespace leafpack::conformance
