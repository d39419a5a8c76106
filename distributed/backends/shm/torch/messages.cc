#include "distributed/backends/shm/torch/messages.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "distributed/backends/shm/view_bytes.h"

namespace leafpack::shm {

LeafView Messages::Bytes(std::shared_ptr<const void> keep_alive, void* data, size_t count) {
  LeafView view;
  view.data = data;
  view.dtype = at::kByte;
  view.sizes = {static_cast<int64_t>(count)};
  view.strides = {1};
  view.keep_alive = std::move(keep_alive);
  return view;
}

void Messages::Add(std::shared_ptr<Message> message) {
  Count(*message);
  {
    absl::MutexLock lock(&jobs_mutex_);
    if (message->is_send) {
      sends_.push_back(message);
      auto header = std::make_shared<Header>(
          Header{static_cast<uint64_t>(message->tag), message->bytes,
                 static_cast<uint64_t>(message->dtype)});
      std::vector<LeafView> views = std::move(message->views);
      views.insert(views.begin(), Bytes(header, header->data(), sizeof(Header)));
      absl::StatusOr<std::unique_ptr<DataWork>> work =
          memory_->Exchange({{message->peer, std::move(views)}}, {});
      if (work.ok()) {
        message->work = *std::move(work);
      } else if (broken_.ok()) {
        broken_ = work.status();
      }
    } else {
      posted_.push_back(message);
      if (absl::Status status = ReadHeaders(); !status.ok() && broken_.ok()) broken_ = status;
    }
  }
  Added(*message);
}

void Messages::Abort() { memory_->Abort(); }

std::vector<Runner::Ended> Messages::Move(absl::Time until) {
  std::vector<Ended> ended;
  while (true) {
    {
      absl::MutexLock lock(&jobs_mutex_);
      if (broken_.ok()) broken_ = Step(ended);
      if (!broken_.ok()) {
        memory_->Abort();
        const auto fail = [&](std::shared_ptr<Message> message)
                              ABSL_EXCLUSIVE_LOCKS_REQUIRED(jobs_mutex_) {
          message->work = nullptr;
          ended.push_back({std::move(message), broken_});
        };
        for (auto& message : sends_) fail(std::move(message));
        for (auto& message : posted_) fail(std::move(message));
        sends_.clear();
        posted_.clear();
        for (Inbox& inbox : inboxes_) {
          if (inbox.target != nullptr) fail(std::move(inbox.target));
          inbox = Inbox();
        }
      }
      if (!ended.empty() || absl::Now() >= until) return ended;
    }
    memory_->WaitForNews(until);
  }
}

absl::Status Messages::ReadHeaders() {
  for (size_t peer = 0; peer < inboxes_.size(); ++peer) {
    Inbox& inbox = inboxes_[peer];
    if (inbox.work != nullptr || static_cast<int>(peer) == memory_->rank()) continue;
    const bool wanted = std::any_of(posted_.begin(), posted_.end(), [&](const auto& receive) {
      return receive->peer < 0 || receive->peer == static_cast<int>(peer);
    });
    if (!wanted) continue;
    inbox.header = std::make_shared<Header>();
    inbox.has_header = false;
    absl::StatusOr<std::unique_ptr<DataWork>> work = memory_->Exchange(
        {}, {{static_cast<int>(peer),
              {Bytes(inbox.header, inbox.header->data(), sizeof(Header))}}});
    if (!work.ok()) return work.status();
    inbox.work = *std::move(work);
  }
  return absl::OkStatus();
}

std::shared_ptr<Message> Messages::TakePosted(int peer, int64_t tag) {
  for (auto it = posted_.begin(); it != posted_.end(); ++it) {
    if (((*it)->peer >= 0 && (*it)->peer != peer) || (*it)->tag != tag) continue;
    std::shared_ptr<Message> found = std::move(*it);
    posted_.erase(it);
    return found;
  }
  return nullptr;
}

absl::Status Messages::Fits(const Message& receive, int peer, const Header& header) const {
  const auto dtype = static_cast<at::ScalarType>(header[2]);
  if (receive.bytes == header[1] && receive.dtype == dtype) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("group rank ", peer, " sent ", header[1], " bytes of ", c10::toString(dtype),
                   " with tag ", receive.tag, ", group rank ", memory_->rank(), " expects ",
                   receive.bytes, " bytes of ", c10::toString(receive.dtype)));
}

absl::Status Messages::TakeHeader(int peer, Inbox& inbox, std::vector<Ended>& ended) {
  const Header& header = *inbox.header;
  inbox.has_header = true;
  inbox.target = TakePosted(peer, static_cast<int64_t>(header[0]));
  inbox.drop = false;
  std::vector<LeafView> views;
  if (inbox.target != nullptr) {
    if (absl::Status status = Fits(*inbox.target, peer, header); !status.ok()) {
      ended.push_back({std::exchange(inbox.target, nullptr), std::move(status)});
      inbox.drop = true;
    } else {
      views = inbox.target->views;
    }
  }
  if (inbox.target == nullptr) {
    inbox.stray = std::make_shared<std::vector<char>>(header[1]);
    views = {Bytes(inbox.stray, inbox.stray->data(), inbox.stray->size())};
  }
  inbox.work = nullptr;
  if (header[1] == 0) {
    TakeBytes(peer, inbox, ended);
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<DataWork>> work = memory_->Exchange({}, {{peer, std::move(views)}});
  if (!work.ok()) return work.status();
  inbox.work = *std::move(work);
  return absl::OkStatus();
}

void Messages::TakeBytes(int peer, Inbox& inbox, std::vector<Ended>& ended) {
  if (inbox.target != nullptr) {
    inbox.target->source = peer;
    ended.push_back({std::exchange(inbox.target, nullptr), absl::OkStatus()});
  } else if (!inbox.drop) {
    Stray stray{peer, *inbox.header, std::move(inbox.stray)};
    // A receive for it may have been posted meanwhile.
    if (auto receive = TakePosted(peer, static_cast<int64_t>(stray.header[0]))) {
      Deliver(stray, std::move(receive), ended);
    } else {
      strays_.push_back(std::move(stray));
    }
  }
  inbox = Inbox();
}

void Messages::Deliver(const Stray& stray, std::shared_ptr<Message> to, std::vector<Ended>& ended) {
  absl::Status status = Fits(*to, stray.peer, stray.header);
  if (status.ok()) {
    absl::StatusOr<ViewBytes> bytes = ViewBytes::Of(to->views);
    status = bytes.status();
    if (status.ok() && bytes->size() > 0) bytes->Scatter(stray.bytes->data(), 0, bytes->size());
  }
  to->source = stray.peer;
  ended.push_back({std::move(to), std::move(status)});
}

absl::Status Messages::Step(std::vector<Ended>& ended) {
  const absl::Time now = absl::Now();
  for (auto it = strays_.begin(); it != strays_.end();) {
    auto receive = TakePosted(it->peer, static_cast<int64_t>(it->header[0]));
    if (receive == nullptr) {
      ++it;
      continue;
    }
    Deliver(*it, std::move(receive), ended);
    it = strays_.erase(it);
  }
  for (auto it = sends_.begin(); it != sends_.end();) {
    if (!(*it)->work->IsDone()) {
      if (now >= (*it)->deadline) {
        return absl::DeadlineExceededError(absl::StrCat(
            "timed out: group rank ", (*it)->peer, " did not take a message with tag ", (*it)->tag));
      }
      ++it;
      continue;
    }
    const absl::Status status = (*it)->work->WaitFor(absl::ZeroDuration()).status();
    if (!status.ok()) return status;
    (*it)->work = nullptr;
    ended.push_back({std::move(*it), absl::OkStatus()});
    it = sends_.erase(it);
  }
  for (bool moved = true; moved;) {
    moved = false;
    if (absl::Status status = ReadHeaders(); !status.ok()) return status;
    for (size_t peer = 0; peer < inboxes_.size(); ++peer) {
      Inbox& inbox = inboxes_[peer];
      if (inbox.work == nullptr) continue;
      if (!inbox.work->IsDone()) {
        if (inbox.target != nullptr && now >= inbox.target->deadline) {
          return absl::DeadlineExceededError(absl::StrCat(
              "timed out in the middle of a message from group rank ", peer));
        }
        continue;
      }
      if (absl::Status status = inbox.work->WaitFor(absl::ZeroDuration()).status(); !status.ok()) {
        return status;
      }
      moved = true;
      if (inbox.has_header) {
        TakeBytes(static_cast<int>(peer), inbox, ended);
      } else if (absl::Status status = TakeHeader(static_cast<int>(peer), inbox, ended);
                 !status.ok()) {
        return status;
      }
    }
  }
  for (auto it = posted_.begin(); it != posted_.end();) {
    if (now < (*it)->deadline) {
      ++it;
      continue;
    }
    const std::string from =
        (*it)->peer < 0 ? "any rank" : absl::StrCat("group rank ", (*it)->peer);
    const int64_t tag = (*it)->tag;
    ended.push_back({std::move(*it), absl::DeadlineExceededError(absl::StrCat(
                                         "timed out: no message with tag ", tag, " from ", from))});
    it = posted_.erase(it);
  }
  return absl::OkStatus();
}

}  // namespace leafpack::shm
