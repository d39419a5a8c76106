#include "tensordict/ops/consolidate.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensordict/flat_tree.h"
#include "tensordict/ops/walk.h"

namespace leafpack {
namespace {

using internal::Dims;
using internal::ErrorAt;

constexpr std::string_view kOp = "consolidate";

// Strides without gaps that keep the order of dimensions in memory.
Dims DenseStrides(const LeafInfo& leaf) {
  if (leaf.dense_in_memory) return Dims(leaf.strides.begin(), leaf.strides.end());
  std::vector<size_t> order(leaf.sizes.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  // Dimensions of size 1 have strides that say nothing; equal strides keep their order.
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return leaf.sizes[a] > 1 && leaf.sizes[b] > 1 && leaf.strides[a] > leaf.strides[b];
  });
  Dims strides(leaf.sizes.size(), 1);
  int64_t next = 1;
  for (size_t i = order.size(); i > 0; --i) {
    strides[order[i - 1]] = next;
    next *= std::max<int64_t>(leaf.sizes[order[i - 1]], 1);
  }
  return strides;
}

// Whether `alias` reads the elements of `first` in the same order in the old place and in the new
// one. Tried out: every element gets a number.
bool SameOrder(const LeafInfo& alias, const LeafInfo& first, at::IntArrayRef alias_strides,
               at::IntArrayRef first_strides) {
  int64_t span = 1;
  for (size_t i = 0; i < first.sizes.size(); ++i) span += (first.sizes[i] - 1) * first.strides[i];
  const at::Tensor numbers = at::arange(first.numel, at::kLong).view(first.sizes);
  const at::Tensor before = at::empty({span}, at::kLong);
  const at::Tensor after = at::empty({first.numel}, at::kLong);
  before.as_strided(first.sizes, first.strides).copy_(numbers);
  after.as_strided(first.sizes, first_strides).copy_(numbers);
  return before.as_strided(alias.sizes, alias.strides)
      .equal(after.as_strided(alias.sizes, alias_strides));
}

// The strides in the new place of `alias`, which is the same elements as `first`: each step of the
// alias is taken apart into steps of `first`. nullopt if there are none.
std::optional<Dims> AliasStrides(const LeafInfo& alias, const LeafInfo& first,
                                 const Dims& first_strides) {
  // Nothing moves within a leaf that has no gaps.
  if (first.dense_in_memory) return Dims(alias.strides.begin(), alias.strides.end());
  if (alias.sizes == first.sizes && alias.strides == first.strides) return first_strides;
  std::vector<size_t> order;
  for (size_t i = 0; i < first.sizes.size(); ++i) {
    if (first.sizes[i] > 1) order.push_back(i);
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return first.strides[a] > first.strides[b]; });
  Dims strides(alias.sizes.size(), 1);
  for (size_t k = 0; k < alias.sizes.size(); ++k) {
    if (alias.sizes[k] <= 1) continue;
    int64_t left = alias.strides[k];
    int64_t step = 0;
    for (const size_t i : order) {
      const int64_t count = left / first.strides[i];
      left -= count * first.strides[i];
      step += count * first_strides[i];
    }
    if (left != 0) return std::nullopt;
    strides[k] = step;
  }
  // Never beyond the elements of `first`.
  int64_t end = 1;
  for (size_t k = 0; k < alias.sizes.size(); ++k) end += (alias.sizes[k] - 1) * strides[k];
  if (end > first.numel || !SameOrder(alias, first, strides, first_strides)) return std::nullopt;
  return strides;
}

}  // namespace

absl::StatusOr<TensorDict> Consolidate(const TensorDict& tree, const ConsolidateOptions& options) {
  if (options.alignment <= 0 || (options.alignment & (options.alignment - 1)) != 0) {
    return ErrorAt(kOp, NestedKey(),
                   absl::StrCat("the alignment ", options.alignment, " is not a power of two"));
  }
  const FlatTree flat = Flatten(tree);
  const absl::StatusOr<Layout> layout = Layout::Of(flat);
  if (!layout.ok()) return layout.status();

  // Where each leaf begins, in bytes.
  struct Run {
    at::ScalarType dtype;
    int64_t bytes = 0;
    int64_t begin = 0;
  };
  std::vector<Run> runs;
  std::vector<size_t> run_of(layout->size());
  std::vector<int64_t> begin(layout->size(), 0);
  std::optional<c10::Device> device = options.device;
  for (size_t i = 0; i < layout->size(); ++i) {
    const LeafInfo& leaf = layout->leaf(i);
    if (leaf.kind != LeafKind::kDense) continue;
    if (!device.has_value()) device = leaf.device;
    if (!options.device.has_value() && leaf.device != *device) {
      return ErrorAt(kOp, layout->path(i),
                     absl::StrCat("it lies on ", leaf.device.str(), ", leaves before it on ",
                                  device->str(), "; say which device is meant"));
    }
    auto run = std::find_if(runs.begin(), runs.end(),
                            [&](const Run& r) { return r.dtype == leaf.dtype; });
    if (run == runs.end()) run = runs.insert(run, Run{.dtype = leaf.dtype});
    run_of[i] = static_cast<size_t>(run - runs.begin());
    if (leaf.alias_of >= 0) continue;
    begin[i] = run->bytes;
    run->bytes += leaf.bytes;
  }
  int64_t total = 0;
  for (Run& run : runs) {
    const int64_t step =
        std::max(options.alignment, static_cast<int64_t>(c10::elementSize(run.dtype)));
    run.begin = (total + step - 1) / step * step;
    total = run.begin + run.bytes;
  }

  std::vector<at::Tensor> leaves;
  const c10::NoGradGuard no_grad;
  NestedKey path;
  try {
    // The storage begins at least as aligned as the allocator gives it, which is 64 bytes on hosts.
    const at::Tensor storage = at::empty(
        {total}, at::TensorOptions().dtype(at::kByte).device(device.value_or(c10::kCPU)));
    std::vector<Dims> strides(layout->size());
    for (size_t i = 0; i < layout->size(); ++i) {
      const LeafInfo& leaf = layout->leaf(i);
      if (leaf.kind == LeafKind::kUndefined || leaf.kind == LeafKind::kNonTensor) continue;
      if (leaf.kind != LeafKind::kDense) {
        leaves.push_back(flat.leaves[i]);
        continue;
      }
      path = layout->path(i);
      const size_t first = leaf.alias_of >= 0 ? static_cast<size_t>(leaf.alias_of) : i;
      if (first == i) {
        strides[i] = DenseStrides(leaf);
      } else {
        const LeafInfo& owner = layout->leaf(first);
        const std::optional<Dims> found = AliasStrides(leaf, owner, strides[first]);
        if (!found.has_value() || leaf.lazy_conj_or_neg != owner.lazy_conj_or_neg) {
          return absl::UnimplementedError(
              absl::StrCat(kOp, ": ", path.ToString(), ": it is another view of the elements of ",
                           layout->path(first).ToString(), " that cannot be kept"));
        }
        strides[i] = *found;
      }
      const Run& run = runs[run_of[i]];
      const auto element = static_cast<int64_t>(flat.leaves[i].element_size());
      // A tensor of its own, not a view that torch knows of: leaves shall not share a version
      // counter.
      at::Tensor view = at::empty({0}, storage.options().dtype(leaf.dtype));
      view.set_(storage.storage(), (run.begin + begin[first]) / element, leaf.sizes, strides[i]);
      if (first == i) view.copy_(flat.leaves[i]);
      if (flat.leaves[i].requires_grad()) view.requires_grad_(true);
      leaves.push_back(std::move(view));
    }
  } catch (...) {
    return internal::CaughtAt(kOp, &path);
  }
  return internal::WithTensors(
      kOp, tree, leaves, [&](const internal::Node& from, internal::Node& to) {
        internal::CopyRules(from, to);
        if (options.device.has_value()) to.device = options.device;
      });
}

std::optional<at::Tensor> ConsolidatedStorage(const TensorDict& tree) {
  const c10::StorageImpl* storage = nullptr;
  at::Tensor first;
  bool one = true;
  tree.Visit([&](const NestedKey&, const at::Tensor& leaf) {
    if (!leaf.defined() || !leaf.has_storage()) return;
    const c10::StorageImpl* its =
        leaf.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
    if (storage == nullptr) {
      storage = its;
      first = leaf;
    }
    one = one && its == storage;
  });
  if (storage == nullptr || !one) return std::nullopt;
  const c10::NoGradGuard no_grad;
  at::Tensor bytes = at::empty({0}, first.options().dtype(at::kByte).requires_grad(false));
  bytes.set_(first.storage());
  return bytes;
}

bool NeedsNoPacking(const Layout& layout) {
  struct Kind {
    at::ScalarType dtype;
    c10::DeviceType device;
  };
  std::vector<Kind> met;
  for (const LeafInfo& leaf : layout.leaves()) {
    if (leaf.kind != LeafKind::kDense || leaf.numel == 0 || leaf.alias_of >= 0) continue;
    const bool first = std::none_of(met.begin(), met.end(), [&](const Kind& kind) {
      return kind.dtype == leaf.dtype && kind.device == leaf.device.type();
    });
    if (first) met.push_back({leaf.dtype, leaf.device.type()});
    if (first ? !leaf.dense_in_memory || leaf.lazy_conj_or_neg : leaf.follows < 0) return false;
  }
  return true;
}

}  // namespace leafpack
