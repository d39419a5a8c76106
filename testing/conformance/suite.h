// The conformance suite: what every group must do, whatever backend moves its data.
//
//   // my_backend_test.cc, with //testing/conformance:suite and the backend in deps
//   LEAFPACK_CONFORMANCE(MyBackend, {
//       .make_groups = [](int ranks) { return leafpack::LocalGroups(ranks, {.backend = "mine"}); }})
//
// runs every collective with every dtype, op and layout of a tree on 1 to 4 ranks, and every way in which
// ranks can disagree. Ranks are threads of the test's process. What the backend declares that it cannot do
// (Backend::SupportsAllReduce, SupportsExchange) must fail with Unimplemented on all ranks before anything
// moved. See docs/testing.md.
#ifndef LEAFPACK_TESTING_CONFORMANCE_SUITE_H_
#define LEAFPACK_TESTING_CONFORMANCE_SUITE_H_

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"

#include "distributed/core/group.h"

namespace leafpack::conformance {

// What is tested.
struct Subject {
  // The handles of a new group, by rank, each used by a thread of its own afterwards. Their timeout
  // should be a minute or more: a loaded machine may stall.
  std::function<absl::StatusOr<std::vector<Group>>(int ranks)> make_groups;
  // The backend must declare that it can do all that CheckOpAllowed allows; false: it may decline.
  bool complete = true;
  int max_ranks = 4;
};

// One subject with a number of ranks.
struct Case {
  Subject subject;
  int ranks;
};

// For GoogleTest's messages.
void PrintTo(const Case& tested, std::ostream* out);

std::vector<Case> Cases(const Subject& subject);
std::string CaseName(const ::testing::TestParamInfo<Case>& info);

// All tests of the suite are of this fixture; their names are `<instance>/Conformance.<test>/<n>Ranks`.
class Conformance : public ::testing::TestWithParam<Case> {
 protected:
  int ranks() const { return GetParam().ranks; }
  bool complete() const { return GetParam().subject.complete; }
  // Calls `body` in a thread for each rank of a new group.
  void OnRanks(const std::function<void(const Group& group)>& body) const;
};

}  // namespace leafpack::conformance

// Runs the suite; at global scope, once for each `name` (letters and digits). The rest is a Subject.
#define LEAFPACK_CONFORMANCE(name, ...)                                                     \
  namespace leafpack::conformance {                                                         \
  INSTANTIATE_TEST_SUITE_P(name, Conformance,                                               \
                           ::testing::ValuesIn(Cases(Subject __VA_ARGS__)), CaseName);      \
  }

#endif  // LEAFPACK_TESTING_CONFORMANCE_SUITE_H_
