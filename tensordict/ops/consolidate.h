// Consolidate: a tree whose leaves are views of one storage, so that collectives need no packing
// and the whole tree moves by one copy.
//
//   ASSIGN_OR_RETURN(TensorDict packed, Consolidate(tree));
//   ConsolidatedStorage(packed);      // the bytes of all leaves, as one tensor
#ifndef LEAFPACK_TENSORDICT_OPS_CONSOLIDATE_H_
#define LEAFPACK_TENSORDICT_OPS_CONSOLIDATE_H_

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "tensordict/layout.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {

struct ConsolidateOptions {
  // Where each run of leaves of one dtype begins, in bytes; a power of two. The leaves of a run lie
  // back to back, as Layout and bucket plans want it.
  int64_t alignment = 64;
  // Where the storage lies; by default where the leaves are, which must then be one device.
  std::optional<c10::Device> device{};
};

// A copy of `tree` in one storage, whatever its keys are. Runs are in the order of their first
// leaf, leaves within a run in canonical order. Each leaf keeps the order of its dimensions in
// memory; gaps between its elements go. Leaves that are the same elements in memory (aliases) are
// so in the result. Sparse leaves, undefined ones and values that are no tensors are taken over.
// Autograd history is not kept, requires_grad is. Conjugate and negative bits are resolved.
// InvalidArgument, naming the path, for leaves that Layout::Of refuses (overlap) or that lie on
// different devices; Unimplemented for an alias whose place in the new storage no strides can tell.
absl::StatusOr<TensorDict> Consolidate(const TensorDict& tree,
                                       const ConsolidateOptions& options = {});

// All bytes of the storage that all dense leaves of a tree are views of, as a tensor of uint8;
// nullopt if they are views of several, or there are none.
std::optional<at::Tensor> ConsolidatedStorage(const TensorDict& tree);

// Whether the dense leaves of each dtype and device lie back to back in canonical order, so that a
// collective needs no packing if all ranks have such a layout.
bool NeedsNoPacking(const Layout& layout);

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_OPS_CONSOLIDATE_H_
