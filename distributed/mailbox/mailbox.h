// The mailbox of one rank in one group: moves runs of bytes between two ranks, matched by sender and
// tag. It knows nothing of trees (transfer.h does) and nothing of the group's calls: a transfer
// involves two ranks only, so it has no place in the group's sequence. Internal to leafpack.
//
// A rank sends to another one over a connection of its own, made at first use; answers come back on
// it. The sender *offers* a transfer; the receiver matches offers of one sender and tag in order, and
// accepts or refuses; then the bytes move, straight from and into the memory of both. Since only what
// was accepted is ever on its way, nobody has to wait for room, and no two transfers block each other.
//
// Who does the I/O: a caller that waits leads, for all transfers of the mailbox; the others sleep. While
// asynchronous transfers are under way and nobody waits, the mailbox's thread leads (so it does for
// bytes that a full socket did not take); it is made at first need.
#ifndef LEAFPACK_DISTRIBUTED_MAILBOX_MAILBOX_H_
#define LEAFPACK_DISTRIBUTED_MAILBOX_MAILBOX_H_

#include <poll.h>
#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "distributed/core/channel/fork.h"
#include "distributed/core/channel/handshake.h"
#include "distributed/core/channel/waiter.h"
#include "distributed/core/engine.h"
#include "distributed/core/flight/recorder.h"
#include "distributed/core/lost_ranks.h"
#include "distributed/core/error.h"
#include "distributed/core/process_check.h"
#include "distributed/mailbox/address_book.h"
#include "distributed/mailbox/wire.h"

namespace leafpack::mailbox {

// A piece of memory that bytes come from or go to.
struct Segment {
  char* data = nullptr;
  int64_t bytes = 0;
};

// What a transfer is to do. All functions are called without a lock, from any thread, one at a time, and
// never after the transfer has ended.
struct TransferSpec {
  bool is_send = false;
  std::optional<int> peer;  // group rank, not the own one; nullopt: receive from any rank
  Offer offer;              // receives: tag and label; kind; bytes and digest if `has_memory`
  absl::Duration timeout;   // > 0
  bool async = false;       // nobody may come to wait soon
  std::string name;         // for messages: "send 'x'"
  int64_t leaves = 0;       // of a tree, where they are known (flight record)

  // Sends, and receives that know what they get: the memory, offer.bytes in all.
  bool has_memory = false;
  std::vector<Segment> segments;

  // Sends of trees: the encoded description. Asked for once at most.
  std::function<absl::StatusOr<std::string>()> describe;
  // Receives whose offer has another kind, label, digest or number of bytes, or that have no memory:
  // gives the memory, or says why not (kLayoutMismatch, with a path, in the details). `description` is
  // empty unless the offer is a tree.
  std::function<absl::StatusOr<std::vector<Segment>>(int source, const Offer& offer,
                                                     std::string_view description)>
      judge;
  // Receives: all bytes are in the memory.
  std::function<absl::Status()> finish;
  // Owns the memory; dropped when the transfer has ended.
  std::shared_ptr<const void> keep_alive;
};

// One transfer, until its result was fetched. Only Mailbox looks into it.
class Transfer {
 private:
  friend class Mailbox;
  enum class State {
    kPosted,    // send: not offered yet. receive: not matched
    kOffered,   // send: waits for the answer
    kMatched,   // receive: its offer is being looked at
    kMoving,    // bytes move
    kSettling,  // send: all bytes have left. receive: all are here, finish runs
    kDone,
  };
  TransferSpec spec;
  State state = State::kPosted;
  int64_t deadline = 0;   // steady ns
  uint64_t id = 0;        // of the sender's connection
  int source = -1;        // receive: once matched
  size_t segment = 0;     // where the bytes stand
  int64_t offset = 0;
  int64_t moved = 0;
  bool eager = false;
  bool busy = false;      // one of its functions runs
  absl::Status pending;   // ends with this once it is not busy
  absl::Status result;
  FlightRecorder::Ticket flight = 0;
  std::atomic<bool> done{false};
};
using TransferPtr = std::shared_ptr<Transfer>;

struct MailboxOptions {
  int rank = 0;
  std::vector<GlobalRank> global_ranks;  // one for each group rank
  std::string rank_word = "rank";        // what errors call one of `global_ranks`
  std::string interface_name;
  // What the group's control channel learns; null: nothing.
  std::shared_ptr<const LostRanks> lost;
  // Outlives Close; null: nothing is recorded.
  FlightRecorder* flight = nullptr;
};

class Mailbox : public Companion {
 public:
  // The mailbox of the group, made at first use. FailedPrecondition after Shutdown or fork; Unavailable
  // if the system refuses sockets.
  static absl::StatusOr<std::shared_ptr<Mailbox>> Of(Engine& engine);

  static absl::StatusOr<std::shared_ptr<Mailbox>> Open(std::unique_ptr<KeyValueStore> store,
                                                       MailboxOptions options);
  ~Mailbox() override;

  // Starts all of them, in order, as one step. Never blocks for long. Specs were checked by the caller.
  absl::StatusOr<std::vector<TransferPtr>> Post(std::vector<TransferSpec> specs);
  // Returns when the transfer has ended, or nullopt at `until`. `interrupt` true gives it up.
  std::optional<absl::Status> WaitUntil(Transfer& transfer, absl::Time until,
                                        const InterruptCheck& interrupt) ABSL_LOCKS_EXCLUDED(mu_);
  bool IsDone(Transfer& transfer);
  void Cancel(const TransferPtr& transfer);
  // After the end: the group rank that it came from, -1 if it was not matched.
  int source(const Transfer& transfer) const;

  // Waits until sends and matched receives have ended: what Close does first, but for `interrupt`, which is
  // asked every kWaitSlice and whose true ends the wait. False if some have not.
  bool AwaitMatched(absl::Time until, const InterruptCheck& interrupt) ABSL_LOCKS_EXCLUDED(mu_);
  // Sends and matched receives go on until `until`; other receives are given up. Then says farewell.
  void Close(absl::Time until) override;
  // Ends all transfers at once, with `why`; tells nobody, and closes the connections. Idempotent.
  void Abort(std::string_view why) ABSL_LOCKS_EXCLUDED(mu_);

  // What the layer of trees keeps beside it: made by `make` at first use. Thread-safe.
  std::shared_ptr<void> Attachment(absl::FunctionRef<std::shared_ptr<void>()> make) {
    absl::MutexLock lock(&attachment_mutex_);
    if (attachment_ == nullptr) attachment_ = make();
    return attachment_;
  }

  bool forked() const { return process_.forked(); }
  int rank() const { return options_.rank; }
  GlobalRank global_rank(int rank) const { return options_.global_ranks[static_cast<size_t>(rank)]; }

 private:
  using Nanos = int64_t;  // of the steady clock

  // One connection to or from a rank.
  struct Connection {
    TrackedFd fd;
    bool outgoing = false;
    bool writable_wanted = false;
    bool write_failed = false;  // nothing more is written; what was sent to us is still read
    bool dead = false;          // its end was read, or reading failed
    std::string reason;
    // Writing: whole records, then perhaps a chunk of data.
    std::deque<std::string> queue;
    size_t queue_offset = 0;
    std::string chunk_head;  // what is left of its header
    bool in_chunk = false;
    TransferPtr chunk;       // whose data; null once it was cut off, and chunk_tail has the rest
    size_t chunk_left = 0;
    std::string chunk_tail;
    size_t chunk_tail_offset = 0;
    // Reading.
    std::unique_ptr<char[]> buffer;
    size_t begin = 0;
    size_t end = 0;
    size_t data_left = 0;    // of the kData record that is being read
    uint64_t data_id = 0;
  };

  // An offer that arrived and is not over.
  struct Inbound {
    Offer offer;
    bool is_eager = false;
    std::string eager;        // its bytes, until they are received
    uint64_t arrival = 0;     // order over all senders
    TransferPtr receive;      // null: not matched, or given up
    bool abandoned = false;   // was matched and given up: what still comes is thrown away
    bool withdrawn = false;
    std::string why;          // of the withdrawal
    GiveUp give_up = GiveUp::kDeadline;
    int64_t received = 0;
    bool needed = false;      // the description was asked for
    std::string description;
  };

  // How a connection to a rank comes about.
  enum class Reach { kNone, kLooking, kConnecting, kGreeting, kOpen };

  struct Peer {
    int rank = 0;
    bool lost = false;
    std::string lost_why;
    std::string farewell;  // of a BYE
    Nanos bury_at = 0;     // one connection of two died then, or the control channel told, and some time
    std::string channel_why;  // what the control channel told

    Reach reach = Reach::kNone;
    std::unique_ptr<Connection> out;  // kOpen
    TrackedFd attempt;
    std::string greeting;             // what was read of the answer
    Rendezvous address;
    bool has_address = false;
    size_t next_address = 0;
    Nanos retry_at = 0;
    Nanos retry_pause = 0;
    Nanos attempt_until = 0;
    std::string problem;

    std::deque<TransferPtr> waiting;        // sends that are not offered yet
    std::map<uint64_t, TransferPtr> sends;  // offered
    std::deque<TransferPtr> sending;        // accepted, with bytes to go
    uint64_t next_id = 1;
    int64_t eager_out = 0;

    std::unique_ptr<Connection> in;
    std::map<uint64_t, Inbound> offers;
    uint64_t last_offer = 0;
    int64_t eager_in = 0;
    size_t waiting_offers = 0;
    size_t tombstones = 0;
  };

  struct Unproven {
    TrackedFd fd;
    Nanos deadline = 0;
    std::string read;
  };

  // A function of a transfer that is to run without the lock.
  struct Job {
    enum class Kind { kDescribe, kJudge, kFinish } kind;
    TransferPtr transfer;
    Offer offer;
    std::string description;
  };

  explicit Mailbox(MailboxOptions options);

  // ---- mailbox.cc: transfers
  std::string Who(int rank) const;
  absl::Status Error(const Transfer& transfer, absl::Status status, ErrorKind kind,
                     std::optional<int> about = std::nullopt) const;
  void PostLocked(const TransferPtr& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Offers sends that wait for the connection, or for earlier ones to be received.
  void OfferMore(Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OfferOut(Peer& peer, const TransferPtr& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Match(Peer& peer, uint64_t id, Inbound& inbound, const TransferPtr& receive)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Accept(Peer& peer, uint64_t id, Inbound& inbound) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AllHere(Peer& peer, const TransferPtr& receive) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Refuse(Peer& peer, const TransferPtr& receive, absl::Status status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends it on this rank alone.
  void End(const TransferPtr& transfer, absl::Status result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends it and tells the other rank. Waits for a function of it that runs.
  void EndAndTell(const TransferPtr& transfer, absl::Status result, GiveUp why)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FireTimers(Nanos now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string WhyLate(const Transfer& transfer) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Runs queued functions; takes and releases the lock.
  void RunJobs() ABSL_LOCKS_EXCLUDED(mu_);
  void ApplyJob(Job& job, absl::Status status, std::string description,
                std::vector<Segment> segments) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartJob(Job::Kind kind, const TransferPtr& transfer, Offer offer = {},
                std::string description = {}) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // ---- mailbox_wait.cc: who leads
  void Lead(absl::FunctionRef<bool()> enough, absl::Time until) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LeadUntil(absl::Time end, absl::FunctionRef<bool()> enough)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AwaitLocked(Transfer& transfer, absl::Time until, const InterruptCheck& interrupt)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunThread();
  void StartThreadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The last steps of Close and Abort, with the lock and then without.
  void Disconnect(std::string_view why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StopThread() ABSL_LOCKS_EXCLUDED(mu_);

  // ---- mailbox_io.cc
  // Does what can be done without blocking.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Watch(int fd, uint64_t what, uint32_t events, bool add) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Queue(Peer& peer, Connection& connection, std::string record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Flush(Peer& peer, Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void StartChunk(Peer& peer, Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Wrote(Peer& peer, Connection& connection, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Read(Peer& peer, Connection& connection, size_t budget) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Parse(Peer& peer, Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool OnRecord(Peer& peer, bool incoming, const Header& header, std::string_view body)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool OnSenderRecord(Peer& peer, const Header& header, std::string_view body)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool OnReceiverRecord(Peer& peer, const Header& header, std::string_view body)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool BeginData(Peer& peer, uint64_t id, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GotData(Peer& peer, Connection& connection, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // After a connection of it died: reads the other one to its end, then gives the rank up.
  void Bury(Peer& peer, Nanos now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Lose(Peer& peer, std::string why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SetWritableWanted(Peer& peer, Connection& connection, bool wanted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // After the control channel lost ranks: those that never connected are given up a little later.
  void HearOfLosses(Nanos now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AllLost() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Copies what a chunk under way still needs of the memory of `transfer`.
  void CutChunk(Peer& peer, const TransferPtr& transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // ---- mailbox_connect.cc
  absl::Status Listen();
  void Seek(Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnAddresses() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TryNext(Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnAttempt(Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveUpAttempt(Peer& peer, std::string why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Opened(Peer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PauseListeners(int error) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnListener(size_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnUnproven(uint64_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FireConnectTimers(Nanos now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const MailboxOptions options_;
  const ProcessCheck process_;
  Rendezvous rendezvous_;

  absl::Mutex attachment_mutex_;
  std::shared_ptr<void> attachment_ ABSL_GUARDED_BY(attachment_mutex_);

  mutable absl::Mutex mu_;
  absl::CondVar changed_;         // waiters
  absl::CondVar thread_changed_;  // the mailbox's thread
  bool leading_ ABSL_GUARDED_BY(mu_) = false;
  bool thread_leads_ ABSL_GUARDED_BY(mu_) = false;
  bool leader_awake_ ABSL_GUARDED_BY(mu_) = false;  // it looks at what it waits for before it sleeps
  int waiters_ ABSL_GUARDED_BY(mu_) = 0;
  int unattended_ ABSL_GUARDED_BY(mu_) = 0;  // asynchronous transfers under way
  Nanos last_use_ ABSL_GUARDED_BY(mu_) = 0;
  Waiter waiter_;  // the leader's
  WakeEvent wake_;

  std::unique_ptr<AddressBook> book_;
  std::string store_problem_ ABSL_GUARDED_BY(mu_);
  std::set<int> seeking_ ABSL_GUARDED_BY(mu_);  // ranks that are being connected
  std::set<int> burying_ ABSL_GUARDED_BY(mu_);
  std::vector<TrackedFd> listeners_ ABSL_GUARDED_BY(mu_);
  Nanos listen_at_ ABSL_GUARDED_BY(mu_) = 0;     // paused until then, for want of descriptors; 0: not
  Nanos listen_pause_ ABSL_GUARDED_BY(mu_) = 0;  // the last one
  bool listen_told_ ABSL_GUARDED_BY(mu_) = false;
  size_t losses_heard_ ABSL_GUARDED_BY(mu_) = 0;
  FlightRecorder* flight_ ABSL_GUARDED_BY(mu_);  // null once closed
  uint64_t posted_count_ ABSL_GUARDED_BY(mu_) = 0;
  TrackedFd epoll_;
  std::map<uint64_t, Unproven> unproven_ ABSL_GUARDED_BY(mu_);
  uint64_t next_unproven_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::unique_ptr<Peer>> peers_ ABSL_GUARDED_BY(mu_);
  std::list<TransferPtr> posted_ ABSL_GUARDED_BY(mu_);  // receives that are not matched, in order
  std::set<std::pair<Nanos, TransferPtr>> deadlines_ ABSL_GUARDED_BY(mu_);  // of all live transfers
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mu_);
  int busy_ ABSL_GUARDED_BY(mu_) = 0;
  int live_ ABSL_GUARDED_BY(mu_) = 0;  // transfers that have not ended
  int unsent_ ABSL_GUARDED_BY(mu_) = 0;  // connections that have something to write
  uint64_t arrivals_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::shared_ptr<const void>> trash_ ABSL_GUARDED_BY(mu_);  // freed without the lock
  bool closing_ ABSL_GUARDED_BY(mu_) = false;

  std::unique_ptr<char[]> scratch_;  // data that nobody wants any more
  std::thread thread_;
  bool thread_started_ ABSL_GUARDED_BY(mu_) = false;
  bool stop_thread_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace leafpack::mailbox

#endif  // LEAFPACK_DISTRIBUTED_MAILBOX_MAILBOX_H_
