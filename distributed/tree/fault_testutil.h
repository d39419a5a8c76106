// What the tests of faults and disagreements share: ranks as processes, each with a group and trees
// whose values have a closed form.
#ifndef LEAFPACK_DISTRIBUTED_TREE_FAULT_TESTUTIL_H_
#define LEAFPACK_DISTRIBUTED_TREE_FAULT_TESTUTIL_H_

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "distributed/core/error.h"
#include "distributed/core/group.h"
#include "distributed/tree/all_reduce.h"
#include "tensordict/tensor_dict.h"
#include "testing/processes.h"

namespace leafpack {

// A group of all ranks of a run, its store in a file of the run. `name` separates groups. Over Gloo,
// unless the environment variable LEAFPACK_TEST_BACKEND names another backend.
Group MakeTestGroup(const RankContext& rank, absl::Duration timeout = absl::Seconds(40),
                    const std::string& name = "group");

// Whether a tree rides with its digest or has a data phase of its own.
enum class TreeSize { kFrame, kData };

// {"a": {"x": [5], "y": [3, 2]}, "b": [elements]} of float32, with the values of Fill.
TensorDict MakeTestTree(int rank, int64_t elements);
TensorDict MakeTestTree(int rank, TreeSize size);

// Element j of each leaf becomes (rank + 1) * (1 + j % 5): every sum of ranks is exact.
void Fill(const TensorDict& tree, int rank);

// The values of Fill, and of their sum over all ranks.
void ExpectFilled(const TensorDict& tree, int rank);
void ExpectSummed(const TensorDict& tree, int ranks);

// Leaves as they are now, to compare later.
class Snapshot {
 public:
  explicit Snapshot(const TensorDict& tree);
  // Every leaf holds the same bits, also between the elements of a strided leaf.
  void ExpectUnchanged() const;

 private:
  std::vector<at::Tensor> storages_, copies_;
  std::vector<std::string> paths_;
};

// All ranks: two calls, a small and a large one, give the right sums.
void ExpectUsable(const Group& group);

// Code, kind and ranks of an error. `ranks` empty: any.
void ExpectFault(const absl::Status& status, absl::StatusCode code, ErrorKind kind,
                 const std::vector<int>& ranks);

// Of a rank that stops itself, for long (StopSelfFor): each of the others calls this when its own call is
// over, and the last one lets it go on. So it stands still as long as they wait, and no longer. `event`
// must be used for nothing else.
void LetGoOn(RankContext& rank, int stopped, int event);

// Calls until a call succeeds: after a fault during data a rank may have to be told of it first.
// Fails the test when that takes more than a few calls or ends in Unavailable.
void ExpectUsableSoon(RankContext& rank, const Group& group, int event);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_TREE_FAULT_TESTUTIL_H_
