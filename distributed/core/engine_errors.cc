// How the outcomes of the protocol read to callers.
#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

#include "distributed/core/engine_impl.h"
#include "distributed/core/error.h"

namespace leafpack {
namespace {

ErrorKind KindOf(const protocol::Outcome& outcome) {
  switch (outcome.kind) {
    case protocol::OutcomeKind::kOk:
      return ErrorKind::kOther;
    case protocol::OutcomeKind::kMismatch:
      return ErrorKind::kLayoutMismatch;
    case protocol::OutcomeKind::kPeerRefused:
    case protocol::OutcomeKind::kTold:
      return ErrorKind::kPeerRefused;
    case protocol::OutcomeKind::kDeadline:
    case protocol::OutcomeKind::kGivenUp:
    case protocol::OutcomeKind::kDoubt:
      return ErrorKind::kDeadline;
    case protocol::OutcomeKind::kInterrupted:
      return ErrorKind::kInterrupted;
    case protocol::OutcomeKind::kLost:
      return ErrorKind::kPeerLost;
    case protocol::OutcomeKind::kDataFailed:
      break;
  }
  switch (outcome.code) {
    case absl::StatusCode::kDeadlineExceeded:
      return ErrorKind::kDeadline;
    case absl::StatusCode::kCancelled:
      return ErrorKind::kInterrupted;
    case absl::StatusCode::kUnavailable:
      return ErrorKind::kPeerLost;
    case absl::StatusCode::kFailedPrecondition:
      return ErrorKind::kPeerRefused;
    default:
      return ErrorKind::kOther;
  }
}

// Of the first call of a group that NewGroup made: its members meet in the n-th that each has made of their
// list and name, which one that was refused a wrong list before has not counted.
std::string OrdinalHint(const EngineConfig& config, const protocol::Outcome& outcome) {
  constexpr std::string_view kMark = "/sub/";
  const std::string_view prefix = config.prefix;
  const size_t mark = prefix.rfind(kMark);
  if (mark == std::string_view::npos || outcome.kind != protocol::OutcomeKind::kDeadline) return "";
  const std::string_view rest = prefix.substr(mark + kMark.size());
  const size_t slash = rest.find('/');
  int earlier = 0;
  if (slash == std::string_view::npos || !absl::SimpleAtoi(rest.substr(slash + 1), &earlier)) {
    return "";
  }
  return absl::StrCat("; this is group number ", earlier + 1,
                      " of these ranks and this name that this rank has made, and meets the others' "
                      "number ", earlier + 1, ": after an error on one of them give the next a new name");
}

}  // namespace

std::string_view CollectiveName(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return "all_reduce";
    case CollectiveKind::kBarrier:
      return "barrier";
    case CollectiveKind::kReduce:
      return "reduce";
    case CollectiveKind::kBroadcast:
      return "broadcast";
    case CollectiveKind::kAllGather:
      return "all_gather";
    case CollectiveKind::kGather:
      return "gather";
    case CollectiveKind::kScatter:
      return "scatter";
    case CollectiveKind::kReduceScatter:
      return "reduce_scatter";
    case CollectiveKind::kAllToAll:
      return "all_to_all";
    case CollectiveKind::kSplit:
      return "split";
  }
  if (static_cast<uint8_t>(kind) == 11) return "share";  // kShareCollectiveNumber, arena.h
  return "unknown";
}

absl::Status EngineImpl::EndStatus(const CallState& call) const {
  const protocol::Outcome& outcome = call.outcome;
  if (outcome.ok()) return absl::OkStatus();
  absl::StatusCode code = outcome.code;
  std::string text = outcome.text;
  // Without a channel no rank is known to be gone, or late: the store or this host's sockets failed.
  bool no_channel = false;
  if (outcome.kind == protocol::OutcomeKind::kLost && !channel_failure_.ok()) {
    code = channel_failure_.code();
    text = std::string(channel_failure_.message());
    no_channel = true;
  } else if (outcome.kind == protocol::OutcomeKind::kDeadline && call.store_fails) {
    code = absl::StatusCode::kUnavailable;
    text = absl::StrCat("call ", call.number, ": ", call.channel_problem,
                        "; without it the ranks could not meet by the deadline");
    no_channel = true;
  } else if (!call.channel_problem.empty()) {
    absl::StrAppend(&text, " (", call.channel_problem, ")");
  }
  if (call.number == 1) absl::StrAppend(&text, OrdinalHint(config_, outcome));
  ErrorDetails details;
  details.kind = no_channel ? ErrorKind::kOther : KindOf(outcome);
  details.path = outcome.path;
  for (uint32_t rank : outcome.ranks) {
    if (no_channel && code == absl::StatusCode::kUnavailable) break;
    if (rank < config_.global_ranks.size()) details.ranks.push_back(config_.global_ranks[rank]);
  }
  std::sort(details.ranks.begin(), details.ranks.end());
  details.tree_unchanged = outcome.tree != protocol::TreeState::kPartial;
  details.outcome_unknown = outcome.outcome_unknown;
  absl::Status status(code, call.name.empty() ? text : absl::StrCat(call.name, ": ", text));
  return WithErrorDetails(std::move(status), details);
}

}  // namespace leafpack
