#include "distributed/core/channel/star_testutil.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace leafpack {

Star::Star(std::unique_ptr<KeyValueStore> store, ConnectorOptions options, size_t record_bytes)
    : rank_(options.rank),
      size_(static_cast<size_t>(options.size)),
      record_bytes_(record_bytes),
      connector_(std::move(store), options),
      received_(size_, 0),
      scratch_(size_t{64} << 10, '\0') {
  const size_t links = rank_ == 0 ? size_ : 1;
  for (size_t i = 0; i < links; ++i) links_.push_back(std::make_unique<Link>());
}

void Star::ReadLink(size_t rank) {
  const Link::ReadState state =
      links_[rank]->ReadAvailable(absl::MakeSpan(scratch_), [&](absl::Span<const char> bytes) {
        for (char byte : bytes) {
          if (byte != round_) failure_ = absl::InternalError(absl::StrCat("rank ", rank, ": wrong byte"));
        }
        received_[rank] += bytes.size();
        if (received_[rank] > record_bytes_) failure_ = absl::InternalError("too many bytes");
        return true;
      });
  if (state == Link::ReadState::kHungUp && received_[rank] < record_bytes_) {
    failure_ = absl::UnavailableError(absl::StrCat("rank ", rank, ": ", links_[rank]->hang_up_reason()));
  }
}

bool Star::Complete() const {
  if (rank_ != 0) return received_[0] == record_bytes_;
  for (size_t rank = 1; rank < size_; ++rank) {
    if (received_[rank] < record_bytes_) return false;
  }
  return true;
}

bool Star::Progress() {
  if (connector_.state() == Connector::State::kConnecting) {
    if (connector_.Step() == Connector::State::kFailed) failure_ = connector_.status();
    for (Connector::Joined& one : connector_.TakeJoined()) {
      Link& link = *links_[static_cast<size_t>(one.rank)];
      if (one.framed) {
        link.AttachWithLane(std::move(one.fd), std::move(one.lane));
      } else {
        link.Attach(std::move(one.fd));
      }
    }
  }
  for (size_t rank = rank_ == 0 ? 1 : 0; rank < links_.size(); ++rank) {
    if (links_[rank]->wants_write()) links_[rank]->Flush().IgnoreError();
    if (received_[rank] < record_bytes_) ReadLink(rank);
  }
  return !failure_.ok() || Complete();
}

absl::Status Star::Agree(absl::Time deadline) {
  ++round_;
  std::fill(received_.begin(), received_.end(), 0);
  const std::string record(record_bytes_, round_);
  // Writing may fail before the last bytes of the peer are read: the read says what is wrong.
  if (rank_ != 0) links_[0]->Send(record).status().IgnoreError();
  const auto fds = [&] {
    fds_.clear();
    if (connector_.fd() >= 0) fds_.push_back({connector_.fd(), POLLIN, 0});
    for (const std::unique_ptr<Link>& link : links_) {
      if (link->fd() < 0) continue;
      // It always is: whoever writes wakes it.
      link->SetAsleep(true);
      fds_.push_back({link->fd(), static_cast<short>(POLLIN | (link->wants_write() ? POLLOUT : 0)), 0});
    }
    return absl::MakeSpan(fds_);
  };
  while (!Progress()) {
    if (absl::Now() > deadline) return absl::DeadlineExceededError(connector_.Problem());
    waiter_.Wait([&] { return Progress(); }, fds, deadline);
  }
  if (!failure_.ok() || rank_ != 0) return failure_;
  for (size_t rank = 1; rank < size_; ++rank) links_[rank]->Send(record).status().IgnoreError();
  for (size_t rank = 1; rank < size_; ++rank) {
    while (links_[rank]->wants_write()) {
      if (absl::Now() > deadline) return absl::DeadlineExceededError("writing");
      waiter_.Wait([&] { return !links_[rank]->Flush().ok() || !links_[rank]->wants_write(); }, fds, deadline);
    }
  }
  return absl::OkStatus();
}

}  // namespace leafpack
