// The end of a rank.
#include <sys/epoll.h>

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "distributed/mailbox/mailbox.h"
#include "distributed/mailbox/mailbox_internal.h"

namespace leafpack::mailbox {
namespace {

// How long the second connection of a rank may outlive the first: bytes of it may be on their way.
constexpr int64_t kBuryTime = 300 * kMillisecond;

}  // namespace

void Mailbox::Bury(Peer& peer, Nanos now) {
  Connection* const both[] = {peer.out.get(), peer.in.get()};
  std::string reason;
  bool alive = false;
  for (Connection* connection : both) {
    if (connection == nullptr) continue;
    // What it said before it died counts.
    if (!connection->dead) Read(peer, *connection, std::numeric_limits<size_t>::max());
    if (!connection->dead) {
      alive = true;
      continue;
    }
    epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection->fd.get(), nullptr);
    if (reason.empty()) reason = connection->reason;
  }
  if (!alive) return Lose(peer, reason);
  if (burying_.insert(peer.rank).second) peer.bury_at = now + kBuryTime;
}

void Mailbox::HearOfLosses(Nanos now) {
  if (options_.lost == nullptr || options_.lost->count() == losses_heard_) return;
  for (const LostRanks::Loss& loss : options_.lost->After(losses_heard_)) {
    ++losses_heard_;
    Peer& peer = *peers_[static_cast<size_t>(loss.rank)];
    // Connections tell of their own end, behind what was sent.
    if (loss.rank == rank() || peer.lost || peer.out != nullptr || peer.in != nullptr) continue;
    peer.channel_why = loss.why;
    // What it sent right before may stand in a listener.
    if (burying_.insert(peer.rank).second) peer.bury_at = now + kBuryTime;
  }
}

void Mailbox::Lose(Peer& peer, std::string why) {
  burying_.erase(peer.rank);
  seeking_.erase(peer.rank);
  if (peer.lost) return;
  peer.lost = true;
  peer.lost_why = peer.farewell.empty()
                      ? absl::StrCat(Who(peer.rank), " is gone: ", why)
                      : absl::StrCat(Who(peer.rank), " has left the group: ", peer.farewell);
  if (book_ != nullptr) book_->Forget(peer.rank);
  peer.reach = Reach::kNone;
  std::vector<TransferPtr> ended(peer.waiting.begin(), peer.waiting.end());
  for (const auto& [id, transfer] : peer.sends) ended.push_back(transfer);
  for (const auto& [id, inbound] : peer.offers) {
    if (inbound.receive != nullptr) ended.push_back(inbound.receive);
  }
  const bool all = AllLost();
  for (auto it = posted_.begin(); it != posted_.end();) {
    const std::optional<int>& from = (*it)->spec.peer;
    if (from.has_value() ? *from == peer.rank : all) {
      ended.push_back(*it);
      it = posted_.erase(it);
    } else {
      ++it;
    }
  }
  peer.waiting.clear();
  peer.sends.clear();
  peer.sending.clear();
  peer.offers.clear();
  peer.waiting_offers = peer.tombstones = 0;
  for (std::unique_ptr<Connection>* connection : {&peer.out, &peer.in}) {
    if (*connection == nullptr) continue;
    SetWritableWanted(peer, **connection, false);
    *connection = nullptr;
  }
  peer.attempt.Close();
  for (const TransferPtr& transfer : ended) {
    absl::Status status =
        Error(*transfer, absl::UnavailableError(peer.lost_why), ErrorKind::kPeerLost, peer.rank);
    if (transfer->busy) {
      if (transfer->pending.ok()) transfer->pending = std::move(status);
    } else {
      End(transfer, std::move(status));
    }
  }
}

}  // namespace leafpack::mailbox
