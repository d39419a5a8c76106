// Point-to-point transfers of trees: from one rank of a group to another one.
//
//   // rank 0                                            // rank 1
//   Status s = Send(tree, GroupRank(1), group);          Status s = Recv(tree, GroupRank(0), group);
//
//   // rank 1 has no tree yet, and does not know from whom it comes:
//   StatusOr<TreeFromRank> got = RecvNew(std::nullopt, group, {.tag = 3});
//   StatusOr<TensorDict> tree = got->tree.ToTensorDict();
//
// The receiver's tree must be laid out as the sender's (paths, dtypes, shapes, kinds, shared memory):
// else both ranks get FailedPrecondition that names the first differing path, what each has, and the
// ranks, and nothing has changed. Transfers match by sender and tag, in the order in which the sender
// sent and in which the receiver asked. They are no calls of the group: they need not stand in one order
// with its collectives, and any number of threads may use them at once.
//
// A send is over when the receiver has the whole tree. So two ranks that both Send first and then Recv
// wait for each other until their deadlines: post one of the two with Isend or Irecv, or both with
// PostBatch. Bytes move while somebody waits, and otherwise in a thread of the group.
//
// Leaves are in CPU memory. A rank cannot send to itself. See docs/p2p.md.
#ifndef LEAFPACK_DISTRIBUTED_P2P_TRANSFER_H_
#define LEAFPACK_DISTRIBUTED_P2P_TRANSFER_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "distributed/core/engine.h"
#include "distributed/core/group.h"
#include "distributed/core/rank.h"
#include "distributed/tree/trees.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {

// The other rank of a transfer: by its place in the group or in the job.
class PeerRank {
 public:
  PeerRank(GroupRank rank) : rank_(rank) {}   // NOLINT(runtime/explicit)
  PeerRank(GlobalRank rank) : rank_(rank) {}  // NOLINT(runtime/explicit)

  // Its place in `group`. InvalidArgument names a rank that is no member.
  absl::StatusOr<GroupRank> In(const Group& group) const;

 private:
  std::variant<GroupRank, GlobalRank> rank_;
};

struct TransferOptions {
  // Any number; receives take only what was sent with the same one.
  int64_t tag = 0;
  // Of the whole transfer, from now; InfiniteDuration means the group's. Must be > 0.
  absl::Duration timeout = absl::InfiniteDuration();
  // For messages, and compared: a mix-up of two transfers that look alike becomes an error. At most 256
  // bytes.
  std::string name{};
  // Asked about every 50 ms by the wait of a synchronous transfer; true gives it up.
  InterruptCheck interrupt{};
  // Receives into nothing: a tree of more bytes is refused, before anything is allocated.
  int64_t max_bytes = std::numeric_limits<int64_t>::max();
};

// A tree that a receive into nothing made, and the rank that it came from.
struct TreeFromRank {
  ReceivedTree tree;
  GroupRank source = GroupRank(0);
};

namespace internal {
class TransferHandle;
struct TransferAccess;
}

// One transfer in flight. Handle semantics; thread-safe. A transfer whose handle is dropped goes on in
// the background until its end or deadline. After fork() nothing works in the child.
class TransferWork {
 public:
  // Returns when the receiver has the tree (send), or it is in the leaves (receive), or with the error
  // of the transfer (again at each Wait). `timeout` bounds this wait only: DeadlineExceeded then says
  // that the transfer goes on. `interrupt` true gives it up.
  absl::Status Wait(absl::Duration timeout = absl::InfiniteDuration(),
                    const InterruptCheck& interrupt = nullptr) const;
  // True when Wait would not block. Never blocks.
  bool IsDone() const;
  // Gives the transfer up, if it is not over; the other rank is told.
  void Cancel() const;

  // After Wait was OK. source: the rank that it came from; FailedPrecondition for a send.
  // received: what IrecvNew got; bytes: what IrecvBytes got. FailedPrecondition for another kind of
  // transfer or one that is not over; the error of one that failed.
  absl::StatusOr<GroupRank> source() const;
  absl::StatusOr<ReceivedTree> received() const;
  absl::StatusOr<std::string> bytes() const;

 private:
  friend struct internal::TransferAccess;
  explicit TransferWork(std::shared_ptr<internal::TransferHandle> handle)
      : handle_(std::move(handle)) {}
  std::shared_ptr<internal::TransferHandle> handle_;
};

// Errors of all functions below, beside those named above: InvalidArgument for an option out of range,
// the rank itself or no member as peer, a tree that Layout::Of refuses, and (receives) a leaf with a
// grad_fn in grad mode; Unimplemented for leaves that are not in CPU memory; DeadlineExceeded, Cancelled
// (given up by this rank, or by the other one), Unavailable (the other rank died or left), each naming
// the rank in its details.

// Sends the tree; returns when `to` has it. The leaves must not change meanwhile.
absl::Status Send(const TreeArg& tree, PeerRank to, const Group& group,
                  const TransferOptions& options = {});
// Returns at once; until Wait returned, the leaves must not be written. The tree's structure may change.
absl::StatusOr<TransferWork> Isend(const TreeArg& tree, PeerRank to, const Group& group,
                                   const TransferOptions& options = {});

// Receives into the leaves of `tree`, from the given rank or, with nullopt, from any; returns who it was.
// Autograd is told as by collectives. After an error during data leaves may have changed
// (tree_unchanged in the details). Receives into leaves that share no memory may be in flight together.
absl::StatusOr<GroupRank> Recv(const TreeArg& tree, std::optional<PeerRank> from,
                               const Group& group, const TransferOptions& options = {});
absl::StatusOr<TransferWork> Irecv(const TreeArg& tree, std::optional<PeerRank> from,
                                   const Group& group, const TransferOptions& options = {});

// Receives keys, shapes, dtypes and contents, into fresh tensors.
absl::StatusOr<TreeFromRank> RecvNew(std::optional<PeerRank> from, const Group& group,
                                     const TransferOptions& options = {});
absl::StatusOr<TransferWork> IrecvNew(std::optional<PeerRank> from, const Group& group,
                                      const TransferOptions& options = {});

// Bytes in place of a tree.
absl::Status SendBytes(std::string_view bytes, PeerRank to, const Group& group,
                       const TransferOptions& options = {});
absl::StatusOr<std::string> RecvBytes(std::optional<PeerRank> from, const Group& group,
                                      const TransferOptions& options = {});
absl::StatusOr<TransferWork> IsendBytes(std::string bytes, PeerRank to, const Group& group,
                                        const TransferOptions& options = {});
absl::StatusOr<TransferWork> IrecvBytes(std::optional<PeerRank> from, const Group& group,
                                        const TransferOptions& options = {});

// The pair of tensordict's that makes a tree known to a rank that has none: a send, and a receive into
// nothing.
absl::Status InitRemote(const TensorDict& tree, PeerRank to, const Group& group,
                        const TransferOptions& options = {});
absl::StatusOr<TensorDict> FromRemoteInit(std::optional<PeerRank> from, const Group& group,
                                          const TransferOptions& options = {});

// One transfer of a batch.
struct SendItem {
  TreeArg tree;
  PeerRank to;
  TransferOptions options{};
};
struct RecvItem {
  std::optional<TreeArg> tree;  // nullopt: into nothing
  std::optional<PeerRank> from;
  TransferOptions options{};
};
using BatchItem = std::variant<SendItem, RecvItem>;

// Starts all of them together, in their order; their works come in the same order. An error in one
// item's arguments is returned, and nothing is started. It begins with `name`, the item's index and this
// rank: "PostBatch[1] on rank 0: ...".
absl::StatusOr<std::vector<TransferWork>> PostBatch(const std::vector<BatchItem>& items,
                                                    const Group& group,
                                                    std::string_view name = "PostBatch");
// Waits for all; the first error in their order.
absl::Status WaitAll(const std::vector<TransferWork>& works,
                     absl::Duration timeout = absl::InfiniteDuration(),
                     const InterruptCheck& interrupt = nullptr);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_P2P_TRANSFER_H_
