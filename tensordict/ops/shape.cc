#include "tensordict/ops/shape.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "tensordict/ops/walk.h"

namespace leafpack {
namespace {

using internal::Dims;
using internal::Join;
using internal::LeafFn;
using internal::Node;
using internal::ToText;

using Names = std::vector<std::string>;
// From the names of the tree's batch dimensions to those of the result's.
using NamesFn = absl::FunctionRef<Names(const Names& names)>;

absl::Status Error(std::string_view op, std::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat(op, ": ", text));
}

absl::StatusOr<size_t> Wrap(std::string_view op, int64_t dim, size_t dims) {
  const auto count = static_cast<int64_t>(dims);
  if (dim < -count || dim >= count) {
    return Error(op, absl::StrCat("dimension ", dim, " is out of range: there are ", dims));
  }
  return static_cast<size_t>(dim < 0 ? dim + count : dim);
}

// Maps every node's first `taken` batch dimensions to `head`.
absl::StatusOr<TensorDict> Change(std::string_view op, const TensorDict& tree, const Dims& head,
                                  NamesFn names, LeafFn leaf) {
  const size_t taken = tree.batch_size().size();
  return internal::MapTree(op, tree, leaf, [&](const Node& from, Node& to) {
    const Dims batch = Join(head, at::IntArrayRef(from.batch_size).slice(taken));
    to.batch_size.assign(batch.begin(), batch.end());
    to.device = from.device;
    if (from.names.empty()) return;
    const auto middle = from.names.begin() + static_cast<long>(taken);
    to.names = names(Names(from.names.begin(), middle));
    to.names.resize(head.size());
    to.names.insert(to.names.end(), middle, from.names.end());
  });
}

int64_t Product(at::IntArrayRef sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product *= size;
  return product;
}

// `sizes` with -1 worked out so that the product is `numel`.
absl::StatusOr<Dims> InferSizes(std::string_view op, at::IntArrayRef sizes, int64_t numel) {
  Dims result(sizes.begin(), sizes.end());
  int64_t known = 1;
  int64_t* unknown = nullptr;
  for (int64_t& size : result) {
    if (size == -1 && unknown == nullptr) {
      unknown = &size;
    } else if (size < 0) {
      return Error(op, absl::StrCat("sizes ", ToText(sizes), " are not valid"));
    } else if (size > 0 && known > std::numeric_limits<int64_t>::max() / size) {
      return Error(op, absl::StrCat("the product of the sizes ", ToText(sizes), " overflows"));
    } else {
      known *= size;
    }
  }
  if (unknown != nullptr && known > 0 && numel % known == 0) {
    *unknown = numel / known;
    known = numel;
  } else if (unknown != nullptr) {
    known = -1;
  }
  if (known != numel) {
    return Error(op, absl::StrCat("sizes ", ToText(sizes), " do not hold ", numel, " elements"));
  }
  return result;
}

Dims Tail(const at::Tensor& leaf, size_t taken) {
  const at::IntArrayRef tail = leaf.sizes().slice(taken);
  return Dims(tail.begin(), tail.end());
}

absl::StatusOr<TensorDict> Resize(std::string_view op, const TensorDict& tree,
                                  at::IntArrayRef sizes, bool view) {
  const at::IntArrayRef batch = tree.batch_size();
  const absl::StatusOr<Dims> head = InferSizes(op, sizes, Product(batch));
  if (!head.ok()) return head.status();
  const size_t taken = batch.size();
  const bool same = at::IntArrayRef(*head) == batch;
  Dims all = *head;  // with the sizes behind the batch of the leaf at hand
  return Change(
      op, tree, *head, [&](const Names& names) { return same ? names : Names(); },
      [&, begin = head->size()](const at::Tensor& leaf) {
        const at::IntArrayRef old = leaf.sizes();
        all.resize(begin + old.size() - taken);
        std::copy(old.begin() + taken, old.end(), all.begin() + static_cast<long>(begin));
        return view ? leaf.view(all) : leaf.reshape(all);
      });
}

// Parts [begin, begin + size) of a dimension, one after the other.
absl::StatusOr<std::vector<TensorDict>> Parts(std::string_view op, const TensorDict& tree,
                                              at::IntArrayRef sizes, size_t dim) {
  std::vector<TensorDict> parts;
  parts.reserve(sizes.size());
  int64_t begin = 0;
  Dims head(tree.batch_size().begin(), tree.batch_size().end());
  for (const int64_t size : sizes) {
    head[dim] = size;
    absl::StatusOr<TensorDict> part = Change(
        op, tree, head, [](const Names& names) { return names; },
        [&](const at::Tensor& leaf) {
          return leaf.narrow(static_cast<int64_t>(dim), begin, size);
        });
    if (!part.ok()) return part.status();
    parts.push_back(*std::move(part));
    begin += size;
  }
  return parts;
}

Dims EqualParts(int64_t total, int64_t size) {
  Dims sizes;
  for (int64_t begin = 0; begin < total; begin += std::min(size, total - begin)) {
    sizes.push_back(std::min(size, total - begin));
  }
  if (sizes.empty()) sizes.push_back(0);
  return sizes;
}

}  // namespace

absl::StatusOr<TensorDict> View(const TensorDict& tree, at::IntArrayRef sizes) {
  return Resize("view", tree, sizes, /*view=*/true);
}

absl::StatusOr<TensorDict> Reshape(const TensorDict& tree, at::IntArrayRef sizes) {
  return Resize("reshape", tree, sizes, /*view=*/false);
}

absl::StatusOr<TensorDict> Permute(const TensorDict& tree, at::IntArrayRef dims) {
  constexpr std::string_view kOp = "permute";
  const at::IntArrayRef batch = tree.batch_size();
  Dims order;
  std::vector<bool> met(batch.size(), false);
  for (const int64_t dim : dims) {
    const absl::StatusOr<size_t> wrapped = Wrap(kOp, dim, batch.size());
    if (!wrapped.ok()) return wrapped.status();
    if (met[*wrapped]) return Error(kOp, absl::StrCat("dimension ", dim, " is given twice"));
    met[*wrapped] = true;
    order.push_back(static_cast<int64_t>(*wrapped));
  }
  if (order.size() != batch.size()) {
    return Error(kOp, absl::StrCat(dims.size(), " dimensions are given, there are ", batch.size()));
  }
  Dims head;
  for (const int64_t dim : order) head.push_back(batch[static_cast<size_t>(dim)]);
  return Change(
      kOp, tree, head,
      [&](const Names& names) {
        Names permuted;
        for (const int64_t dim : order) permuted.push_back(names[static_cast<size_t>(dim)]);
        return permuted;
      },
      [&](const at::Tensor& leaf) {
        Dims all = order;
        for (int64_t dim = static_cast<int64_t>(order.size()); dim < leaf.dim(); ++dim) {
          all.push_back(dim);
        }
        return leaf.permute(all);
      });
}

absl::StatusOr<TensorDict> Transpose(const TensorDict& tree, int64_t dim0, int64_t dim1) {
  constexpr std::string_view kOp = "transpose";
  const size_t dims = tree.batch_size().size();
  const absl::StatusOr<size_t> a = Wrap(kOp, dim0, dims);
  if (!a.ok()) return a.status();
  const absl::StatusOr<size_t> b = Wrap(kOp, dim1, dims);
  if (!b.ok()) return b.status();
  Dims head(tree.batch_size().begin(), tree.batch_size().end());
  std::swap(head[*a], head[*b]);
  return Change(
      kOp, tree, head,
      [&](const Names& names) {
        Names swapped = names;
        std::swap(swapped[*a], swapped[*b]);
        return swapped;
      },
      [&](const at::Tensor& leaf) {
        return leaf.transpose(static_cast<int64_t>(*a), static_cast<int64_t>(*b));
      });
}

absl::StatusOr<TensorDict> Squeeze(const TensorDict& tree, std::optional<int64_t> dim) {
  constexpr std::string_view kOp = "squeeze";
  const at::IntArrayRef batch = tree.batch_size();
  std::vector<bool> gone(batch.size(), false);
  if (dim.has_value()) {
    const absl::StatusOr<size_t> wrapped = Wrap(kOp, *dim, batch.size());
    if (!wrapped.ok()) return wrapped.status();
    gone[*wrapped] = batch[*wrapped] == 1;
  } else {
    for (size_t i = 0; i < batch.size(); ++i) gone[i] = batch[i] == 1;
  }
  Dims head, dims;
  for (size_t i = 0; i < batch.size(); ++i) {
    if (gone[i]) {
      dims.push_back(static_cast<int64_t>(i));
    } else {
      head.push_back(batch[i]);
    }
  }
  return Change(
      kOp, tree, head,
      [&](const Names& names) {
        Names kept;
        for (size_t i = 0; i < names.size(); ++i) {
          if (!gone[i]) kept.push_back(names[i]);
        }
        return kept;
      },
      [&](const at::Tensor& leaf) { return dims.empty() ? leaf : leaf.squeeze(dims); });
}

absl::StatusOr<TensorDict> Unsqueeze(const TensorDict& tree, int64_t dim) {
  const at::IntArrayRef batch = tree.batch_size();
  const absl::StatusOr<size_t> at = Wrap("unsqueeze", dim, batch.size() + 1);
  if (!at.ok()) return at.status();
  Dims head(batch.begin(), batch.end());
  head.insert(head.begin() + static_cast<long>(*at), 1);
  return Change(
      "unsqueeze", tree, head,
      [&](const Names& names) {
        Names all = names;
        all.insert(all.begin() + static_cast<long>(*at), std::string());
        return all;
      },
      [&](const at::Tensor& leaf) { return leaf.unsqueeze(static_cast<int64_t>(*at)); });
}

absl::StatusOr<TensorDict> Expand(const TensorDict& tree, at::IntArrayRef sizes) {
  constexpr std::string_view kOp = "expand";
  const at::IntArrayRef batch = tree.batch_size();
  const auto error = [&] {
    return Error(kOp, absl::StrCat("a batch size ", ToText(batch), " cannot be expanded to ",
                                   ToText(sizes)));
  };
  if (sizes.size() < batch.size()) return error();
  const size_t added = sizes.size() - batch.size();
  Dims head(sizes.begin(), sizes.end());
  for (size_t i = 0; i < head.size(); ++i) {
    if (i >= added && head[i] == -1) head[i] = batch[i - added];
    if (head[i] < 0 || (i >= added && batch[i - added] != 1 && batch[i - added] != head[i])) {
      return error();
    }
  }
  const size_t taken = batch.size();
  return Change(
      kOp, tree, head,
      [&](const Names& names) {
        Names all(added);
        all.insert(all.end(), names.begin(), names.end());
        return all;
      },
      [&](const at::Tensor& leaf) { return leaf.expand(Join(head, Tail(leaf, taken))); });
}

absl::StatusOr<TensorDict> FlattenDims(const TensorDict& tree, int64_t start_dim, int64_t end_dim) {
  constexpr std::string_view kOp = "flatten dims";
  const at::IntArrayRef batch = tree.batch_size();
  const absl::StatusOr<size_t> start = Wrap(kOp, start_dim, batch.size());
  if (!start.ok()) return start.status();
  const absl::StatusOr<size_t> end = Wrap(kOp, end_dim, batch.size());
  if (!end.ok()) return end.status();
  if (*start > *end) {
    return Error(kOp, absl::StrCat("dimension ", start_dim, " comes after ", end_dim));
  }
  Dims head(batch.begin(), batch.begin() + *start);
  head.push_back(Product(batch.slice(*start, *end - *start + 1)));
  head.insert(head.end(), batch.begin() + *end + 1, batch.end());
  const size_t taken = batch.size();
  return Change(
      kOp, tree, head,
      [&](const Names& names) {
        Names all(names.begin(), names.begin() + static_cast<long>(*start));
        all.emplace_back();
        all.insert(all.end(), names.begin() + static_cast<long>(*end) + 1, names.end());
        return all;
      },
      [&](const at::Tensor& leaf) { return leaf.reshape(Join(head, Tail(leaf, taken))); });
}

absl::StatusOr<TensorDict> UnflattenDim(const TensorDict& tree, int64_t dim,
                                        at::IntArrayRef sizes) {
  constexpr std::string_view kOp = "unflatten dim";
  const at::IntArrayRef batch = tree.batch_size();
  const absl::StatusOr<size_t> at = Wrap(kOp, dim, batch.size());
  if (!at.ok()) return at.status();
  const absl::StatusOr<Dims> parts = InferSizes(kOp, sizes, batch[*at]);
  if (!parts.ok()) return parts.status();
  if (parts->empty()) return Error(kOp, "no sizes are given");
  Dims head(batch.begin(), batch.begin() + *at);
  head.insert(head.end(), parts->begin(), parts->end());
  head.insert(head.end(), batch.begin() + *at + 1, batch.end());
  const size_t taken = batch.size();
  return Change(
      kOp, tree, head,
      [&](const Names& names) {
        Names all(names.begin(), names.begin() + static_cast<long>(*at));
        all.resize(*at + parts->size());
        all.insert(all.end(), names.begin() + static_cast<long>(*at) + 1, names.end());
        return all;
      },
      [&](const at::Tensor& leaf) { return leaf.view(Join(head, Tail(leaf, taken))); });
}

absl::StatusOr<std::vector<TensorDict>> Split(const TensorDict& tree, int64_t size, int64_t dim) {
  constexpr std::string_view kOp = "split";
  const absl::StatusOr<size_t> at = Wrap(kOp, dim, tree.batch_size().size());
  if (!at.ok()) return at.status();
  if (size <= 0) return Error(kOp, absl::StrCat("the size ", size, " is not positive"));
  return Parts(kOp, tree, EqualParts(tree.batch_size()[*at], size), *at);
}

absl::StatusOr<std::vector<TensorDict>> Split(const TensorDict& tree, at::IntArrayRef sizes,
                                              int64_t dim) {
  constexpr std::string_view kOp = "split";
  const absl::StatusOr<size_t> at = Wrap(kOp, dim, tree.batch_size().size());
  if (!at.ok()) return at.status();
  const int64_t total = tree.batch_size()[*at];
  int64_t left = total;
  for (const int64_t size : sizes) {
    if (size < 0 || size > left) {
      left = -1;
      break;
    }
    left -= size;
  }
  if (left != 0) {
    return Error(kOp, absl::StrCat("sizes ", ToText(sizes), " do not make up the ", total,
                                   " of dimension ", dim));
  }
  return Parts(kOp, tree, sizes, *at);
}

absl::StatusOr<std::vector<TensorDict>> Chunk(const TensorDict& tree, int64_t chunks,
                                              int64_t dim) {
  constexpr std::string_view kOp = "chunk";
  const absl::StatusOr<size_t> at = Wrap(kOp, dim, tree.batch_size().size());
  if (!at.ok()) return at.status();
  if (chunks <= 0) return Error(kOp, absl::StrCat(chunks, " chunks are not a positive number"));
  const int64_t total = tree.batch_size()[*at];
  if (total == 0) return Parts(kOp, tree, Dims(static_cast<size_t>(chunks), 0), *at);
  return Parts(kOp, tree, EqualParts(total, (total - 1) / chunks + 1), *at);
}

absl::StatusOr<std::vector<TensorDict>> Unbind(const TensorDict& tree, int64_t dim) {
  constexpr std::string_view kOp = "unbind";
  const at::IntArrayRef batch = tree.batch_size();
  const absl::StatusOr<size_t> at = Wrap(kOp, dim, batch.size());
  if (!at.ok()) return at.status();
  Dims head(batch.begin(), batch.end());
  head.erase(head.begin() + static_cast<long>(*at));
  std::vector<TensorDict> parts;
  parts.reserve(static_cast<size_t>(batch[*at]));
  for (int64_t i = 0; i < batch[*at]; ++i) {
    absl::StatusOr<TensorDict> part = Change(
        kOp, tree, head,
        [&](const Names& names) {
          Names kept = names;
          kept.erase(kept.begin() + static_cast<long>(*at));
          return kept;
        },
        [&](const at::Tensor& leaf) { return leaf.select(static_cast<int64_t>(*at), i); });
    if (!part.ok()) return part.status();
    parts.push_back(*std::move(part));
  }
  return parts;
}

}  // namespace leafpack
