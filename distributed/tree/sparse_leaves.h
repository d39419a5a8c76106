// The elements of sparse COO leaves that travel. They are in no bucket: a rank tells another how many
// elements each of its leaves has, then sends indices and values as they lie there.
#ifndef LEAFPACK_DISTRIBUTED_TREE_SPARSE_LEAVES_H_
#define LEAFPACK_DISTRIBUTED_TREE_SPARSE_LEAVES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"

#include "distributed/core/backend.h"
#include "distributed/tree/data_wait.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"
#include "tensordict/nested_key.h"

namespace leafpack::internal {

bool HasSparse(const Layout& layout);

// `status`, which is about the leaf at `path`: in its text and its details.
absl::Status AtLeaf(const NestedKey& path, const absl::Status& status);

// OK if the indices of all sparse leaves lie within their sizes, which torch does not look at. Else
// InvalidArgument that names the path.
absl::Status CheckSparseIndices(const FlatTree& tree);

// Gives `leaf`, which stays the tensor object that it is, other elements. It may be one that came from
// detach(). Throws what torch throws.
void SetSparseElements(const at::Tensor& leaf, const at::Tensor& indices, const at::Tensor& values,
                       bool coalesced);

// The sparse leaves of trees on their way to and from other ranks. Used by one thread.
class SparseMove {
 public:
  // One tree on its way to or from a peer; what it points to outlives the move.
  struct Tree {
    int peer = 0;
    const Layout* layout = nullptr;
    const FlatTree* tree = nullptr;
  };

  // Moves the elements, by rising peer and each peer once; all ranks of the group call it. Nothing is
  // written. After an error the works are settled by Settle.
  absl::Status Run(DataContext& context, DataWaiter& waiter, const std::vector<Tree>& sends,
                   const std::vector<Tree>& receives);

  // Writes what was received into the leaves.
  absl::Status Write();

  // After an error, when the epoch was aborted: waits (bounded) until the backend has let go of memory.
  void Settle();

  // Received leaves that were written, by tree.
  const std::vector<std::pair<const FlatTree*, size_t>>& leaves_done() const { return done_; }

 private:
  struct Elements {
    int peer = 0;
    const FlatTree* tree = nullptr;
    std::vector<size_t> leaves;
    std::vector<int64_t> counts;  // of each leaf: its elements, and whether they are coalesced
    std::vector<at::Tensor> indices;
    std::vector<at::Tensor> values;
  };

  absl::Status Exchange(DataContext& context, DataWaiter& waiter, std::vector<Transfer> sends,
                        std::vector<Transfer> receives);
  absl::Status Allocate(Elements& elements, const Layout& layout) const;

  // Views share them, so that they live until the backend is through.
  std::vector<std::shared_ptr<Elements>> sends_;
  std::vector<std::shared_ptr<Elements>> receives_;
  std::unique_ptr<DataWork> failed_;
  std::vector<std::pair<const FlatTree*, size_t>> done_;
};

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_SPARSE_LEAVES_H_
