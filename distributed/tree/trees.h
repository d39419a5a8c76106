// Trees as collectives take them and give them.
#ifndef LEAFPACK_DISTRIBUTED_TREE_TREES_H_
#define LEAFPACK_DISTRIBUTED_TREE_TREES_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "distributed/tree/tree_spec.h"
#include "tensordict/flat_tree.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {

// A tree that is handed to a collective: a TensorDict, or leaves and, from a binding, the description
// of the nodes around them. Copies share the leaves.
class TreeArg {
 public:
  TreeArg(const TensorDict& tree)  // NOLINT(runtime/explicit)
      : flat_(Flatten(tree)), dict_(tree) {}
  // The nodes are those that the paths name: lists and dicts. The empty path makes it one leaf.
  TreeArg(FlatTree tree) : flat_(std::move(tree)) {}  // NOLINT(runtime/explicit)
  // `spec` describes `tree`: the same paths, dtypes and sizes.
  TreeArg(FlatTree tree, std::shared_ptr<const TreeSpec> spec)
      : flat_(std::move(tree)), spec_(std::move(spec)) {}

  const FlatTree& flat() const { return flat_; }
  const std::shared_ptr<const TreeSpec>& spec() const { return spec_; }  // may be null
  const std::optional<TensorDict>& dict() const { return dict_; }

 private:
  FlatTree flat_;
  std::shared_ptr<const TreeSpec> spec_;
  std::optional<TensorDict> dict_;
};

// A tree that a collective gives: one that it made, or one that it wrote in place.
struct ReceivedTree {
  FlatTree flat;
  // Its nodes and leaves; never null. Of a tree written in place: as its owner described it.
  std::shared_ptr<const TreeSpec> spec;
  // The handle that was written in place, if there was one.
  std::optional<TensorDict> dict{};

  // `dict`, else a TensorDict around the leaves. InvalidArgument for a tree that is one leaf.
  absl::StatusOr<TensorDict> ToTensorDict() const;
};

// What a collective gives this rank; each collective says what it fills.
struct TreeResult {
  std::vector<ReceivedTree> trees{};
  std::vector<std::string> bytes{};

  // The one tree, and all of them, as TensorDicts. FailedPrecondition if there is not exactly one.
  absl::StatusOr<TensorDict> Dict() const;
  absl::StatusOr<std::vector<TensorDict>> Dicts() const;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_TREE_TREES_H_
