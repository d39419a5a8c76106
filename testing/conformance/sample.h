// Trees whose values are known, in every layout that a tree can have.
#ifndef LEAFPACK_TESTING_CONFORMANCE_SAMPLE_H_
#define LEAFPACK_TESTING_CONFORMANCE_SAMPLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/synchronization/mutex.h"

#include "distributed/core/reduce_op.h"
#include "tensordict/nested_key.h"
#include "tensordict/tensor_dict.h"

namespace leafpack::conformance {

// How the elements of a leaf lie in memory.
enum class Form {
  kContiguous,
  kStrided,       // every other element of its last dimension; what lies between must stay
  kPermuted,      // dimensions in reverse order
  kChannelsLast,  // 4 dimensions, the second one innermost
  kOffset,        // from the second element of a larger storage
  kByRank,        // contiguous on even ranks, strided on odd ones
};

struct LeafSpec {
  NestedKey path;
  std::vector<int64_t> sizes;
  Form form = Form::kContiguous;
  int tied_to = -1;  // the memory of this earlier leaf of the layout, transposed
};

struct LayoutSpec {
  std::string name;
  std::vector<LeafSpec> leaves;
  bool non_tensors = false;  // also values that are no tensors, and an empty node
};

// Contiguous, strided, permuted, channels-last, at an odd offset, other strides on each rank, empty, 0-dim,
// tied, deeply nested beside values that are no tensors, many small leaves, one large leaf.
std::vector<LayoutSpec> Layouts();

// Whether a tree rides in the control channel, or has messages of its own, that the backend moves.
enum class Carrier { kFrame, kMessages };
const char* Name(Carrier carrier);
// Those that the layout can have: many and large leaves are too much for a frame.
std::vector<Carrier> CarriersOf(const LayoutSpec& layout);

// A tree of one rank, and what lies between its leaves.
struct SampleTree {
  TensorDict tree;
  std::vector<at::Tensor> gaps;  // all ones
};

// One layout, repeated for each of some dtypes, with values for each of some ranks. Threads: any.
class Sample {
 public:
  // Another `salt` gives other values, and (above 0) another size of the last leaf.
  Sample(const LayoutSpec& layout, Carrier carrier, const std::vector<at::ScalarType>& dtypes,
         int ranks, int salt = 0);

  // A new tree with the values of `rank`, laid out as rank `form_of` has it.
  SampleTree Make(int rank, int form_of) const;
  SampleTree Make(int rank) const { return Make(rank, rank); }

  // The contiguous values of all leaves after a reduction over all ranks, computed from their closed form.
  // Rank r has the factor r + 1. Any thread.
  const std::vector<at::Tensor>& Reduced(ReduceOpKind op) const;
  const std::vector<at::Tensor>& Values(int rank) const {
    return values_[static_cast<size_t>(rank)];
  }

  // Fails the test unless `tree` has these leaves with these values to the bit.
  void Expect(const TensorDict& tree, const std::vector<at::Tensor>& values) const;
  void Expect(const TensorDict& tree, int rank) const { Expect(tree, Values(rank)); }
  // The same, and what lies between the leaves did not change.
  void Expect(const SampleTree& sample, const std::vector<at::Tensor>& values) const;
  void Expect(const SampleTree& sample, int rank) const { Expect(sample, Values(rank)); }

  const std::string& name() const { return name_; }

 private:
  struct Leaf {
    NestedKey path;
    at::ScalarType dtype;
    std::vector<int64_t> sizes;
    Form form;
    int tied_to;  // in leaves_
  };

  struct Memo {
    absl::Mutex mu;
    std::map<ReduceOpKind, std::vector<at::Tensor>> by_op;  // of stable address; under mu until made
  };

  std::string name_;
  bool non_tensors_;
  std::vector<Leaf> leaves_;
  std::vector<std::vector<at::Tensor>> values_;  // by rank and leaf
  std::unique_ptr<Memo> reduced_ = std::make_unique<Memo>();
};

// The same sample for all ranks of this process, made once.
const Sample& SharedSample(const LayoutSpec& layout, Carrier carrier,
                           const std::vector<at::ScalarType>& dtypes, int ranks, int salt = 0);

// The op as `rank` calls it.
ReduceOp OpOfRank(ReduceOpKind kind, int rank);

}  // namespace leafpack::conformance

#endif  // LEAFPACK_TESTING_CONFORMANCE_SAMPLE_H_
