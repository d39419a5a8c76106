// The memory of a tree's leaves as a row of segments, in the order in which their bytes travel: leaves
// in canonical order, each alias group once, the elements of a leaf in row-major order. A leaf that is
// contiguous is its own memory; others get a staging buffer.
#ifndef LEAFPACK_DISTRIBUTED_P2P_TREE_MEMORY_H_
#define LEAFPACK_DISTRIBUTED_P2P_TREE_MEMORY_H_

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "distributed/mailbox/mailbox.h"
#include "distributed/tree/tree_spec.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"

namespace leafpack::p2p {

// OK if all leaves are in CPU memory; else Unimplemented that names the first path, with kUnsupported.
absl::Status CheckDevices(const Layout& layout);

class TreeMemory {
 public:
  // For a send: staging buffers hold the values of their leaves. For a receive (`fill` false) they are
  // empty. Sparse leaves lend their indices and values; of a receive they must be fresh ones.
  // ResourceExhausted when there is not enough memory.
  static absl::StatusOr<TreeMemory> Of(const FlatTree& tree, const Layout& layout, bool fill);

  const std::vector<mailbox::Segment>& segments() const { return segments_; }
  int64_t bytes() const { return bytes_; }

  // Receives: writes staged leaves.
  absl::Status Unstage() const;

 private:
  struct Staged {
    at::Tensor leaf;
    std::unique_ptr<char[]> buffer;
  };

  void Add(char* data, int64_t bytes);
  absl::Status AddStaged(const at::Tensor& leaf, int64_t bytes, const NestedKey& path, bool fill);

  std::vector<mailbox::Segment> segments_;
  std::vector<Staged> staged_;
  std::vector<at::Tensor> owners_;
  int64_t bytes_ = 0;
};

// That the indices of sparse leaves, as they came from another rank, lie within their sizes: nothing that
// uses such a tensor looks. InvalidArgument names the leaf.
absl::Status CheckSparse(const FlatTree& tree);

// Gives each sparse leaf of `to` the elements of the one in `from`.
absl::Status CopySparse(const FlatTree& from, const FlatTree& to);

// The first leaf in which what is sent differs from what is received, as a mismatch with its path in the
// details; OK if none does. `sender` and `receiver`: "rank 3".
absl::Status CompareSpecs(const TreeSpec& sent, const TreeSpec& received, std::string_view sender,
                          std::string_view receiver);

}  // namespace leafpack::p2p

#endif  // LEAFPACK_DISTRIBUTED_P2P_TREE_MEMORY_H_
