// What the coordinator does when digests differ: it asks one rank of each side for its description
// and reports the first difference.
#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "distributed/core/protocol/coordinator_impl.h"
#include "distributed/core/protocol/manifest.h"

namespace leafpack::protocol {

void CoordinatorMachine::Impl::Collect(Entries::iterator at, SteadyNanos now,
                                       CoordinatorActions& out) {
  Entry& entry = *at->second;
  constexpr uint16_t kCompared = kFlagFrame | kFlagRestore;
  for (uint32_t rank = 0; rank < options_.size; ++rank) {
    const Post& post = entry.posts[rank];
    auto same = std::find_if(entry.sides.begin(), entry.sides.end(), [&](const Side& side) {
      const Post& other = entry.posts[side.ranks[0]];
      return other.digest == post.digest && (other.flags & kCompared) == (post.flags & kCompared);
    });
    if (same == entry.sides.end()) same = entry.sides.emplace(entry.sides.end());
    same->ranks.push_back(rank);
  }
  entry.collect_until = now + kCollectTime;
  Record need;
  need.type = RecordType::kNeed;
  need.epoch = epoch_;
  need.call = at->first;
  for (size_t i = 0; i < entry.sides.size() && i < kMaxManifests; ++i) {
    entry.sides[i].asked = true;
    Send(entry.sides[i].ranks[0], need, out);
  }
}

void CoordinatorMachine::Impl::OnManifest(uint32_t rank, Record record, SteadyNanos now,
                                          CoordinatorActions& out) {
  const auto at = entries_.find(record.call);
  if (at == entries_.end()) return;  // decided meanwhile
  Entry& entry = *at->second;
  bool complete = !entry.sides.empty();
  bool known = false;
  for (Side& side : entry.sides) {
    if (side.asked && !side.complete && side.ranks[0] == rank) {
      known = true;
      const std::string_view chunk =
          record.attachment ? std::string_view(*record.attachment) : std::string_view(record.body);
      entry.manifest_bytes += chunk.size();
      if (entry.manifest_bytes > kMaxManifestBytes) {
        entry.manifest_bytes -= chunk.size() + side.manifest.size();
        side.manifest.clear();
        side.complete = true;
      } else {
        side.manifest += chunk;
        side.complete = record.Has(kFlagLast);
      }
    }
    if (side.asked && !side.complete) complete = false;
  }
  if (!known && !entry.sides.empty() && !record.Has(kFlagLast)) return;
  if (complete || (entry.overdue && CanTell(entry))) DecideMismatch(at, now, out);
}

// A difference needs two sides. Who is late with its description, on a machine that stands still, has
// until the first deadline of the call.
void CoordinatorMachine::Impl::CollectNoMore(Entries::iterator at, SteadyNanos now,
                                             CoordinatorActions& out) {
  Entry& entry = *at->second;
  entry.collect_until = kNever;
  entry.overdue = true;
  if (CanTell(entry)) DecideMismatch(at, now, out);
}

bool CoordinatorMachine::Impl::CanTell(const Entry& entry) {
  return std::count_if(entry.sides.begin(), entry.sides.end(),
                       [](const Side& side) { return side.complete; }) >= 2;
}

void CoordinatorMachine::Impl::DecideMismatch(Entries::iterator at, SteadyNanos now,
                                              CoordinatorActions& out) {
  Entry& entry = *at->second;
  std::vector<ManifestSide> sides;
  for (Side& side : entry.sides) {
    ManifestSide& shown = sides.emplace_back();
    shown.ranks = side.ranks;
    if (!side.complete) continue;
    absl::StatusOr<std::vector<ManifestEntry>> entries = DecodeManifest(side.manifest);
    if (!entries.ok()) continue;
    shown.known = true;
    shown.entries = *std::move(entries);
  }
  Difference difference = DescribeDifference(sides, options_.name);
  DecideBody body;
  body.ranks = std::move(difference.ranks);
  body.path = Clip(difference.path);
  body.text = Clip(absl::StrCat(difference.text, WhoIsBehind(at->first, entry)));
  Decide(at, Decision::kMismatch, body, now, out);
}

// "; rank 1 is one call behind rank 0" where a side does now what the first side did a few calls
// ago, or the reverse.
std::string CoordinatorMachine::Impl::WhoIsBehind(uint64_t call, const Entry& entry) const {
  auto did = [&](uint32_t rank, uint64_t number) {
    const auto& [at, digest] = members_[rank].history[number % kDigestHistory];
    return at == number ? digest : Digest128();
  };
  // Whether the rank makes this call every `back` calls, as far as is known: then it says nothing that
  // the others made it so long ago too. Nor does it where the rank made it with them then and others since;
  // one made twice in a row is one too many.
  auto repeats = [&](uint32_t rank, uint64_t back) {
    const Digest128 now = did(rank, call);
    if (did(rank, call - back) != now) return false;
    if (back > 1) return true;
    const Digest128 before = call > 2 * back ? did(rank, call - 2 * back) : Digest128();
    return before.IsZero() || before == now;
  };
  std::string text;
  if (entry.sides.empty()) return text;
  const Side& first = entry.sides[0];
  for (size_t i = 1; i < entry.sides.size(); ++i) {
    const Side& side = entry.sides[i];
    const uint32_t a = first.ranks[0];
    const uint32_t b = side.ranks[0];
    const Digest128 a_now = did(a, call);
    const Digest128 b_now = did(b, call);
    if (a_now.IsZero() || b_now.IsZero()) continue;
    for (uint64_t back = 1; back < kDigestHistory && back < call; ++back) {
      const bool b_behind = did(a, call - back) == b_now;
      const bool a_behind = did(b, call - back) == a_now;
      if (b_behind == a_behind) {
        if (b_behind) break;  // a pattern that repeats says nothing
        continue;
      }
      if (repeats(b_behind ? b : a, back)) break;
      const Side& behind = b_behind ? side : first;
      const Side& ahead = b_behind ? first : side;
      absl::StrAppend(&text, "; ", Ranks(behind.ranks), behind.ranks.size() == 1 ? " is " : " are ",
                      back == 1 ? "one call" : absl::StrCat(back, " calls"), " behind ",
                      Ranks(ahead.ranks));
      break;
    }
  }
  return text;
}

}  // namespace leafpack::protocol
