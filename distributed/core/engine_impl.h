// The engine of a group of two or more ranks: one mutex around the state machines of the protocol,
// the links of the star, the turnstile of the data path and the contexts of its epochs.
//
// Who does the I/O: the first caller that waits leads (engine_wait.cc); while nobody waits the
// process's understudy does (engine_io.cc). The mutex is held for microseconds, never while sleeping
// and never while user code, a backend or a destructor of leaves runs: what has to be done without it
// is gathered in a Deferred and executed after it was released.
#ifndef LEAFPACK_DISTRIBUTED_CORE_ENGINE_IMPL_H_
#define LEAFPACK_DISTRIBUTED_CORE_ENGINE_IMPL_H_

#include <poll.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "distributed/core/backend.h"
#include "distributed/core/channel/connector.h"
#include "distributed/core/channel/link.h"
#include "distributed/core/channel/understudy.h"
#include "distributed/core/channel/waiter.h"
#include "distributed/core/engine.h"
#include "distributed/core/engine_worker.h"
#include "distributed/core/error.h"
#include "distributed/core/lost_ranks.h"
#include "distributed/core/protocol/coordinator_machine.h"
#include "distributed/core/protocol/rank_machine.h"
#include "distributed/core/protocol/record.h"
#include "distributed/core/protocol/types.h"

namespace leafpack {

// What Group::Create has checked.
struct EngineConfig {
  std::shared_ptr<const StoreHolder> store;
  std::string prefix;
  GroupRank rank = GroupRank(0);
  int size = 1;
  std::vector<GlobalRank> global_ranks;  // one for each group rank
  GroupOptions options;
  std::shared_ptr<Backend> backend;
  std::shared_ptr<FlightRecorder> flight;
};

// Now on the steady clock of the protocol.
protocol::SteadyNanos SteadyNow();
// The point of the steady clock that `time` is now; kNever for InfiniteFuture.
protocol::SteadyNanos ToSteady(absl::Time time);
absl::Time FromSteady(protocol::SteadyNanos steady);

// A call as the engine knows it. Guarded by the engine's mutex until `ended` (or, for frames and
// decisions, until a wait saw it); what an outcome says does not change afterwards.
struct CallState {
  uint64_t number = 0;
  std::string name;
  absl::Time deadline;
  bool restore = false;
  absl::uint128 digest = 0;
  FlightRecorder::Ticket flight = 0;
  bool learns = false;  // a grant says that the digest was agreed (for CheckMode::kFirst)
  DescribeCall describe;
  FrameReducer reduce;
  FrameJoiner join;  // of an open call

  bool granted = false;
  bool soft_equal = false;
  bool reported = false;  // FinishData was called
  uint32_t epoch = 0;     // of the grant
  bool ended = false;
  protocol::SteadyNanos settled_at = 0;  // when it was granted or ended last
  protocol::Outcome outcome;
  std::string channel_problem;  // why there was no channel when it ended
  bool store_fails = false;     // it says that of the store
};

// The data context of one epoch. Guarded by the engine's mutex; `context` is set once.
struct EpochData {
  uint32_t epoch = 0;
  bool opening = false;
  bool opened = false;  // `status` and `context` are set
  absl::Status status;
  std::shared_ptr<DataContext> context;
  bool dead = false;        // aborted: takes no more work
  bool abort_done = false;  // Abort() has returned, or there was nothing to abort
};

class EngineImpl final : public Engine,
                         public Understudy::Client,
                         public KnowsLostRanks,
                         public std::enable_shared_from_this<EngineImpl> {
 public:
  // Never destroyed in a forked child: what it owns belongs to the parent.
  static std::shared_ptr<EngineImpl> Create(EngineConfig config);
  ~EngineImpl() override = default;  // was shut down by the last handle of its group

  GroupRank rank() const override { return config_.rank; }
  int size() const override { return config_.size; }
  GlobalRank global_rank(GroupRank rank) const override {
    return config_.global_ranks[static_cast<size_t>(rank.value())];
  }
  const GroupOptions& options() const override { return config_.options; }
  Backend& backend() const override { return *config_.backend; }
  const std::shared_ptr<const StoreHolder>& store() const override { return config_.store; }
  const std::string& prefix() const override { return config_.prefix; }
  FlightRecorder& flight() const override { return *config_.flight; }

  absl::StatusOr<std::shared_ptr<Call>> Post(CallSpec spec) override;
  absl::Status Refuse(CollectiveKind kind, absl::Status reason, absl::Time deadline) override;
  void RunInWorker(absl::AnyInvocable<void()> task) override;
  void RememberError(absl::Status status) override;
  absl::Status Shutdown(absl::Duration timeout) override;
  // Until no call is in flight. True if so.
  bool AwaitIdle(absl::Time until, const InterruptCheck& interrupt);
  std::unique_ptr<KeyValueStore> OpenStore(std::string_view purpose) override;
  std::shared_ptr<const LostRanks> WatchLostRanks() override;
  // The exit hook's: like Shutdown, but does not free what backends made.
  void ShutdownAtExit(absl::Time until);

  Understudy::Next OnReady(absl::Time now) override;
  Understudy::Next OnTick(absl::Time now) override;

 private:
  friend class CallImpl;

  // What is to be done once the mutex is released.
  struct Deferred {
    absl::InlinedVector<std::shared_ptr<EpochData>, 1> aborts;
    absl::InlinedVector<std::pair<uint64_t, DescribeCall>, 1> manifests;
    absl::InlinedVector<std::shared_ptr<CallState>, 2> garbage;
    bool empty() const { return aborts.empty() && manifests.empty() && garbage.empty(); }
  };
  enum class WaitEnd { kDone, kTimeout, kInterrupted };

  // One connection of the star with what was read from it.
  struct Peer {
    Link link;
    protocol::RecordParser parser;
    std::vector<protocol::Record> held;  // from a WITHDRAW on, while other links are still unread
    bool watched = false;        // by the understudy
    bool write_watched = false;  // for writing too
    bool gone = false;  // the machines know
  };

  // Digests that are remembered as agreed.
  static constexpr size_t kMaxAgreed = 4096;
  // Rank 0 reads what has arrived before it posts if nobody did for so long: it may have been stopped.
  static constexpr protocol::SteadyNanos kStale = 100 * protocol::kMillisecond;
  // Looks at the channel between two yields of a waiting caller, where every rank may have a core.
  static constexpr int kPollsPerYield = 64;
  // What one read takes at most.
  static constexpr size_t kScratchBytes = size_t{64} << 10;

  explicit EngineImpl(EngineConfig config);

  // ---- engine_issue.cc
  absl::Status CheckUsable() const;
  absl::Status StartChannel() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PostLocked(const std::shared_ptr<CallState>& call, protocol::CallSpec issue,
                  const CallSpec& spec, Deferred& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void IssueRefusal(CollectiveKind kind, std::string_view reason, Deferred& out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropCall(const std::shared_ptr<CallState>& call);

  // ---- engine_io.cc. All need the mutex but Execute and the understudy's.
  // Reads all that has arrived, fires timers, sends what may leave. Everything that happens to calls
  // shows in their states; waiters are woken.
  void Pump(Deferred& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends what may leave and settles what follows from it, without reading.
  void Drain(protocol::SteadyNanos now, Deferred& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StepConnector(protocol::SteadyNanos now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool ReadPeer(int index, protocol::SteadyNanos now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void HandHeldRecords(protocol::SteadyNanos now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FailPeer(int index, protocol::LostKind kind, std::string_view reason,
                protocol::SteadyNanos now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Who is gone by a record from group rank `from`, before the machines have it.
  void NoteLost(int from, const protocol::Record& record);
  void ClosePeer(Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SendTo(int index, const protocol::Record& record, protocol::SteadyNanos now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ApplyRankAction(protocol::RankAction action, Deferred& out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<protocol::FrameOutcome> MismatchOrError(const absl::Status& status) const;
  absl::StatusOr<protocol::FrameOutcome> ReduceFrame(uint64_t call,
                                          absl::Span<const std::string_view> payloads)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  protocol::SteadyNanos NextTimer() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool WantsWrite() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Wakes whoever waits, the leader too if it sleeps.
  void WakeWaiters() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Lets the leader, or else the understudy, take note of queued bytes and new timers.
  void NoteChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Execute(Deferred& deferred, bool in_understudy = false) ABSL_LOCKS_EXCLUDED(mu_);
  Understudy::Next Serve() ABSL_LOCKS_EXCLUDED(mu_);
  // Tells peers with a lane that somebody reads it all the time, or that they must wake this process.
  void WakeLanes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // True: there is something to read already.
  bool SleepLanes() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Has the understudy watch for room to write where bytes wait, and only there.
  void UpdateWatches() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Span<pollfd> PollFds() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // ---- engine_wait.cc
  // Waits until `done` (called with the mutex held), leading if nobody does.
  WaitEnd Wait(absl::FunctionRef<bool()> done, protocol::SteadyNanos until,
               const InterruptCheck& interrupt) ABSL_LOCKS_EXCLUDED(mu_);
  WaitEnd Lead(absl::FunctionRef<bool()> done, protocol::SteadyNanos until, bool may_be_interrupted)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<bool> AwaitDecision(CallState& call, protocol::SteadyNanos until,
                                     const InterruptCheck& interrupt);
  // Waits until the call ended; an interrupt gives it up, which ends it soon.
  void AwaitEnd(CallState& call, const InterruptCheck& interrupt);
  // True when the kernel has all that must outlive this process for the call to count elsewhere.
  bool Settled(const CallState& call) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Withdraw(uint64_t number, protocol::WithdrawKind kind);

  // ---- engine_data.cc
  absl::StatusOr<std::shared_ptr<DataContext>> EnterData(CallState& call,
                                                         const InterruptCheck& interrupt);
  void LeaveTurnstile(CallState& call);
  absl::Status Poll(CallState& call);
  absl::Status FinishData(CallState& call, absl::Status status,
                          std::vector<std::string> paths_done, const InterruptCheck& interrupt);
  std::shared_ptr<EpochData> StartOpening(uint32_t epoch, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OpenContext(std::shared_ptr<EpochData> data, absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<std::string> AwaitSession(const EpochData& data, absl::Time deadline);
  absl::StatusOr<std::shared_ptr<DataContext>> OpenContextOrError(const EpochData& data,
                                                                  absl::Time deadline)
      ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status FreeDeadContexts(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  void AbortEpoch(uint32_t epoch, Deferred& out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // ---- engine_errors.cc
  // How the call ended, as its caller is to see it; OK when it ended well.
  absl::Status EndStatus(const CallState& call) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // ---- engine_shutdown.cc
  // Drains, withdraws what is left, says farewell, closes. False when somebody else did.
  bool Close(absl::Time until);

  const EngineConfig config_;
  const uint64_t fork_generation_;

  absl::Mutex mu_;
  absl::CondVar changed_;  // with mu_
  bool leading_ ABSL_GUARDED_BY(mu_) = false;
  bool leader_sleeps_ ABSL_GUARDED_BY(mu_) = false;
  protocol::SteadyNanos leader_wakes_at_ ABSL_GUARDED_BY(mu_) = 0;
  int waiters_ ABSL_GUARDED_BY(mu_) = 0;
  Waiter waiter_;  // the leader's
  WakeEvent wake_;
  std::vector<pollfd> poll_fds_;  // the leader's

  protocol::RankMachine machine_ ABSL_GUARDED_BY(mu_);
  std::optional<protocol::CoordinatorMachine> coordinator_ ABSL_GUARDED_BY(mu_);
  // Scratch of Pump and Drain: actions that are not yet carried out.
  protocol::RankActions rank_actions_ ABSL_GUARDED_BY(mu_);
  protocol::CoordinatorActions coordinator_actions_ ABSL_GUARDED_BY(mu_);

  bool started_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Connector> connector_ ABSL_GUARDED_BY(mu_);  // until all are in
  int connector_fd_ ABSL_GUARDED_BY(mu_) = -1;                 // as watched
  absl::Status channel_failure_ ABSL_GUARDED_BY(mu_);
  bool all_local_ ABSL_GUARDED_BY(mu_) = false;
  // Keeps the keys of data contexts apart from those of an earlier group over the same store.
  std::string session_ ABSL_GUARDED_BY(mu_);
  // Rank 0: one for each group rank, its own unused. Other ranks: one, to rank 0.
  std::vector<std::unique_ptr<Peer>> peers_ ABSL_GUARDED_BY(mu_);
  bool has_lanes_ ABSL_GUARDED_BY(mu_) = false;
  bool lanes_awake_ ABSL_GUARDED_BY(mu_) = false;
  bool understudy_listens_ ABSL_GUARDED_BY(mu_) = true;  // descriptors are armed, as far as is known
  std::unique_ptr<char[]> scratch_ ABSL_GUARDED_BY(mu_);
  bool any_held_ ABSL_GUARDED_BY(mu_) = false;  // some peer's `held` is not empty
  protocol::SteadyNanos pumped_at_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<Understudy::Registration> registration_ ABSL_GUARDED_BY(mu_);

  const std::shared_ptr<LostRanks> lost_ = std::make_shared<LostRanks>();

  // Calls that have not ended, by number.
  std::map<uint64_t, std::shared_ptr<CallState>> calls_ ABSL_GUARDED_BY(mu_);
  // Freed by the next caller, where the understudy may not.
  std::vector<std::shared_ptr<CallState>> trash_ ABSL_GUARDED_BY(mu_);
  // Digests that were agreed, for CheckMode::kFirst.
  absl::flat_hash_set<absl::uint128> agreed_ ABSL_GUARDED_BY(mu_);
  absl::Status remembered_ ABSL_GUARDED_BY(mu_);

  // Data calls that were granted and have not left the turnstile, by number.
  std::set<uint64_t> turnstile_ ABSL_GUARDED_BY(mu_);
  std::optional<uint32_t> stopped_epoch_ ABSL_GUARDED_BY(mu_);  // enqueues nothing more
  uint32_t first_live_epoch_ ABSL_GUARDED_BY(mu_) = 0;          // earlier ones were aborted
  std::map<uint32_t, std::shared_ptr<EpochData>> epochs_ ABSL_GUARDED_BY(mu_);  // live
  std::vector<std::shared_ptr<EpochData>> dead_ ABSL_GUARDED_BY(mu_);

  bool closing_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;

  WorkerQueue worker_;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_ENGINE_IMPL_H_
