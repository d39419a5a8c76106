// Buckets as views of memory, which is what a backend takes.
#ifndef LEAFPACK_DISTRIBUTED_TREE_LEAF_VIEWS_H_
#define LEAFPACK_DISTRIBUTED_TREE_LEAF_VIEWS_H_

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/types/span.h"

#include "distributed/core/backend.h"
#include "tensordict/bucket/bucket_plan.h"
#include "tensordict/bucket/packer.h"

namespace leafpack::internal {

// True if the elements of every leaf of the bucket are in its memory as they are: none has the
// conjugate or negative bit set.
bool CanBeViewed(const Bucket& bucket, absl::Span<const at::Tensor> leaves);

// Appends one view per slot, in order, of the leaf's own memory. With PackOrder::kMemory a leaf without
// gaps is one run in memory order. The views are to be written, so memory that was shared by copy-on-write
// is the leaf's own afterwards. `keep_alive` must own the leaves.
void AppendLeafViews(const Bucket& bucket, absl::Span<const at::Tensor> leaves, PackOrder order,
                     const std::shared_ptr<const void>& keep_alive, std::vector<LeafView>& views);

// A packed bucket as one view, which owns it: for backends that do not pack.
void AppendRunView(const std::shared_ptr<PackedBucket>& packed, std::vector<LeafView>& views);

// A packed bucket as one run per slot, so that the views are as many as those of AppendLeafViews. The
// views own `packed`.
void AppendSlotViews(const Bucket& bucket, const std::shared_ptr<PackedBucket>& packed,
                     std::vector<LeafView>& views);

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_LEAF_VIEWS_H_
