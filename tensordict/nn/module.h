// Trees from torch::nn::Module and back. A target of its own: only its source sees torch/nn.
//
//   ASSIGN_OR_RETURN(TensorDict weights, FromModule(*model));      // the parameters themselves
//   ASSIGN_OR_RETURN(TensorDict grads, ConsolidateGrads(*model));  // views of one storage
//   loss.backward();
//   RETURN_IF_ERROR(AllReduce(grads, group, {.op = ReduceOp::kAvg}));
#ifndef LEAFPACK_TENSORDICT_NN_MODULE_H_
#define LEAFPACK_TENSORDICT_NN_MODULE_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensordict/ops/keys.h"
#include "tensordict/tensor_dict.h"

namespace torch::nn {
class Module;
}

namespace leafpack {

struct ModuleOptions {
  bool parameters = true;
  bool buffers = true;
};

// The tensors of a module, below the names of its submodules: "0", "weight" for Sequential's first.
// They are the module's own, no copies; undefined ones (a bias that was not asked for) are left
// out. InvalidArgument if modules nest deeper than kMaxTreeDepth or a submodule is registered under
// the name of a tensor.
absl::StatusOr<TensorDict> FromModule(const torch::nn::Module& module,
                                      const ModuleOptions& options = {});

// Puts the leaves of `tree` into the module. Shapes must be equal, without broadcast. With `assign`
// the module's tensors take over the memory of the leaves, in place of a copy: they share it from
// then on, but stay the same tensors, so an optimizer that holds them goes on. NotFound (a tensor
// of the module is missing) or InvalidArgument (a leaf too many, another shape, dtype or kind),
// naming the path, before anything has changed. Autograd records nothing.
absl::Status LoadIntoModule(const TensorDict& tree, torch::nn::Module& module,
                            const LoadOptions& options = {});

// The gradients of a module's parameters, as the tensors that autograd adds to; undefined where
// there is none. Parameters that require no gradient are left out.
absl::StatusOr<TensorDict> ModuleGrads(const torch::nn::Module& module);

// Gives every parameter that requires a gradient one that is a view of one storage for all (see
// Consolidate), with the value that it had, or zero. Autograd adds to them in place, so the tree
// stays right until somebody takes a gradient away (zero_grad(set_to_none = true)): call it again
// then. Parameters that are tied have one gradient. InvalidArgument as of Consolidate.
absl::StatusOr<TensorDict> ConsolidateGrads(torch::nn::Module& module);

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_NN_MODULE_H_
