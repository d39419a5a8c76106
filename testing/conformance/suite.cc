#include "testing/conformance/suite.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "testing/threads.h"

namespace leafpack::conformance {
namespace {

// For a test; none takes more than seconds on a machine that is not loaded.
constexpr RankThreadsOptions kThreads = {.deadline = absl::Minutes(5),
                                         .after_failure = absl::Minutes(1)};

}  // namespace

void PrintTo(const Case& tested, std::ostream* out) { *out << tested.ranks << " ranks"; }

std::vector<Case> Cases(const Subject& subject) {
  std::vector<Case> cases;
  for (int ranks = 1; ranks <= subject.max_ranks; ++ranks) cases.push_back({subject, ranks});
  return cases;
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  return absl::StrCat(info.param.ranks, "Ranks");
}

void Conformance::OnRanks(const std::function<void(const Group&)>& body) const {
  absl::StatusOr<std::vector<Group>> groups = GetParam().subject.make_groups(ranks());
  ASSERT_TRUE(groups.ok()) << groups.status();
  ASSERT_EQ(groups->size(), static_cast<size_t>(ranks()));
  RunRanksAsThreads(
      ranks(),
      [&](int rank) {
        // Its own handle, gone at the end: the others learn that this rank left, also when it failed.
        const Group group = std::move((*groups)[static_cast<size_t>(rank)]);
        body(group);
      },
      kThreads);
}

}  // namespace leafpack::conformance
