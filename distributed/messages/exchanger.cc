#include "distributed/messages/exchanger.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include "absl/time/time.h"

#include "distributed/core/channel/thread.h"

namespace leafpack::messages {
namespace {

int64_t ByteCount(const LeafView& view) {
  int64_t count = static_cast<int64_t>(c10::elementSize(view.dtype));
  for (int64_t size : view.sizes) count *= size;
  return count;
}

}  // namespace

class Exchanger::Exchange {
 public:
  Exchange(std::vector<Transfer> sends, std::vector<Transfer> receives)
      : sends_(std::move(sends)), receives_(std::move(receives)) {}

  bool IsDone() const {
    absl::MutexLock lock(&mutex_);
    return done_;
  }
  absl::StatusOr<bool> WaitFor(absl::Duration slice) const {
    absl::MutexLock lock(&mutex_);
    if (!mutex_.AwaitWithTimeout(absl::Condition(&done_), slice)) return false;
    if (!status_.ok()) return status_;
    return true;
  }
  // Messages go before the memory that they point to.
  void Finish(const absl::Status& status) {
    messages_.clear();
    sends_.clear();
    receives_.clear();
    absl::MutexLock lock(&mutex_);
    status_ = status;
    done_ = true;
  }

 private:
  friend class Exchanger;
  std::vector<Transfer> sends_, receives_;  // of the exchanger, until done
  std::vector<std::unique_ptr<Message>> messages_;  // of the exchanger, until done

  mutable absl::Mutex mutex_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class Exchanger::Work : public DataWork {
 public:
  explicit Work(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}
  bool IsDone() override { return exchange_->IsDone(); }
  absl::StatusOr<bool> WaitFor(absl::Duration slice) override { return exchange_->WaitFor(slice); }

 private:
  const std::shared_ptr<Exchange> exchange_;
};

Exchanger::~Exchanger() {
  bool idle;
  {
    absl::MutexLock lock(&mutex_);
    idle = active_.empty();
  }
  if (!idle) Abort();
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<std::unique_ptr<DataWork>> Exchanger::Start(std::vector<Transfer> sends,
                                                           std::vector<Transfer> receives) {
  {
    absl::MutexLock lock(&mutex_);
    if (!failed_.ok()) return failed_;
  }
  if (!thread_.joinable()) {
    absl::StatusOr<std::thread> thread = StartThread("lp-exchange", [this] { Loop(); });
    if (!thread.ok()) return thread.status();
    thread_ = *std::move(thread);
  }
  auto exchange = std::make_shared<Exchange>(std::move(sends), std::move(receives));
  if (absl::Status status = Post(*exchange); !status.ok()) {
    status = Fail(status);  // the thread drops the others
    exchange->Finish(status);
    return status;
  }
  if (exchange->messages_.empty()) {
    exchange->Finish(absl::OkStatus());
  } else {
    absl::MutexLock lock(&mutex_);
    active_.push_back(exchange);
  }
  return std::make_unique<Work>(std::move(exchange));
}

absl::Status Exchanger::Post(Exchange& exchange) {
  const bool receive_first = link_->schedule().receive_first;
  if (absl::Status status = PostAll(exchange, !receive_first); !status.ok()) return status;
  return PostAll(exchange, receive_first);
}

absl::Status Exchanger::PostAll(Exchange& exchange, bool send) {
  const bool many_runs = link_->schedule().min_run_bytes > 0;
  std::vector<Run> runs;
  const auto post = [&](int peer) -> absl::Status {
    if (runs.empty()) return absl::OkStatus();
    absl::StatusOr<std::unique_ptr<Message>> message =
        send ? link_->Send(peer, MessageLink::kExchangeTag, runs)
             : link_->Receive(peer, MessageLink::kExchangeTag, runs);
    runs.clear();
    if (message.ok()) exchange.messages_.push_back(*std::move(message));
    return message.status();
  };
  for (const Transfer& transfer : send ? exchange.sends_ : exchange.receives_) {
    for (const LeafView& view : transfer.views) {
      const int64_t bytes = ByteCount(view);
      if (bytes == 0) continue;
      runs.push_back({static_cast<char*>(view.data), bytes});
      if (many_runs) continue;
      if (absl::Status status = post(transfer.peer); !status.ok()) return status;
    }
    if (absl::Status status = post(transfer.peer); !status.ok()) return status;
  }
  return absl::OkStatus();
}

void Exchanger::Abort() {
  Fail(absl::CancelledError("the data context was aborted")).IgnoreError();
}

absl::Status Exchanger::Fail(const absl::Status& status) {
  absl::Status first;
  {
    absl::MutexLock lock(&mutex_);
    if (failed_.ok()) failed_ = status;
    first = failed_;
  }
  link_->Abort();
  return first;
}

void Exchanger::Loop() {
  while (true) {
    std::shared_ptr<Exchange> exchange;
    absl::Status status;
    {
      absl::MutexLock lock(&mutex_);
      const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !active_.empty();
      };
      mutex_.Await(absl::Condition(&has_work));
      if (active_.empty()) return;
      exchange = active_.front();
      status = failed_;
    }
    for (const std::unique_ptr<Message>& message : exchange->messages_) {
      if (status.ok()) status = link_->Wait(*message);
    }
    if (!status.ok()) {
      DropAll(status);
      continue;
    }
    {
      absl::MutexLock lock(&mutex_);
      active_.pop_front();
    }
    exchange->Finish(absl::OkStatus());
  }
}

void Exchanger::DropAll(const absl::Status& status) {
  const absl::Status first = Fail(status);
  std::deque<std::shared_ptr<Exchange>> dropped;
  {
    absl::MutexLock lock(&mutex_);
    dropped.swap(active_);
  }
  for (const std::shared_ptr<Exchange>& exchange : dropped) exchange->Finish(first);
}

}  // namespace leafpack::messages
