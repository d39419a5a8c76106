// Who does the I/O, and the end of the mailbox.
#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "distributed/core/channel/key_value_store.h"
#include "distributed/core/channel/thread.h"
#include "distributed/core/flight/dump.h"
#include "distributed/core/interrupted.h"
#include "distributed/mailbox/mailbox.h"
#include "distributed/mailbox/mailbox_internal.h"

namespace leafpack::mailbox {
namespace {

// What a caller that posted an asynchronous transfer has to come and wait, before the thread does.
constexpr absl::Duration kHeadStart = absl::Microseconds(500);
constexpr absl::Duration kFarewellTime = absl::Seconds(1);

}  // namespace

void Mailbox::Lead(absl::FunctionRef<bool()> enough, absl::Time until) {
  pollfd fds[2] = {{epoll_.get(), POLLIN, 0}, {wake_.fd(), POLLIN, 0}};
  mu_.Unlock();
  waiter_.Wait(
      [&] {
        mu_.Lock();
        leader_awake_ = true;
        Pump();
        if (!jobs_.empty() || !trash_.empty()) {
          mu_.Unlock();
          RunJobs();
          mu_.Lock();
        }
        const bool result = enough();
        leader_awake_ = false;
        mu_.Unlock();
        return result;
      },
      [&] { return absl::MakeSpan(fds); }, until);
  if (fds[1].revents != 0) wake_.Drain();
  mu_.Lock();
}

std::optional<absl::Status> Mailbox::WaitUntil(Transfer& transfer, absl::Time until,
                                               const InterruptCheck& interrupt) {
  if (forked()) return ProcessCheck::ForkedError();
  absl::Status result;
  {
    absl::MutexLock lock(&mu_);
    AwaitLocked(transfer, until, interrupt);
    if (!transfer.done) return std::nullopt;
    result = transfer.result;
  }
  // Of what is in no flight record the caller tells.
  if (!result.ok() && options_.flight != nullptr) NoteFlightError(result);
  return result;
}

void Mailbox::AwaitLocked(Transfer& transfer, absl::Time until, const InterruptCheck& interrupt) {
  ++waiters_;
  bool interrupted = false;
  absl::Time asked = absl::Now();
  while (!transfer.done) {
    const absl::Time now = absl::Now();
    if (now >= until) break;
    const absl::Time slice = std::min(until, now + kWaitSlice);
    if (!leading_) {
      leading_ = true;
      Lead([&] { return transfer.done.load(); }, slice);
      leading_ = false;
      changed_.SignalAll();
    } else {
      if (thread_leads_) wake_.Signal();
      changed_.WaitWithDeadline(&mu_, slice);
    }
    if (!interrupt || interrupted || transfer.done || absl::Now() - asked < kWaitSlice / 2) continue;
    asked = absl::Now();
    mu_.Unlock();
    interrupted = IsInterrupted(interrupt);
    mu_.Lock();
    if (!interrupted || transfer.done) continue;
    TransferPtr self;
    for (const auto& [deadline, live] : deadlines_) {
      if (live.get() == &transfer) self = live;
    }
    if (self == nullptr) continue;
    EndAndTell(self,
               Error(transfer, absl::CancelledError("the wait was interrupted"),
                     ErrorKind::kInterrupted),
               GiveUp::kInterrupt);
    until = absl::InfiniteFuture();  // a function of it that runs comes to its end soon
  }
  --waiters_;
  last_use_ = SteadyNow();
  if (unattended_ > 0 || unsent_ > 0) StartThreadLocked();
}

bool Mailbox::IsDone(Transfer& transfer) {
  if (forked() || transfer.done) return true;
  {
    absl::MutexLock lock(&mu_);
    Pump();
  }
  RunJobs();
  return transfer.done;
}

void Mailbox::StartThreadLocked() {
  if (stop_thread_) return;
  if (!thread_started_) {
    absl::StatusOr<std::thread> thread = StartThread("leafpack-p2p", [this] { RunThread(); });
    // Without a thread, waits still work.
    if (!thread.ok()) return;
    thread_ = *std::move(thread);
    thread_started_ = true;
  }
  if (waiters_ == 0) thread_changed_.Signal();
}

void Mailbox::RunThread() {
  absl::MutexLock lock(&mu_);
  while (!stop_thread_) {
    if (unattended_ == 0 && unsent_ == 0) {
      thread_changed_.Wait(&mu_);
      continue;
    }
    if (waiters_ > 0 || leading_) {
      thread_changed_.WaitWithTimeout(&mu_, kWaitSlice);
      continue;
    }
    const absl::Duration idle = absl::Nanoseconds(SteadyNow() - last_use_);
    if (idle < kHeadStart) {
      thread_changed_.WaitWithTimeout(&mu_, kHeadStart - idle);
      continue;
    }
    leading_ = thread_leads_ = true;
    const auto needless = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return stop_thread_ || waiters_ > 0 || unattended_ + unsent_ == 0;
    };
    Lead(needless, absl::Now() + kWaitSlice);
    leading_ = thread_leads_ = false;
    changed_.SignalAll();
  }
}

void Mailbox::LeadUntil(absl::Time end, absl::FunctionRef<bool()> enough) {
  ++waiters_;
  while (!enough()) {
    const absl::Time now = absl::Now();
    if (now >= end) break;
    if (!leading_) {
      leading_ = true;
      Lead(enough, std::min(end, now + kWaitSlice));
      leading_ = false;
      changed_.SignalAll();
    } else {
      if (thread_leads_) wake_.Signal();
      changed_.WaitWithDeadline(&mu_, std::min(end, now + kWaitSlice));
    }
  }
  --waiters_;
}

bool Mailbox::AwaitMatched(absl::Time until, const InterruptCheck& interrupt) {
  if (forked()) return true;
  const auto ended = [this] {
    mu_.AssertHeld();
    return live_ <= static_cast<int>(posted_.size());
  };
  absl::MutexLock lock(&mu_);
  while (!closing_ && !ended()) {
    const absl::Time now = absl::Now();
    if (now >= until) return false;
    LeadUntil(std::min(until, now + kWaitSlice), ended);
    if (interrupt == nullptr || ended()) continue;
    mu_.Unlock();
    const bool interrupted = IsInterrupted(interrupt);
    mu_.Lock();
    if (interrupted) return false;
  }
  return true;
}

void Mailbox::Close(absl::Time until) {
  if (forked()) return;
  const auto give_up = [this](const TransferPtr& transfer) {
    mu_.AssertHeld();
    const int other = transfer->spec.peer.value_or(transfer->source);
    EndAndTell(transfer,
               Error(*transfer, absl::CancelledError("the group was shut down"),
                     ErrorKind::kInterrupted,
                     other < 0 ? std::nullopt : std::optional<int>(other)),
               GiveUp::kCancel);
  };
  {
    absl::MutexLock lock(&mu_);
    if (closing_) return;
    closing_ = true;
    const std::list<TransferPtr> unmatched = posted_;
    for (const TransferPtr& transfer : unmatched) give_up(transfer);
    LeadUntil(until, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return live_ == 0; });
    std::vector<TransferPtr> left;
    for (const auto& [deadline, transfer] : deadlines_) left.push_back(transfer);
    for (const TransferPtr& transfer : left) give_up(transfer);
    LeadUntil(absl::Now() + kFarewellTime,
              [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return busy_ == 0 && jobs_.empty(); });

    ByteWriter farewell;
    farewell.String("the group was shut down");
    const std::string bye = EncodeRecord(RecordType::kBye, 0, std::move(farewell).Take());
    for (const std::unique_ptr<Peer>& peer : peers_) {
      for (Connection* connection : {peer->out.get(), peer->in.get()}) {
        if (connection != nullptr) Queue(*peer, *connection, bye);
      }
    }
    const auto quiet = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      for (const std::unique_ptr<Peer>& peer : peers_) {
        for (const Connection* connection : {peer->out.get(), peer->in.get()}) {
          if (connection != nullptr && connection->writable_wanted) return false;
        }
      }
      return true;
    };
    LeadUntil(absl::Now() + kFarewellTime, quiet);
    Disconnect("the group was shut down");
  }
  StopThread();
}

void Mailbox::Abort(std::string_view why) {
  if (forked()) return;
  {
    absl::MutexLock lock(&mu_);
    if (closing_) return;
    closing_ = true;
    Disconnect(why);
  }
  StopThread();
}

void Mailbox::Disconnect(std::string_view why) {
  for (const std::unique_ptr<Peer>& peer : peers_) {
    peer->farewell.clear();
    Lose(*peer, std::string(why));
  }
  listeners_.clear();
  unproven_.clear();
  stop_thread_ = true;
  flight_ = nullptr;  // its group may go before the last handle of a transfer
  thread_changed_.Signal();
  wake_.Signal();
}

void Mailbox::StopThread() {
  if (thread_.joinable()) thread_.join();
  std::unique_ptr<AddressBook> book;
  {
    absl::MutexLock lock(&mu_);
    book = std::move(book_);
  }
  RunJobs();
}

Mailbox::~Mailbox() {
  if (forked()) return;  // kept for ever by its owner
  Close(absl::Now());
}

}  // namespace leafpack::mailbox
