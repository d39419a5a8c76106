#include "distributed/tree/trees.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace leafpack {

absl::StatusOr<TensorDict> ReceivedTree::ToTensorDict() const {
  if (dict.has_value()) return *dict;
  return BuildTensorDict(*spec, flat.leaves);
}

absl::StatusOr<TensorDict> TreeResult::Dict() const {
  if (trees.size() != 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("the collective gave this rank ", trees.size(), " trees, not one"));
  }
  return trees.front().ToTensorDict();
}

absl::StatusOr<std::vector<TensorDict>> TreeResult::Dicts() const {
  std::vector<TensorDict> dicts;
  dicts.reserve(trees.size());
  for (const ReceivedTree& tree : trees) {
    absl::StatusOr<TensorDict> dict = tree.ToTensorDict();
    if (!dict.ok()) return dict.status();
    dicts.push_back(*std::move(dict));
  }
  return dicts;
}

}  // namespace leafpack
