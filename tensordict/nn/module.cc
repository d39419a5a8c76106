#include "tensordict/nn/module.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensordict/dtype.h"
#include "tensordict/flat_tree.h"
#include "tensordict/nested_key.h"
#include "tensordict/ops/consolidate.h"
#include "tensordict/ops/walk.h"

namespace leafpack {
namespace {

using internal::ErrorAt;
using internal::ToText;

constexpr std::string_view kLoad = "load into module";

absl::Status Collect(const torch::nn::Module& module, const ModuleOptions& options,
                     const NestedKey& path, TensorDict& tree) {
  const auto put = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined()) return absl::OkStatus();
    return tree.Set(path.Child(name), tensor);
  };
  if (options.parameters) {
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      if (absl::Status s = put(item.key(), item.value()); !s.ok()) return s;
    }
  }
  if (options.buffers) {
    for (const auto& item : module.named_buffers(/*recurse=*/false)) {
      if (absl::Status s = put(item.key(), item.value()); !s.ok()) return s;
    }
  }
  for (const auto& child : module.named_children()) {
    const NestedKey below = path.Child(child.key());
    if (tree.Contains(below)) {
      return ErrorAt("from module", below, "a tensor and a submodule have this name");
    }
    if (below.size() > static_cast<size_t>(kMaxTreeDepth)) {
      return ErrorAt("from module", NestedKey(),
                     absl::StrCat("modules nest deeper than ", kMaxTreeDepth));
    }
    if (absl::Status s = Collect(*child.value(), options, below, tree); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status Check(const NestedKey& path, const at::Tensor& to, const at::Tensor& from,
                   const LoadOptions& options) {
  if (!from.defined()) return ErrorAt(kLoad, path, "the leaf is undefined");
  if (from.sizes() != to.sizes()) {
    return ErrorAt(kLoad, path,
                   absl::StrCat("the leaf has the shape ", ToText(from.sizes()),
                                ", the module's tensor ", ToText(to.sizes())));
  }
  if (from.scalar_type() != to.scalar_type() && options.cast == Cast::kRefuse) {
    return ErrorAt(kLoad, path,
                   absl::StrCat("the leaf is ", DtypeName(from.scalar_type()),
                                ", the module's tensor ", DtypeName(to.scalar_type()),
                                "; ask for a cast if it is meant"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TensorDict> FromModule(const torch::nn::Module& module,
                                      const ModuleOptions& options) {
  TensorDict tree;
  try {
    if (absl::Status s = Collect(module, options, NestedKey(), tree); !s.ok()) return s;
  } catch (...) {
    return internal::CaughtAt("from module", nullptr);
  }
  return tree;
}

absl::Status LoadIntoModule(const TensorDict& tree, torch::nn::Module& module,
                            const LoadOptions& options) {
  const absl::StatusOr<TensorDict> own = FromModule(module);
  if (!own.ok()) return own.status();
  struct Change {
    NestedKey path;
    at::Tensor to, from;
  };
  std::vector<Change> changes;
  for (auto& [path, value] : Items(*own, {.nested = true, .leaves_only = true})) {
    const at::Tensor& to = std::get<at::Tensor>(value);
    const absl::StatusOr<TreeValue> found = GetValue(tree, path);
    if (!found.ok()) {
      if (!options.strict) continue;
      return absl::NotFoundError(
          absl::StrCat(kLoad, ": ", path.ToString(), ": the module has it, the tree has not"));
    }
    const auto* from = std::get_if<at::Tensor>(&*found);
    if (from == nullptr) return ErrorAt(kLoad, path, "it is no tensor in the tree");
    if (absl::Status s = Check(path, to, *from, options); !s.ok()) return s;
    changes.push_back({path, to, *from});
  }
  if (options.strict) {
    for (const auto& [path, value] : Items(tree, {.nested = true, .leaves_only = true})) {
      if (!own->Contains(path)) {
        return ErrorAt(kLoad, path, "the tree has it, the module has not");
      }
    }
  }
  const c10::NoGradGuard no_grad;
  for (Change& change : changes) {
    try {
      if (options.assign) {
        change.to.set_data(change.from.detach().to(change.to.scalar_type()));
      } else {
        change.to.copy_(change.from);
      }
    } catch (...) {
      return internal::CaughtAt(kLoad, &change.path);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorDict> ModuleGrads(const torch::nn::Module& module) {
  const absl::StatusOr<TensorDict> parameters = FromModule(module, {.buffers = false});
  if (!parameters.ok()) return parameters.status();
  TensorDict grads;
  for (const auto& [path, value] : Items(*parameters, {.nested = true, .leaves_only = true})) {
    const at::Tensor& parameter = std::get<at::Tensor>(value);
    if (!parameter.requires_grad()) continue;
    if (absl::Status s = grads.Set(path, parameter.grad()); !s.ok()) return s;
  }
  return grads;
}

absl::StatusOr<TensorDict> ConsolidateGrads(torch::nn::Module& module) {
  const absl::StatusOr<TensorDict> parameters = FromModule(module, {.buffers = false});
  if (!parameters.ok()) return parameters.status();
  TensorDict grads;
  const auto items = Items(*parameters, {.nested = true, .leaves_only = true});
  for (const auto& [path, value] : items) {
    at::Tensor parameter = std::get<at::Tensor>(value);
    if (!parameter.requires_grad()) continue;
    try {
      // Given to the parameter at once, so that a tied one finds it.
      if (!parameter.grad().defined()) parameter.mutable_grad() = at::zeros_like(parameter);
    } catch (...) {
      return internal::CaughtAt("consolidate gradients", &path);
    }
    if (absl::Status s = grads.Set(path, parameter.grad()); !s.ok()) return s;
  }
  absl::StatusOr<TensorDict> packed = Consolidate(grads);
  if (!packed.ok()) return packed;
  for (const auto& [path, value] : items) {
    at::Tensor parameter = std::get<at::Tensor>(value);
    if (!parameter.requires_grad()) continue;
    const absl::StatusOr<at::Tensor> grad = packed->Get(path);
    if (!grad.ok()) return grad.status();
    parameter.mutable_grad() = *grad;
  }
  return packed;
}

}  // namespace leafpack
