#include "distributed/p2p/tree_memory.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <new>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "distributed/core/error.h"
#include "tensordict/bucket/packer.h"
#include "tensordict/dtype.h"

namespace leafpack::p2p {
namespace {

std::string DescribeLeaf(const TreeSpec& spec, size_t index) {
  const TreeSpec::Leaf& leaf = spec.leaves[index];
  if (leaf.kind == LeafKind::kUndefined) return "an undefined tensor";
  if (leaf.kind == LeafKind::kNonTensor) return leaf.value.ToString();
  std::string text = absl::StrCat(DtypeName(leaf.dtype), " [", absl::StrJoin(leaf.sizes, ", "), "]");
  if (leaf.kind == LeafKind::kSparse) {
    absl::StrAppend(&text, ", sparse in ", leaf.sparse_dim, " dimensions");
  }
  if (leaf.alias_of >= 0) {
    absl::StrAppend(&text, ", the memory of ",
                    (*spec.paths)[static_cast<size_t>(leaf.alias_of)].ToString());
  }
  return text;
}

absl::Status Mismatch(std::string text, const NestedKey& path) {
  return WithErrorDetails(absl::FailedPreconditionError(text),
                          {.kind = ErrorKind::kLayoutMismatch, .path = path.ToString()});
}

}  // namespace

absl::Status CheckDevices(const Layout& layout) {
  for (size_t i = 0; i < layout.size(); ++i) {
    const LeafInfo& info = layout.leaf(i);
    if (info.dtype == at::ScalarType::Undefined || info.device.is_cpu()) continue;
    const std::string path = layout.path(i).ToString();
    return WithErrorDetails(
        absl::UnimplementedError(absl::StrCat("leaf ", path, " is on ", info.device.str(),
                                              "; only leaves in CPU memory can be sent")),
        {.kind = ErrorKind::kUnsupported, .path = path});
  }
  return absl::OkStatus();
}

void TreeMemory::Add(char* data, int64_t bytes) {
  if (bytes == 0) return;
  bytes_ += bytes;
  if (!segments_.empty() && segments_.back().data + segments_.back().bytes == data) {
    segments_.back().bytes += bytes;
  } else {
    segments_.push_back({data, bytes});
  }
}

absl::Status TreeMemory::AddStaged(const at::Tensor& leaf, int64_t bytes, const NestedKey& path,
                                   bool fill) {
  std::unique_ptr<char[]> buffer(new (std::nothrow) char[static_cast<size_t>(bytes)]);
  if (buffer == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", bytes, " bytes to pack ", path.ToString()));
  }
  if (fill) {
    if (absl::Status s = PackLeaf(leaf, PackOrder::kLogical, buffer.get()); !s.ok()) return s;
  }
  Add(buffer.get(), bytes);
  staged_.push_back({leaf, std::move(buffer)});
  return absl::OkStatus();
}

absl::StatusOr<TreeMemory> TreeMemory::Of(const FlatTree& tree, const Layout& layout, bool fill) {
  TreeMemory memory;
  memory.segments_.reserve(layout.size());
  for (size_t i = 0; i < layout.size(); ++i) {
    const LeafInfo& info = layout.leaf(i);
    if (info.alias_of >= 0) continue;
    const at::Tensor& leaf = tree.leaves[i];
    if (info.kind == LeafKind::kSparse) {
      try {
        for (const at::Tensor& part : {leaf._indices(), leaf._values()}) {
          memory.owners_.push_back(part.contiguous());
          const at::Tensor& whole = memory.owners_.back();
          memory.Add(static_cast<char*>(whole.numel() == 0 ? nullptr : whole.data_ptr()),
                     static_cast<int64_t>(whole.nbytes()));
        }
      } catch (const std::exception& e) {
        return absl::InternalError(
            absl::StrCat("leaf ", layout.path(i).ToString(), " cannot be read: ", e.what()));
      }
      continue;
    }
    if (info.kind != LeafKind::kDense || info.bytes == 0) continue;
    if (info.contiguous && !info.lazy_conj_or_neg) {
      memory.Add(reinterpret_cast<char*>(info.address), info.bytes);
    } else if (absl::Status s = memory.AddStaged(leaf, info.bytes, layout.path(i), fill); !s.ok()) {
      return s;
    }
  }
  return memory;
}

absl::Status TreeMemory::Unstage() const {
  for (const Staged& staged : staged_) {
    if (absl::Status s = UnpackLeaf(staged.buffer.get(), PackOrder::kLogical, staged.leaf); !s.ok()) {
      return s;
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSparse(const FlatTree& tree) {
  for (size_t i = 0; i < tree.leaves.size(); ++i) {
    const at::Tensor& leaf = tree.leaves[i];
    if (!leaf.defined() || !leaf.is_sparse()) continue;
    const at::Tensor indices = leaf._indices().contiguous();
    const int64_t* index = indices.const_data_ptr<int64_t>();
    for (int64_t d = 0; d < indices.size(0); ++d) {
      for (int64_t k = 0; k < indices.size(1); ++k, ++index) {
        if (*index >= 0 && *index < leaf.size(d)) continue;
        const std::string path = (*tree.paths)[i].ToString();
        return WithErrorDetails(
            absl::InvalidArgumentError(absl::StrCat("leaf ", path, " came with index ", *index,
                                                    " in dimension ", d, " of size ", leaf.size(d))),
            {.path = path});
      }
    }
  }
  return absl::OkStatus();
}

absl::Status CopySparse(const FlatTree& from, const FlatTree& to) {
  const c10::AutoGradMode no_grad(false);
  for (size_t i = 0; i < to.leaves.size(); ++i) {
    if (!to.leaves[i].defined() || !to.leaves[i].is_sparse()) continue;
    try {
      to.leaves[i].copy_(from.leaves[i]);
    } catch (const std::exception& e) {
      return absl::InternalError(
          absl::StrCat("leaf ", (*to.paths)[i].ToString(), " cannot be written: ", e.what()));
    }
  }
  return absl::OkStatus();
}

absl::Status CompareSpecs(const TreeSpec& sent, const TreeSpec& received, std::string_view sender,
                          std::string_view receiver) {
  const PathList& sent_paths = *sent.paths;
  const PathList& own_paths = *received.paths;
  for (size_t i = 0; i < std::max(sent_paths.size(), own_paths.size()); ++i) {
    const bool only_sent = i >= own_paths.size() ||
                           (i < sent_paths.size() && sent_paths[i] < own_paths[i]);
    const bool only_own = !only_sent && (i >= sent_paths.size() || own_paths[i] < sent_paths[i]);
    if (only_sent || only_own) {
      const NestedKey& path = only_sent ? sent_paths[i] : own_paths[i];
      const PathList& other = only_sent ? own_paths : sent_paths;
      return Mismatch(
          absl::StrCat(path.ToString(), ": ", only_sent ? sender : receiver, " has ",
                       DescribeLeaf(only_sent ? sent : received, i), ", ",
                       only_sent ? receiver : sender, " has no such leaf",
                       i < other.size() ? absl::StrCat(" (its next is ", other[i].ToString(), ")")
                                        : ""),
          path);
    }
    const std::string a = DescribeLeaf(sent, i);
    const std::string b = DescribeLeaf(received, i);
    if (a == b) continue;
    return Mismatch(absl::StrCat(own_paths[i].ToString(), ": ", sender, " sends ", a, ", ", receiver,
                                 " receives ", b),
                    own_paths[i]);
  }
  return absl::OkStatus();
}

}  // namespace leafpack::p2p
