#include "distributed/tree/sparse_leaves.h"

#include <algorithm>
#include <exception>
#include <string>

#include <ATen/SparseTensorImpl.h>
#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "distributed/core/error.h"
#include "distributed/tree/contiguous_view.h"

namespace leafpack::internal {
namespace {

std::vector<size_t> SparseLeaves(const Layout& layout) {
  std::vector<size_t> leaves;
  for (size_t i = 0; i < layout.size(); ++i) {
    const LeafInfo& leaf = layout.leaf(i);
    if (leaf.kind == LeafKind::kSparse && leaf.alias_of < 0) leaves.push_back(i);
  }
  return leaves;
}

absl::Status CheckIndices(const at::Tensor& leaf, const at::Tensor& indices) {
  const int64_t* index = indices.const_data_ptr<int64_t>();
  for (int64_t d = 0; d < indices.size(0); ++d) {
    for (int64_t k = 0; k < indices.size(1); ++k, ++index) {
      if (*index >= 0 && *index < leaf.size(d)) continue;
      return absl::InvalidArgumentError(absl::StrCat("has index ", *index, " in dimension ", d,
                                                     " of size ", leaf.size(d)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AtLeaf(const NestedKey& path, const absl::Status& status) {
  ErrorDetails details = GetErrorDetails(status);
  details.path = path.ToString();
  return WithErrorDetails(
      absl::Status(status.code(), absl::StrCat("leaf ", details.path, ": ", status.message())),
      details);
}

bool HasSparse(const Layout& layout) {
  return std::any_of(layout.leaves().begin(), layout.leaves().end(),
                     [](const LeafInfo& leaf) { return leaf.kind == LeafKind::kSparse; });
}

absl::Status CheckSparseIndices(const FlatTree& tree) {
  for (size_t i = 0; i < tree.leaves.size(); ++i) {
    const at::Tensor& leaf = tree.leaves[i];
    if (!leaf.defined() || !leaf.is_sparse()) continue;
    if (absl::Status status = CheckIndices(leaf, leaf._indices().contiguous()); !status.ok()) {
      return AtLeaf((*tree.paths)[i], status);
    }
  }
  return absl::OkStatus();
}

void SetSparseElements(const at::Tensor& leaf, const at::Tensor& indices, const at::Tensor& values,
                       bool coalesced) {
  auto* impl = static_cast<at::SparseTensorImpl*>(leaf.unsafeGetTensorImpl());
  // A tensor that came from detach() may be written, its elements too.
  const bool allowed = impl->allow_tensor_metadata_change();
  impl->set_allow_tensor_metadata_change(true);
  impl->set_indices_and_values_unsafe(indices, values);
  impl->set_coalesced(coalesced);
  impl->set_allow_tensor_metadata_change(allowed);
}

absl::Status SparseMove::Exchange(DataContext& context, DataWaiter& waiter,
                                  std::vector<Transfer> sends, std::vector<Transfer> receives) {
  absl::StatusOr<std::unique_ptr<DataWork>> work =
      context.Exchange(std::move(sends), std::move(receives));
  if (!work.ok()) return work.status();
  absl::Status status = waiter.Wait(**work);
  if (!status.ok()) failed_ = *std::move(work);
  return status;
}

absl::Status SparseMove::Allocate(Elements& elements, const Layout& layout) const {
  for (size_t k = 0; k < elements.leaves.size(); ++k) {
    const size_t i = elements.leaves[k];
    const LeafInfo& info = layout.leaf(i);
    const int64_t count = elements.counts[2 * k];
    // The same element may stand there more than once, so only memory bounds how many there are.
    std::vector<int64_t> sizes = {count};
    int64_t bytes = static_cast<int64_t>(c10::elementSize(info.dtype));
    bool fits = count >= 0 && !__builtin_mul_overflow(bytes, count, &bytes);
    for (size_t d = static_cast<size_t>(info.sparse_dim); d < info.sizes.size(); ++d) {
      sizes.push_back(info.sizes[d]);
      fits = fits && !__builtin_mul_overflow(bytes, info.sizes[d], &bytes);
    }
    int64_t index_bytes = 8 * std::max<int64_t>(info.sparse_dim, 1);
    if (!fits || __builtin_mul_overflow(index_bytes, count, &index_bytes)) {
      return AtLeaf((*elements.tree->paths)[i],
                    absl::InternalError(absl::StrCat("group rank ", elements.peer,
                                                     " says that it has ", count, " elements")));
    }
    try {
      elements.indices.push_back(at::empty({info.sparse_dim, count}, at::kLong));
      elements.values.push_back(at::empty(sizes, at::TensorOptions().dtype(info.dtype)));
    } catch (const std::exception&) {
      return AtLeaf((*elements.tree->paths)[i],
                    absl::ResourceExhaustedError(absl::StrCat(
                        "no memory for ", count, " elements of group rank ", elements.peer)));
    }
  }
  return absl::OkStatus();
}

absl::Status SparseMove::Run(DataContext& context, DataWaiter& waiter,
                             const std::vector<Tree>& sends, const std::vector<Tree>& receives) {
  const c10::AutoGradMode no_grad(false);
  const auto counts_of = [](const std::vector<std::shared_ptr<Elements>>& all) {
    std::vector<Transfer> transfers;
    for (const std::shared_ptr<Elements>& each : all) {
      if (each->leaves.empty()) continue;
      const auto count = static_cast<int64_t>(each->counts.size());
      transfers.push_back(
          {each->peer, {ContiguousView(each->counts.data(), at::kLong, count, each)}});
    }
    return transfers;
  };
  const auto elements_of = [](const std::vector<std::shared_ptr<Elements>>& all) {
    std::vector<Transfer> transfers;
    for (const std::shared_ptr<Elements>& each : all) {
      if (each->leaves.empty()) continue;
      Transfer& transfer = transfers.emplace_back();
      transfer.peer = each->peer;
      for (size_t k = 0; k < each->leaves.size(); ++k) {
        for (const at::Tensor* part : {&each->indices[k], &each->values[k]}) {
          transfer.views.push_back(ContiguousView(const_cast<void*>(part->const_data_ptr()),
                                          part->scalar_type(), part->numel(), each));
        }
      }
    }
    return transfers;
  };
  for (const Tree& send : sends) {
    auto elements = std::make_shared<Elements>();
    elements->peer = send.peer;
    elements->tree = send.tree;
    elements->leaves = SparseLeaves(*send.layout);
    for (const size_t i : elements->leaves) {
      const at::Tensor& leaf = send.tree->leaves[i];
      try {
        elements->indices.push_back(leaf._indices().contiguous());
        elements->values.push_back(leaf._values().resolve_conj().resolve_neg().contiguous());
      } catch (const std::exception& e) {
        return AtLeaf((*send.tree->paths)[i], absl::InternalError(e.what()));
      }
      elements->counts.push_back(elements->indices.back().size(1));
      elements->counts.push_back(leaf.is_coalesced() ? 1 : 0);
    }
    sends_.push_back(std::move(elements));
  }
  for (const Tree& receive : receives) {
    auto elements = std::make_shared<Elements>();
    elements->peer = receive.peer;
    elements->tree = receive.tree;
    elements->leaves = SparseLeaves(*receive.layout);
    elements->counts.resize(2 * elements->leaves.size());
    receives_.push_back(std::move(elements));
  }
  absl::Status status = Exchange(context, waiter, counts_of(sends_), counts_of(receives_));
  for (size_t r = 0; status.ok() && r < receives.size(); ++r) {
    status = Allocate(*receives_[r], *receives[r].layout);
  }
  if (status.ok()) {
    status = Exchange(context, waiter, elements_of(sends_), elements_of(receives_));
  }
  if (!status.ok()) return status;
  sends_.clear();
  for (const std::shared_ptr<Elements>& each : receives_) {
    for (size_t k = 0; k < each->leaves.size(); ++k) {
      const size_t i = each->leaves[k];
      status = CheckIndices(each->tree->leaves[i], each->indices[k]);
      if (status.ok()) continue;
      return AtLeaf((*each->tree->paths)[i],
                    absl::InternalError(absl::StrCat("group rank ", each->peer, " sent one that ",
                                                     status.message())));
    }
  }
  return absl::OkStatus();
}

absl::Status SparseMove::Write() {
  const c10::AutoGradMode no_grad(false);
  for (const std::shared_ptr<Elements>& each : receives_) {
    for (size_t k = 0; k < each->leaves.size(); ++k) {
      const size_t i = each->leaves[k];
      try {
        SetSparseElements(each->tree->leaves[i], each->indices[k], each->values[k],
                          each->counts[2 * k + 1] != 0);
      } catch (const std::exception& e) {
        return AtLeaf((*each->tree->paths)[i], absl::InternalError(e.what()));
      }
      done_.emplace_back(each->tree, i);
    }
  }
  receives_.clear();
  return absl::OkStatus();
}

void SparseMove::Settle() {
  if (failed_ != nullptr) internal::Settle(*failed_, absl::Now() + kSettleTime);
  failed_ = nullptr;
}

}  // namespace leafpack::internal
