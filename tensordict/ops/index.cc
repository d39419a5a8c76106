#include "tensordict/ops/index.h"

#include <ATen/ExpandUtils.h>
#include <ATen/TensorIndexing.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "tensordict/dtype.h"
#include "tensordict/ops/walk.h"
#include "tensordict/ops/writable.h"

namespace leafpack {
namespace {

using at::indexing::TensorIndex;
using internal::Dims;
using internal::ErrorAt;
using internal::Node;
using internal::TreeAccess;

constexpr std::string_view kOp = "index";
constexpr std::string_view kSet = "set by index";

// An index worked out for one batch size.
struct Plan {
  std::vector<TensorIndex> items;  // for the tensors: as many as the batch has dimensions, or fewer
  size_t batch_dims = 0;           // of the tree
  Dims batch;                      // of the result
  std::vector<int64_t> names_of;   // for each dimension of it, the one whose name it has; or -1
  bool is_position = false;        // one position in the first dimension, nothing else
  int64_t position = 0;
};

absl::Status IndexError(std::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(kOp, ": ", text));
}

// As in torch, uint8 is bool's older form and masks too.
bool IsMask(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBool || tensor.scalar_type() == at::kByte;
}

// Number of dimensions that an item takes.
size_t DimsOf(const IndexItem& item) {
  if (const auto* tensor = std::get_if<at::Tensor>(&item.item)) {
    if (!tensor->defined()) return 1;
    return IsMask(*tensor) ? static_cast<size_t>(tensor->dim()) : 1;
  }
  return std::holds_alternative<int64_t>(item.item) || std::holds_alternative<Slice>(item.item) ? 1
                                                                                                : 0;
}

class Planner {
 public:
  Planner(at::IntArrayRef batch) : batch_(batch) { plan_.batch_dims = batch.size(); }

  // May throw what torch throws.
  absl::StatusOr<Plan> Make(const std::vector<IndexItem>& index) {
    size_t taken = 0;
    size_t ellipses = 0;
    for (const IndexItem& item : index) {
      taken += DimsOf(item);
      ellipses += std::holds_alternative<Ellipsis>(item.item) ? 1 : 0;
    }
    if (ellipses > 1) return IndexError("there is more than one ellipsis");
    if (taken > batch_.size()) {
      return IndexError(absl::StrCat("it takes ", taken, " dimensions, but the batch size ",
                                     internal::ToText(batch_), " has ", batch_.size()));
    }
    for (const IndexItem& item : index) {
      absl::Status s;
      if (const auto* position = std::get_if<int64_t>(&item.item)) {
        s = AddPosition(*position);
      } else if (const auto* slice = std::get_if<Slice>(&item.item)) {
        s = AddSlice(*slice);
      } else if (std::holds_alternative<Ellipsis>(item.item)) {
        for (size_t n = batch_.size() - taken; n > 0; --n) (void)AddSlice(Slice());
      } else if (std::holds_alternative<NewAxis>(item.item)) {
        plan_.items.emplace_back(at::indexing::None);
        plan_.batch.push_back(1);
        plan_.names_of.push_back(-1);
      } else {
        s = AddTensor(std::get<at::Tensor>(item.item));
      }
      if (!s.ok()) return s;
    }
    for (; dim_ < batch_.size(); ++dim_) {  // untouched ones need no item
      plan_.batch.push_back(batch_[dim_]);
      plan_.names_of.push_back(static_cast<int64_t>(dim_));
    }
    if (!tensors_.empty()) {
      if (absl::Status s = PlaceTensors(); !s.ok()) return s;
    }
    if (plan_.items.empty()) plan_.items.emplace_back(at::indexing::Ellipsis);  // torch wants one
    if (index.size() == 1 && std::holds_alternative<int64_t>(index[0].item)) {
      plan_.is_position = true;
      plan_.position = std::get<int64_t>(index[0].item);
    }
    return std::move(plan_);
  }

 private:
  absl::Status AddPosition(int64_t position) {
    const int64_t size = batch_[dim_];
    if (position < -size || position >= size) {
      return IndexError(absl::StrCat("position ", position, " is out of range for dimension ", dim_,
                                     " of size ", size));
    }
    plan_.items.emplace_back(position);
    ++dim_;
    return absl::OkStatus();
  }

  absl::Status AddSlice(const Slice& slice) {
    if (slice.step < 1) {
      return IndexError(absl::StrCat("the step ", slice.step, " is not positive"));
    }
    const int64_t size = batch_[dim_];
    const auto clamp = [size](int64_t end) {
      return std::clamp<int64_t>(end < 0 ? end + size : end, 0, size);
    };
    const int64_t start = clamp(slice.start.value_or(0));
    const int64_t stop = std::max(start, clamp(slice.stop.value_or(size)));
    // A larger step takes the first only; torch would multiply it with a stride.
    const int64_t step = std::min(slice.step, std::max<int64_t>(stop - start, 1));
    plan_.items.emplace_back(at::indexing::Slice(start, stop, step));
    plan_.batch.push_back((stop - start + step - 1) / step);
    plan_.names_of.push_back(static_cast<int64_t>(dim_));
    ++dim_;
    return absl::OkStatus();
  }

  absl::Status AddTensor(const at::Tensor& tensor) {
    if (!tensor.defined()) return IndexError("a tensor is undefined");
    if (IsMask(tensor)) return AddMask(tensor);
    if (!c10::isIntegralType(tensor.scalar_type(), /*includeBool=*/false)) {
      return IndexError(absl::StrCat("a tensor of ", DtypeName(tensor.scalar_type()),
                                     " cannot index; whole numbers and bool can"));
    }
    if (tensor.dim() == 0) return AddPosition(tensor.item<int64_t>());
    AddOneTensor(tensor.to(at::kLong));
    return absl::OkStatus();
  }

  // A mask becomes one tensor of positions per dimension, once for all leaves.
  absl::Status AddMask(const at::Tensor& mask) {
    if (mask.dim() == 0) {
      return IndexError("a mask without dimensions cannot index; NewAxis (None) makes a new dimension");
    }
    const at::IntArrayRef masked = batch_.slice(dim_, mask.sizes().size());
    if (mask.sizes() != masked) {
      return IndexError(absl::StrCat("a mask of shape ", internal::ToText(mask.sizes()),
                                     " does not fit dimensions ", dim_, " to ",
                                     dim_ + masked.size() - 1, " of sizes ",
                                     internal::ToText(masked)));
    }
    for (const at::Tensor& positions : mask.nonzero().unbind(1)) AddOneTensor(positions);
    return absl::OkStatus();
  }

  void AddOneTensor(const at::Tensor& positions) {
    tensors_.push_back(positions);
    // Its place is marked until all tensors are known.
    plan_.batch.push_back(-2);
    plan_.names_of.push_back(static_cast<int64_t>(dim_));
    plan_.items.emplace_back(positions);
    ++dim_;
  }

  // Dimensions of tensors become those of their broadcast shape: where they stand if they are
  // neighbours, else in front.
  absl::Status PlaceTensors() {
    Dims shape;
    for (const at::Tensor& tensor : tensors_) {
      const at::IntArrayRef sizes = tensor.sizes();
      while (shape.size() < sizes.size()) shape.insert(shape.begin(), int64_t{1});
      for (size_t i = 0; i < sizes.size(); ++i) {
        int64_t& have = shape[shape.size() - 1 - i];
        const int64_t size = sizes[sizes.size() - 1 - i];
        if (have == 1) have = size;
        if (size != 1 && size != have) {
          return IndexError("tensors of positions have shapes that do not broadcast");
        }
      }
    }
    size_t first = plan_.batch.size(), last = 0;
    for (size_t i = 0; i < plan_.batch.size(); ++i) {
      if (plan_.batch[i] != -2) continue;
      first = std::min(first, i);
      last = i;
    }
    const bool neighbours = last - first + 1 == tensors_.size();
    const int64_t name =
        tensors_.size() == 1 && shape.size() == 1 ? plan_.names_of[first] : int64_t{-1};
    Dims batch;
    std::vector<int64_t> names_of;
    const auto put_shape = [&] {
      batch.insert(batch.end(), shape.begin(), shape.end());
      names_of.insert(names_of.end(), shape.size(), name);
    };
    if (!neighbours) put_shape();
    for (size_t i = 0; i < plan_.batch.size(); ++i) {
      if (neighbours && i == first) put_shape();
      if (plan_.batch[i] == -2) continue;
      batch.push_back(plan_.batch[i]);
      names_of.push_back(plan_.names_of[i]);
    }
    plan_.batch = std::move(batch);
    plan_.names_of = std::move(names_of);
    return absl::OkStatus();
  }

  const at::IntArrayRef batch_;
  size_t dim_ = 0;
  std::vector<at::Tensor> tensors_;
  Plan plan_;
};

absl::StatusOr<Plan> MakePlan(at::IntArrayRef batch, const std::vector<IndexItem>& index) {
  try {
    return Planner(batch).Make(index);
  } catch (...) {
    return internal::CaughtAt(kOp, nullptr);
  }
}

absl::Status CheckDtype(const NestedKey& path, const at::Tensor& leaf, const at::Tensor& value,
                        Cast cast) {
  if (cast == Cast::kAllow || leaf.scalar_type() == value.scalar_type()) return absl::OkStatus();
  return ErrorAt(kSet, path,
                 absl::StrCat("values are ", DtypeName(value.scalar_type()), ", the leaf is ",
                              DtypeName(leaf.scalar_type()), "; ask for a cast if it is meant"));
}

absl::Status Put(const NestedKey& path, const at::Tensor& leaf, const Plan& plan,
                 const at::Tensor& value) {
  try {
    at::Tensor target = leaf;
    target.index_put_(plan.items, value.to(leaf.scalar_type()));
  } catch (...) {
    return internal::CaughtAt(kSet, &path);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TensorDict> Index(const TensorDict& tree, const std::vector<IndexItem>& index) {
  const absl::StatusOr<Plan> plan = MakePlan(tree.batch_size(), index);
  if (!plan.ok()) return plan.status();
  const auto node = [&](const Node& from, Node& to) {
    const at::IntArrayRef tail = at::IntArrayRef(from.batch_size).slice(plan->batch_dims);
    const Dims batch = internal::Join(plan->batch, tail);
    to.batch_size.assign(batch.begin(), batch.end());
    to.device = from.device;
    if (from.names.empty()) return;
    for (const int64_t source : plan->names_of) {
      to.names.push_back(source < 0 ? std::string() : from.names[static_cast<size_t>(source)]);
    }
    to.names.insert(to.names.end(), from.names.begin() + static_cast<long>(plan->batch_dims),
                    from.names.end());
  };
  if (plan->is_position) {
    return internal::MapTree(
        kOp, tree, [&](const at::Tensor& leaf) { return leaf.select(0, plan->position); }, node);
  }
  return internal::MapTree(
      kOp, tree, [&](const at::Tensor& leaf) { return leaf.index(plan->items); }, node);
}

absl::Status SetIndex(TensorDict& tree, const std::vector<IndexItem>& index,
                      const TensorDict& value, Cast cast) {
  const absl::StatusOr<Plan> plan = MakePlan(tree.batch_size(), index);
  if (!plan.ok()) return plan.status();
  if (!at::is_expandable_to(value.batch_size(), plan->batch)) {
    return ErrorAt(kSet, NestedKey(),
                   absl::StrCat("values of batch size ", internal::ToText(value.batch_size()),
                                " do not fit the batch size ", internal::ToText(plan->batch),
                                " at these positions"));
  }
  struct Change {
    NestedKey path;
    at::Tensor leaf, value;
  };
  std::vector<Change> changes;
  const size_t value_dims = value.batch_size().size();
  for (auto& [path, item] : Items(value, {.nested = true, .leaves_only = true})) {
    absl::StatusOr<TreeValue> old = GetValue(tree, path);
    if (!old.ok()) return old.status();
    if (old->index() != item.index()) return ErrorAt(kSet, path, "the two are of different kinds");
    if (const auto* non_tensor = std::get_if<NonTensor>(&item)) {
      if (*non_tensor == std::get<NonTensor>(*old)) continue;
      return ErrorAt(kSet, path, "a value that is no tensor cannot be changed at an index");
    }
    const at::Tensor& from = std::get<at::Tensor>(item);
    const at::Tensor& to = std::get<at::Tensor>(*old);
    if (!from.defined() && !to.defined()) continue;
    if (!from.defined() || !to.defined()) return ErrorAt(kSet, path, "one of the two is undefined");
    if (from.sizes().slice(value_dims) != to.sizes().slice(plan->batch_dims)) {
      return ErrorAt(kSet, path,
                     absl::StrCat("values of shape ", internal::ToText(from.sizes()),
                                  " do not fit a leaf of shape ", internal::ToText(to.sizes()),
                                  " behind the batch"));
    }
    if (absl::Status s = CheckDtype(path, to, from, cast); !s.ok()) return s;
    if (absl::Status s = internal::CheckWritable(kSet, path, to); !s.ok()) return s;
    changes.push_back({path, to, from});
  }
  for (const Change& change : changes) {
    if (absl::Status s = Put(change.path, change.leaf, *plan, change.value); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status SetIndex(TensorDict& tree, const std::vector<IndexItem>& index,
                      const at::Scalar& value) {
  const absl::StatusOr<Plan> plan = MakePlan(tree.batch_size(), index);
  if (!plan.ok()) return plan.status();
  if (absl::Status s = internal::CheckWritable(kSet, tree); !s.ok()) return s;
  return internal::VisitTensors(kSet, tree, [&](const at::Tensor& leaf) {
    at::Tensor target = leaf;
    target.index_put_(plan->items, value);
  });
}

absl::Status SetIndex(TensorDict& tree, const NestedKey& key, const std::vector<IndexItem>& index,
                      const at::Tensor& value, Cast cast) {
  const absl::StatusOr<at::Tensor> leaf = tree.Get(key);
  if (!leaf.ok()) return leaf.status();
  const absl::StatusOr<Plan> plan = MakePlan(tree.batch_size(), index);
  if (!plan.ok()) return plan.status();
  if (!leaf->defined() || !value.defined()) {
    return ErrorAt(kSet, key, "one of the two is undefined");
  }
  if (absl::Status s = CheckDtype(key, *leaf, value, cast); !s.ok()) return s;
  if (absl::Status s = internal::CheckWritable(kSet, key, *leaf); !s.ok()) return s;
  return Put(key, *leaf, *plan, value);
}

}  // namespace leafpack
