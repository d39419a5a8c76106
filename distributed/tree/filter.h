// Options of collectives on trees that more than one collective takes.
#ifndef LEAFPACK_DISTRIBUTED_TREE_FILTER_H_
#define LEAFPACK_DISTRIBUTED_TREE_FILTER_H_

#include <cstdint>
#include <functional>
#include <utility>

#include <ATen/core/Tensor.h>

#include "tensordict/nested_key.h"

namespace leafpack {

// What a call that fails after data began to move leaves in the tree.
enum class OnFailure : uint8_t {
  kReport,   // the error's details list the paths that are done; the rest may hold anything between
  kRestore,  // the tree is as it was before, at the cost of staging it; all ranks succeed or all fail
};

// Which leaves take part. Ranks must choose the same leaves. All() also takes the leaves that are no
// tensors: they are compared, never changed; the other filters leave them out.
class LeafFilter {
 public:
  using Predicate = std::function<bool(const NestedKey& path, const at::Tensor& leaf)>;

  static LeafFilter All() { return LeafFilter(Kind::kAll, nullptr); }
  // Floating and complex leaves only.
  static LeafFilter Floating() { return LeafFilter(Kind::kFloating, nullptr); }
  static LeafFilter Where(Predicate predicate) {
    return LeafFilter(Kind::kPredicate, std::move(predicate));
  }

  enum class Kind : uint8_t { kAll, kFloating, kPredicate };
  Kind kind() const { return kind_; }
  bool Takes(const NestedKey& path, const at::Tensor& leaf) const;

 private:
  LeafFilter(Kind kind, Predicate predicate) : kind_(kind), predicate_(std::move(predicate)) {}
  Kind kind_;
  Predicate predicate_;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_TREE_FILTER_H_
