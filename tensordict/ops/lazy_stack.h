// LazyStack: trees side by side along a batch dimension that are not copied together, because their
// leaves differ in shape, their keys differ, or nobody needs the copy yet.
//
//   ASSIGN_OR_RETURN(LazyStack steps, LazyStack::Make({first, second}));  // [4] each -> [2, 4]
//   steps.Get("action");          // stacked now; an error that names the sizes if they differ
//   steps.tree(1);                // the second tree itself
//   AllReduce(steps.AsTree(), group);
#ifndef LEAFPACK_TENSORDICT_OPS_LAZY_STACK_H_
#define LEAFPACK_TENSORDICT_OPS_LAZY_STACK_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensordict/nested_key.h"
#include "tensordict/ops/index.h"
#include "tensordict/ops/keys.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {

// Holds handles of its trees: who changes one changes the stack. Threads: as of TensorDict.
class LazyStack {
 public:
  // InvalidArgument if there is no tree, their batch sizes differ, or `dim` is no place for a new
  // batch dimension (negative counts from the end).
  static absl::StatusOr<LazyStack> Make(std::vector<TensorDict> trees, int64_t dim = 0);

  size_t size() const { return trees_.size(); }
  const TensorDict& tree(size_t i) const { return trees_[i]; }
  const std::vector<TensorDict>& trees() const { return trees_; }
  // The dimension of the batch along which they stand.
  int64_t dim() const { return dim_; }
  std::vector<int64_t> batch_size() const;

  // Keys that all trees have, with the same kind of thing there.
  std::vector<NestedKey> CommonKeys(KeysOptions options = {}) const;

  // The tensors at `key`, stacked: a copy. NotFound, naming the first tree that has none;
  // InvalidArgument, naming the sizes, if they differ.
  absl::StatusOr<at::Tensor> Get(const NestedKey& key) const;
  // The tensors at `key`, one per tree.
  absl::StatusOr<std::vector<at::Tensor>> GetList(const NestedKey& key) const;
  // The nodes at `key` as a stack.
  absl::StatusOr<LazyStack> GetDict(const NestedKey& key) const;
  // Sets a part (a view) of `leaf` in each tree. All or nothing for the checks of sizes and locks
  // that TensorDict::Set makes: an error of one tree is found before any is set.
  absl::Status Set(const NestedKey& key, const at::Tensor& leaf);

  // The trees of these positions: stack[start:stop:step] along dim(). InvalidArgument if none is
  // left.
  absl::StatusOr<LazyStack> Part(const Slice& slice) const;

  // Applies a function to each tree: Map([](const TensorDict& t) { return To(t, ...); }). The
  // results must have one batch size with at least dim() dimensions.
  absl::StatusOr<LazyStack> Map(
      absl::FunctionRef<absl::StatusOr<TensorDict>(const TensorDict& tree)> fn) const;

  // The dense tree, a copy. Errors as of Stack.
  absl::StatusOr<TensorDict> Dense() const;

  // A tree with the trees at the positions 0, 1, ...: no copy, every leaf stands at [i].path. What
  // collectives, Consolidate and memory-mapped folders take. Its batch size is that of the trees before
  // dim().
  TensorDict AsTree() const;
  // The other way round. InvalidArgument if a key is no position in order from 0, or no node stands
  // there; and as of Make.
  static absl::StatusOr<LazyStack> FromTree(const TensorDict& tree, int64_t dim = 0);

 private:
  LazyStack(std::vector<TensorDict> trees, int64_t dim) : trees_(std::move(trees)), dim_(dim) {}

  std::vector<TensorDict> trees_;  // not empty
  int64_t dim_;
};

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_OPS_LAZY_STACK_H_
