#include "distributed/store/url.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "distributed/store/environment.h"
#include "distributed/store/groups.h"
#include "distributed/store/tcp_stores.h"

namespace leafpack {
namespace {

absl::Status BadUrl(std::string_view url, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("'", absl::Utf8SafeCEscape(url), "': ", why));
}

// -1 stands for what was not given.
absl::Status CheckRankAndSize(std::string_view url, int rank, int size) {
  if (rank == -1 && size == -1) {
    return BadUrl(url, "the rank and the size of the group must be given: this says neither");
  }
  if (size == -1) {
    return BadUrl(url, absl::StrCat("the size of the group must be given too: only its rank ", rank,
                                    " is"));
  }
  if (size < 1) return BadUrl(url, absl::StrCat("a group of ", size, " ranks: want at least 1"));
  if (rank == -1) {
    return BadUrl(url, absl::StrCat("the rank in the group must be given, 0 to ", size - 1,
                                    ": its size ", size, " is, its rank is missing or -1"));
  }
  if (rank < 0 || rank >= size) {
    return BadUrl(url, absl::StrCat("rank ", rank, " is not in a group of ", size, " ranks"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Group> FromEnvironment(std::string_view url, std::string_view rest, int rank,
                                      int size, GroupOptions options,
                                      const InterruptCheck& interrupt) {
  if (!rest.empty()) return BadUrl(url, "nothing may follow env://");
  absl::StatusOr<LaunchEnvironment> environment = ReadLaunchEnvironment();
  if (!environment.ok()) return environment.status();
  if ((rank != -1 && rank != environment->rank) || (size != -1 && size != environment->size)) {
    return BadUrl(url, absl::StrCat("rank ", rank, " of ", size, " was given, but the environment says ",
                                    environment->rank, " of ", environment->size));
  }
  return GroupFromEnvironment(std::move(options), interrupt);
}

absl::StatusOr<Group> FromTcp(std::string_view url, std::string_view address, int rank, int size,
                              GroupOptions options, const InterruptCheck& interrupt) {
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return BadUrl(url, "want tcp://HOST:PORT");
  std::string_view host = address.substr(0, colon);
  const bool in_brackets = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
  if (host.empty() || (!in_brackets && host.find_first_of(":[]/") != std::string_view::npos)) {
    return BadUrl(url, "want tcp://HOST:PORT, an IPv6 address in brackets");
  }
  int port = 0;
  if (!absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return BadUrl(url, "want a port, 1 to 65535");
  }
  store_internal::TcpMeeting meeting;
  meeting.host = std::string(host);
  meeting.port = static_cast<uint16_t>(port);
  meeting.serves = rank == 0;
  meeting.what = absl::StrCat("the store at ", url);
  meeting.prefix = "leafpack/tcp";
  meeting.rank = rank;
  meeting.size = size;
  return store_internal::GroupOverTcp(meeting, std::move(options), interrupt);
}

}  // namespace

absl::StatusOr<Group> GroupFromUrl(std::string_view url, int rank, int size, GroupOptions options,
                                   const InterruptCheck& interrupt) {
  std::string_view rest = url;
  if (absl::ConsumePrefix(&rest, "env://")) {
    return FromEnvironment(url, rest, rank, size, std::move(options), interrupt);
  }
  const bool tcp = absl::ConsumePrefix(&rest, "tcp://");
  if (!tcp && !absl::ConsumePrefix(&rest, "file://")) {
    return BadUrl(url, "want env://, tcp://HOST:PORT or file://PATH");
  }
  if (absl::Status status = CheckRankAndSize(url, rank, size); !status.ok()) return status;
  if (tcp) return FromTcp(url, rest, rank, size, std::move(options), interrupt);
  return GroupFromFile(std::string(rest), rank, size, std::move(options));
}

}  // namespace leafpack
