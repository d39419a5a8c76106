#include "distributed/tree/sparse_reduce.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "distributed/core/error.h"
#include "distributed/core/reduce/reduce.h"
#include "distributed/tree/contiguous_view.h"
#include "distributed/tree/sparse_leaves.h"

namespace leafpack::internal {
namespace {

// Bytes of each rank's values that are reduced at a time.
constexpr int64_t kChunkBytes = int64_t{64} << 10;

// Product of the sizes, or -1 where it is no int64.
int64_t Product(c10::IntArrayRef sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(product, size, &product)) return -1;
  }
  return product;
}

bool StrictlyRising(const std::vector<int64_t>& positions) {
  return std::adjacent_find(positions.begin(), positions.end(), std::greater_equal<>()) ==
         positions.end();
}

// What one rank sends to or gets from another; a peer without a view has nothing to move.
void AddIfAny(int peer, std::vector<LeafView> views, std::vector<Transfer>& transfers) {
  if (!views.empty()) transfers.push_back({peer, std::move(views)});
}

}  // namespace

SparseReduce::SparseReduce(const CallPlan& plan, const FlatTree& tree, const ReduceOp& op, int rank,
                           int ranks, const std::function<int(size_t leaf)>& owner_of)
    : plan_(plan),
      tree_(tree),
      op_(op),
      rank_(rank),
      ranks_(ranks),
      parts_(std::make_shared<Parts>(static_cast<size_t>(ranks))) {
  for (const int64_t leaf : plan.sparse) {
    const LeafInfo& info = plan.layout.leaf(static_cast<size_t>(leaf));
    const c10::IntArrayRef sizes(info.sizes.data(), info.sizes.size());
    const auto sparse_dim = static_cast<size_t>(info.sparse_dim);
    Shape& shape = shapes_.emplace_back();
    shape.leaf = static_cast<size_t>(leaf);
    shape.owner = owner_of(shape.leaf);
    shape.dtype = info.dtype;
    shape.positions = Product(sizes.slice(0, sparse_dim));
    shape.block = Product(sizes.slice(sparse_dim));
    shape.block_bytes = shape.block * static_cast<int64_t>(c10::elementSize(info.dtype));
  }
  for (std::vector<Part>& parts : *parts_) parts.resize(shapes_.size());
}

absl::Status SparseReduce::AtLeaf(const Shape& shape, const absl::Status& status) const {
  return internal::AtLeaf(plan_.layout.path(shape.leaf), status);
}

absl::Status SparseReduce::Collect() {
  for (size_t i = 0; i < shapes_.size(); ++i) {
    absl::Status status;
    try {
      status = CollectLeaf(shapes_[i], (*parts_)[static_cast<size_t>(rank_)][i]);
    } catch (const std::exception& e) {
      status = absl::InternalError(e.what());
    }
    if (!status.ok()) return AtLeaf(shapes_[i], status);
  }
  return absl::OkStatus();
}

absl::Status SparseReduce::CollectLeaf(const Shape& shape, Part& part) {
  if (shape.positions < 0) {
    return absl::UnimplementedError("has more indices than 2^63 in its sparse dimensions");
  }
  const c10::AutoGradMode no_grad(false);
  const at::Tensor& leaf = tree_.leaves[shape.leaf];
  const at::Tensor indices = leaf._indices().contiguous();
  const at::Tensor values = leaf._values().resolve_conj().resolve_neg().contiguous();
  const int64_t dims = indices.size(0), count = indices.size(1);
  const int64_t* index = indices.const_data_ptr<int64_t>();
  const auto* data = static_cast<const char*>(values.const_data_ptr());
  std::vector<int64_t> positions(static_cast<size_t>(count));
  for (int64_t k = 0; k < count; ++k) {
    int64_t position = 0;
    for (int64_t d = 0; d < dims; ++d) {
      const int64_t at = index[d * count + k];
      if (at < 0 || at >= leaf.size(d)) {
        return absl::InvalidArgumentError(absl::StrCat("has index ", at, " in dimension ", d,
                                                       " of size ", leaf.size(d)));
      }
      position = position * leaf.size(d) + at;
    }
    positions[static_cast<size_t>(k)] = position;
  }
  const auto bytes = static_cast<size_t>(shape.block_bytes);
  if (StrictlyRising(positions)) {
    part.values.assign(data, data + positions.size() * bytes);
    part.positions = std::move(positions);
  } else {
    std::vector<size_t> order(positions.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return positions[a] < positions[b]; });
    for (size_t k = 0; k < order.size();) {
      const int64_t position = positions[order[k]];
      std::vector<const void*> same;
      for (; k < order.size() && positions[order[k]] == position; ++k) {
        same.push_back(data + order[k] * bytes);
      }
      part.positions.push_back(position);
      part.values.resize(part.positions.size() * bytes);
      char* out = part.values.data() + (part.positions.size() - 1) * bytes;
      absl::Status status = ReduceInto(ReduceOpKind::kSum, shape.dtype, same, out, shape.block);
      if (!status.ok()) return status;
    }
  }
  if (op_.kind != ReduceOpKind::kPremulSum) return absl::OkStatus();
  return ApplyFactor(shape.dtype, op_.factor, part.values.data(),
                     static_cast<int64_t>(part.positions.size()) * shape.block);
}

absl::Status SparseReduce::Run(DataContext& context, DataWaiter& waiter) {
  if (!shapes_.empty()) {
    if (absl::Status status = ExchangeCounts(context, waiter); !status.ok()) return status;
    if (absl::Status status = ExchangeParts(context, waiter); !status.ok()) return status;
    if (absl::Status status = CheckReceived(); !status.ok()) return status;
  }
  return ReduceAll();
}

absl::Status SparseReduce::ReduceAll() {
  results_.resize(shapes_.size());
  for (size_t i = 0; i < shapes_.size(); ++i) {
    if (GoesTo(shapes_[i], rank_)) {
      if (absl::Status status = ReduceLeaf(i); !status.ok()) return status;
    }
    for (std::vector<Part>& parts : *parts_) parts[i] = Part();
  }
  return absl::OkStatus();
}

absl::Status SparseReduce::ExchangeCounts(DataContext& context, DataWaiter& waiter) {
  const size_t leaves = shapes_.size();
  auto counts = std::make_shared<std::vector<int64_t>>(leaves * static_cast<size_t>(ranks_));
  const auto of_rank = [&](int rank) { return counts->data() + leaves * static_cast<size_t>(rank); };
  for (size_t i = 0; i < leaves; ++i) {
    of_rank(rank_)[i] =
        static_cast<int64_t>((*parts_)[static_cast<size_t>(rank_)][i].positions.size());
  }
  std::vector<Transfer> sends, receives;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    const auto count = static_cast<int64_t>(leaves);
    sends.push_back({peer, {ContiguousView(of_rank(rank_), at::kLong, count, counts)}});
    receives.push_back({peer, {ContiguousView(of_rank(peer), at::kLong, count, counts)}});
  }
  auto work = context.Exchange(std::move(sends), std::move(receives));
  if (!work.ok()) return work.status();
  if (absl::Status status = waiter.Wait(**work); !status.ok()) return status;
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    for (size_t i = 0; i < leaves; ++i) {
      if (!GoesTo(shapes_[i], rank_)) continue;
      const int64_t count = of_rank(peer)[i];
      int64_t bytes = 0;
      if (count < 0 || count > shapes_[i].positions ||
          __builtin_mul_overflow(count, std::max<int64_t>(shapes_[i].block_bytes, 8), &bytes) ||
          bytes > std::numeric_limits<int64_t>::max() / 2) {
        return AtLeaf(shapes_[i], absl::InternalError(absl::StrCat(
                                      "group rank ", peer, " says that it has ", count,
                                      " elements of ", shapes_[i].positions)));
      }
      Part& part = (*parts_)[static_cast<size_t>(peer)][i];
      try {
        part.positions.resize(static_cast<size_t>(count));
        part.values.resize(static_cast<size_t>(count * shapes_[i].block_bytes));
      } catch (const std::exception&) {
        return AtLeaf(shapes_[i], absl::ResourceExhaustedError(absl::StrCat(
                                      "no memory for ", count, " elements of group rank ", peer)));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status SparseReduce::ExchangeParts(DataContext& context, DataWaiter& waiter) {
  std::vector<Transfer> sends, receives;
  const auto views_of = [&](int rank, int to) {
    std::vector<LeafView> views;
    for (size_t i = 0; i < shapes_.size(); ++i) {
      if (!GoesTo(shapes_[i], to)) continue;
      Part& part = (*parts_)[static_cast<size_t>(rank)][i];
      const auto count = static_cast<int64_t>(part.positions.size());
      views.push_back(ContiguousView(part.positions.data(), at::kLong, count, parts_));
      views.push_back(
          ContiguousView(part.values.data(), shapes_[i].dtype, count * shapes_[i].block, parts_));
    }
    return views;
  };
  for (int peer = 0; peer < ranks_; ++peer) {
    if (peer == rank_) continue;
    AddIfAny(peer, views_of(rank_, peer), sends);
    AddIfAny(peer, views_of(peer, rank_), receives);
  }
  auto work = context.Exchange(std::move(sends), std::move(receives));
  if (!work.ok()) return work.status();
  return waiter.Wait(**work);
}

absl::Status SparseReduce::CheckReceived() const {
  for (size_t i = 0; i < shapes_.size(); ++i) {
    for (const std::vector<Part>& parts : *parts_) {
      const std::vector<int64_t>& positions = parts[i].positions;
      if (positions.empty() || (positions.front() >= 0 && StrictlyRising(positions) &&
                                positions.back() < shapes_[i].positions)) {
        continue;
      }
      return AtLeaf(shapes_[i],
                    absl::InternalError("another rank sent indices that are out of range"));
    }
  }
  return absl::OkStatus();
}

// Merges the positions, and reduces the values in chunks, zeros where a rank has none.
absl::Status SparseReduce::ReduceLeaf(size_t index) {
  const Shape& shape = shapes_[index];
  Part& result = results_[index];
  std::vector<size_t> at(static_cast<size_t>(ranks_));
  for (const std::vector<Part>& parts : *parts_) {
    std::vector<int64_t> merged;
    merged.reserve(result.positions.size() + parts[index].positions.size());
    std::set_union(result.positions.begin(), result.positions.end(),
                   parts[index].positions.begin(), parts[index].positions.end(),
                   std::back_inserter(merged));
    result.positions.swap(merged);
  }
  const auto bytes = static_cast<size_t>(shape.block_bytes);
  if (bytes == 0) return absl::OkStatus();
  result.values.resize(result.positions.size() * bytes);
  const size_t per_chunk = std::max<size_t>(static_cast<size_t>(kChunkBytes) / bytes, 1);
  std::vector<char> scratch(static_cast<size_t>(ranks_) * per_chunk * bytes);
  for (size_t begin = 0; begin < result.positions.size(); begin += per_chunk) {
    const size_t count = std::min(per_chunk, result.positions.size() - begin);
    absl::InlinedVector<const void*, 8> inputs;
    for (size_t r = 0; r < at.size(); ++r) {
      const Part& part = (*parts_)[r][index];
      char* out = scratch.data() + r * per_chunk * bytes;
      inputs.push_back(out);
      for (size_t k = begin; k < begin + count; ++k, out += bytes) {
        if (at[r] < part.positions.size() && part.positions[at[r]] == result.positions[k]) {
          std::memcpy(out, part.values.data() + at[r]++ * bytes, bytes);
        } else {
          std::memset(out, 0, bytes);
        }
      }
    }
    absl::Status status =
        ReduceInto(op_.kind, shape.dtype, inputs, result.values.data() + begin * bytes,
                   static_cast<int64_t>(count) * shape.block);
    if (!status.ok()) return AtLeaf(shape, status);
  }
  return absl::OkStatus();
}

absl::Status SparseReduce::Write() {
  const c10::AutoGradMode no_grad(false);
  for (; through_ < shapes_.size(); ++through_) {
    const Shape& shape = shapes_[through_];
    if (!GoesTo(shape, rank_)) continue;
    Part& result = results_[through_];
    const at::Tensor& leaf = tree_.leaves[shape.leaf];
    const auto count = static_cast<int64_t>(result.positions.size());
    try {
      const int64_t dims = leaf.sparse_dim();
      at::Tensor indices = at::empty({dims, count}, at::kLong);
      int64_t* index = indices.mutable_data_ptr<int64_t>();
      for (int64_t k = 0; k < count; ++k) {
        int64_t position = result.positions[static_cast<size_t>(k)];
        for (int64_t d = dims; d-- > 0; position /= leaf.size(d)) {
          index[d * count + k] = position % leaf.size(d);
        }
      }
      std::vector<int64_t> sizes = {count};
      for (int64_t d = dims; d < leaf.dim(); ++d) sizes.push_back(leaf.size(d));
      at::Tensor values = at::empty(sizes, at::TensorOptions().dtype(shape.dtype));
      if (!result.values.empty()) {
        std::memcpy(values.mutable_data_ptr(), result.values.data(), result.values.size());
      }
      touched_ = true;
      SetSparseElements(leaf, indices, values, /*coalesced=*/true);
    } catch (const std::exception& e) {
      return AtLeaf(shape, absl::InternalError(e.what()));
    }
    result = Part();
  }
  return absl::OkStatus();
}

std::vector<std::string> SparseReduce::PathsDone() const {
  std::vector<std::string> paths;
  for (size_t i = 0; i < through_; ++i) {
    if (!GoesTo(shapes_[i], rank_)) continue;
    for (size_t leaf = 0; leaf < plan_.layout.size(); ++leaf) {
      if (leaf == shapes_[i].leaf ||
          plan_.layout.leaf(leaf).alias_of == static_cast<int64_t>(shapes_[i].leaf)) {
        paths.push_back(plan_.layout.path(leaf).ToString());
      }
    }
  }
  return paths;
}

}  // namespace leafpack::internal
