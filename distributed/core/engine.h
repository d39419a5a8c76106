// The calls of one group, as collectives use them: post a call, await the decision of the ranks,
// take the turn on the data path, report how the data phase went. It joins the pure state machines
// (distributed/core/protocol) with sockets, threads and backends. Internal to leafpack: users see
// Group and the collectives.
//
// Life of a data call:            of a frame (small tree that rides with its digest):
//   call = engine.Post(spec)        call = engine.Post(spec with payload)
//   call->AwaitDecision()           call->AwaitDecision()
//   call->EnterData()               call->frame_result()
//   ... enqueue on the context
//   call->LeaveTurnstile()
//   ... wait in slices of kWaitSlice; call->Poll() between them
//   call->FinishData(status, done)
// A call whose handle is dropped before it ended is withdrawn, or failed if its data had begun.
#ifndef LEAFPACK_DISTRIBUTED_CORE_ENGINE_H_
#define LEAFPACK_DISTRIBUTED_CORE_ENGINE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "distributed/core/backend.h"
#include "distributed/core/flight/recorder.h"
#include "distributed/core/group.h"
#include "distributed/core/process_check.h"

namespace leafpack {

struct StoreHolder;  // distributed/core/engine_store.h

inline constexpr absl::Duration kWaitSlice = absl::Milliseconds(50);

// Largest tree that rides with its digest: bytes per rank, and bytes over all peers.
inline constexpr int64_t kMaxFrameBytes = 64 << 10;
inline constexpr int64_t kMaxFrameBytesAllPeers = 256 << 10;

// True when a tree of `bytes` goes in one control frame: a pure function of what all ranks know.
constexpr bool FitsInFrame(int64_t bytes, int ranks) {
  return bytes <= kMaxFrameBytes && (ranks - 1) * bytes <= kMaxFrameBytesAllPeers;
}

// Grows; values are wire format.
enum class CollectiveKind : uint8_t {
  kAllReduce = 1,
  kBarrier = 2,
  kReduce = 3,
  kBroadcast = 4,
  kAllGather = 5,
  kGather = 6,
  kScatter = 7,
  kReduceScatter = 8,
  kAllToAll = 9,
  kSplit = 10,  // of a group, by colour and key
};

// "all_reduce", ...: as in messages and flight records. A literal.
std::string_view CollectiveName(CollectiveKind kind);

enum class CheckMode : uint8_t {
  kAlways,  // agree on every call
  kFirst,   // a layout that was agreed before is trusted by backends that gain from it
  kOff,     // count the call, send nothing
};

// The canonical description of a call, asked for only after digests differ. Plain C++ (it is answered
// from any thread, without the GIL): arguments first, then leaves in canonical order.
struct DescriptionEntry {
  std::string key;    // argument name, or canonical bytes of the leaf's path (they sort like the paths)
  std::string label;  // printable key
  std::string value;  // printable value, e.g. "float32 [3, 4]"
  bool is_argument = false;
};
using DescribeCall = std::function<std::vector<DescriptionEntry>()>;

// Reduces the frames of all ranks, in rank order, into `out` (same size). Runs at group rank 0 only.
using FrameReducer =
    std::function<void(absl::Span<const absl::Span<const char>> payloads, absl::Span<char> out)>;

// Makes one result for all ranks of their payloads, in rank order; none: let it be a data call. Runs at
// group rank 0 only. An error
// with ErrorKind::kLayoutMismatch in its details ends the call on all ranks as a mismatch with its
// text, path and ranks, another one as a refusal by rank 0.
using FrameJoiner =
    std::function<absl::StatusOr<std::optional<std::string>>(
        absl::Span<const absl::Span<const char>> payloads)>;

struct CallSpec {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::string name;             // for messages, e.g. "all_reduce 'grads'"
  std::string label;            // the name that the caller gave the call, if any (flight record)
  int64_t leaves = 0;           // of the tree, and their bytes (flight record)
  int64_t bytes = 0;
  absl::uint128 digest = 0;     // of everything that must be equal on all ranks
  absl::uint128 soft_digest = 0;  // of what may differ, e.g. strides
  DescribeCall describe;
  absl::Time deadline = absl::InfiniteFuture();  // InfiniteFuture: the group's timeout from now
  bool restore = false;         // completion round: all ranks succeed, or all fail
  CheckMode check = CheckMode::kAlways;
  bool async = false;           // nobody will wait for the decision at once: wake who serves it
  bool is_frame = false;
  std::string payload;          // frames: the leaves in canonical and logical order
  FrameReducer reduce;          // frames
  // A frame only if all ranks bring one (`is_frame`) and the joined result has at most kMaxFrameBytes,
  // else a data call; Call::is_frame tells. Payloads of any size up to kMaxFrameBytes; `join` in place
  // of `reduce`.
  bool is_open = false;
  FrameJoiner join;
};

// Asked every kWaitSlice by a wait; returns true to interrupt it (Ctrl-C). Called without a lock.
using InterruptCheck = std::function<bool()>;

class Call {
 public:
  virtual ~Call() = default;

  // Number of the call in its group: 1, 2, 3, ...
  virtual uint64_t number() const = 0;
  virtual absl::Time deadline() const = 0;

  // Blocks until the call is decided or ended: OK when granted (or when the frame's result is here).
  // Otherwise the error with which the call ended on this rank; no leaf has changed then, unless its
  // details say otherwise. The caller's thread does the I/O. `interrupt` true withdraws the call.
  virtual absl::Status AwaitDecision(const InterruptCheck& interrupt = nullptr) = 0;
  // Like AwaitDecision, but gives up waiting (not the call) at `until`: false when undecided.
  virtual absl::StatusOr<bool> AwaitDecisionUntil(absl::Time until,
                                                  const InterruptCheck& interrupt = nullptr) = 0;

  // After OK. is_frame: the result is here, there is no data phase. frame_result: the reduced bytes. soft_digests_agree: all ranks posted the same one.
  virtual bool is_frame() const = 0;
  virtual absl::Span<const char> frame_result() const = 0;
  virtual bool soft_digests_agree() const = 0;

  // Data calls after OK: waits for the turn (calls enqueue in the order of their numbers) and opens
  // the data context of the epoch if there is none. An error means that the call has ended.
  virtual absl::StatusOr<std::shared_ptr<DataContext>> EnterData(
      const InterruptCheck& interrupt = nullptr) = 0;
  // All operations of this call are enqueued: lets the next call enqueue. Idempotent.
  virtual void LeaveTurnstile() = 0;
  // Serves the channel without blocking; looks at deadline, abort and loss. An error when the call
  // was ended: stop, the context is being aborted; then call FinishData with that error (which
  // comes back with what FinishData knows). A deadline in data shows here some 0.3 s later, once the
  // ranks agreed on who was late.
  virtual absl::Status Poll() = 0;
  // Ends the data phase. `status` OK: all leaves hold their result (restore: staged; waits for the
  // commit of all ranks, an error means put the old values back). Not OK: reports the failure with the
  // printable paths that are done, waits for the epoch to end (about a second at most) and returns
  // the error to show, with details. Called once. When it returns an error the context is dead and
  // its operations end within about 20 ms: wait for those of this call before leaves are touched.
  virtual absl::Status FinishData(absl::Status status, std::vector<std::string> paths_done,
                                  const InterruptCheck& interrupt = nullptr) = 0;

  // Asks to give the call up (deadline of a waiter, interrupt, destruction).
  virtual void Cancel() = 0;
};

class KeyValueStore;  // distributed/core/channel/key_value_store.h

// Something with threads or sockets of its own that a layer above keeps for a group, and that ends
// with it.
class Companion {
 public:
  virtual ~Companion() = default;
  // Ends what it does, by `until` at the latest as far as peers are concerned. Called once, without
  // a lock, before the group's channel closes; further use must fail.
  virtual void Close(absl::Time until) = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;

  virtual GroupRank rank() const = 0;
  virtual int size() const = 0;
  virtual GlobalRank global_rank(GroupRank rank) const = 0;
  virtual const GroupOptions& options() const = 0;
  virtual Backend& backend() const = 0;

  // Where the group meets: groups that are made of this one meet there too, under longer prefixes.
  virtual const std::shared_ptr<const StoreHolder>& store() const = 0;
  virtual const std::string& prefix() const = 0;
  // What the calls of this group did. Records collectives by itself.
  virtual FlightRecorder& flight() const = 0;

  // Takes the next number and posts the call. FailedPrecondition after Shutdown or fork, Unavailable
  // when a peer is lost (no number is used up on the wire then). Never blocks, but for a full window
  // (64 undecided calls, 1 MiB of payload), within the deadline.
  virtual absl::StatusOr<std::shared_ptr<Call>> Post(CallSpec spec) = 0;

  // A local error in place of a call: takes the next number and tells the other ranks why. Returns
  // `reason` itself, for the caller to raise. Never waits.
  virtual absl::Status Refuse(CollectiveKind kind, absl::Status reason, absl::Time deadline) = 0;

  // Runs `task` in the group's worker thread (made at first use), in order of posting.
  virtual void RunInWorker(absl::AnyInvocable<void()> task) = 0;
  // An async call that nobody waited for failed: the group's next Post returns this error once.
  virtual void RememberError(absl::Status status) = 0;

  virtual absl::Status Shutdown(absl::Duration timeout) = 0;

  // How often groups with this `key` were made of this one on this rank; each time `make` succeeds
  // counts. FailedPrecondition in a forked child. Thread-safe; `make` runs under a lock.
  absl::Status CountSubGroup(const std::string& key,
                             absl::FunctionRef<absl::Status(int earlier)> make) {
    if (process_.forked()) return ProcessCheck::ForkedError();
    absl::MutexLock lock(&sub_groups_mutex_);
    int& earlier = sub_groups_[key];
    absl::Status status = make(earlier);
    if (status.ok()) ++earlier;
    return status;
  }

  // State that the layer of collectives keeps per group (plans, buffers): made by `make` at first
  // use, shared with whoever asks later, dropped with the engine. Thread-safe.
  std::shared_ptr<void> Attachment(absl::FunctionRef<std::shared_ptr<void>()> make) {
    absl::MutexLock lock(&attachment_mutex_);
    if (attachment_ == nullptr) attachment_ = make();
    return attachment_;
  }

  // The group's companion, made by `make` at first use. FailedPrecondition after Shutdown or fork.
  // Thread-safe. (One kind only: that of point-to-point transfers.)
  absl::StatusOr<std::shared_ptr<Companion>> GetCompanion(
      absl::FunctionRef<absl::StatusOr<std::shared_ptr<Companion>>()> make) {
    if (process_.forked()) return ProcessCheck::ForkedError();
    absl::MutexLock lock(&attachment_mutex_);
    if (companion_closed_) return absl::FailedPreconditionError("the group was shut down");
    if (companion_ == nullptr) {
      absl::StatusOr<std::shared_ptr<Companion>> made = make();
      if (!made.ok()) return made.status();
      companion_ = *std::move(made);
    }
    return companion_;
  }

  // The group's store under a prefix below its own: for keys of `purpose` alone. Null in a group of
  // one. Nothing is connected yet.
  virtual std::unique_ptr<KeyValueStore> OpenStore(std::string_view purpose);

 protected:
  // For Shutdown.
  void CloseCompanion(absl::Time until) {
    std::shared_ptr<Companion> companion;
    {
      absl::MutexLock lock(&attachment_mutex_);
      if (companion_closed_) return;
      companion_closed_ = true;
      companion = companion_;
    }
    if (companion != nullptr) companion->Close(until);
  }

 private:
  const ProcessCheck process_;
  absl::Mutex sub_groups_mutex_;
  std::map<std::string, int> sub_groups_ ABSL_GUARDED_BY(sub_groups_mutex_);
  absl::Mutex attachment_mutex_;
  std::shared_ptr<void> attachment_ ABSL_GUARDED_BY(attachment_mutex_);
  std::shared_ptr<Companion> companion_ ABSL_GUARDED_BY(attachment_mutex_);
  bool companion_closed_ ABSL_GUARDED_BY(attachment_mutex_) = false;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_ENGINE_H_
