// What ranks say to each other before the first record: the value that rank 0 leaves in the store, HELLO,
// and the answer to it. Pure encoding; every byte that comes in is checked.
//
// Both messages are a prefix of 8 bytes (4 letters, u32 length of the rest) and the rest, little
// endian. Prefix, version and tokens stay where they are in all later versions, so that ranks of
// different versions can still tell each other so.
#ifndef LEAFPACK_DISTRIBUTED_CORE_CHANNEL_HANDSHAKE_H_
#define LEAFPACK_DISTRIBUTED_CORE_CHANNEL_HANDSHAKE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace leafpack {

// 128 random bits that prove to know the store of the group.
using ChannelToken = std::array<uint8_t, 16>;

// From the system's generator; Unavailable when it fails.
absl::StatusOr<ChannelToken> NewToken();
// Takes the same time whatever differs.
bool TokensEqual(const ChannelToken& a, const ChannelToken& b);

struct TcpAddress {
  bool v6 = false;
  std::string host;  // numeric
  uint16_t port = 0;
  // "10.0.0.7:4711", "[fd00::7]:4711"
  std::string ToString() const;
  friend bool operator==(const TcpAddress&, const TcpAddress&) = default;
};

// The value in the store.
struct Rendezvous {
  uint32_t protocol_version = 0;
  ChannelToken token_a{};  // said by those who come
  ChannelToken token_b{};  // said by rank 0
  std::string unix_name;   // abstract name without its leading zero byte; empty: none
  std::vector<TcpAddress> tcp;
};
std::string EncodeRendezvous(const Rendezvous& rendezvous);
// InvalidArgument when this is no such value. Lines of later versions are skipped.
absl::StatusOr<Rendezvous> DecodeRendezvous(std::string_view value);

inline constexpr size_t kHandshakePrefixBytes = 8;
inline constexpr size_t kMaxHelloBytes = 256;   // after the prefix
inline constexpr size_t kMaxReplyBytes = 2048;  // after the prefix
inline constexpr size_t kMaxLibraryVersionBytes = 64;

struct Hello {
  uint32_t protocol_version = 0;
  ChannelToken token{};
  uint32_t rank = 0;
  uint32_t size = 0;
  std::string library_version;
};
std::string EncodeHello(const Hello& hello);
// Length of the rest; InvalidArgument when `prefix` (8 bytes) does not begin a HELLO.
absl::StatusOr<size_t> HelloLength(std::string_view prefix);
// `body`: the rest. Bytes after the fields that are known are allowed in other protocol versions only.
absl::StatusOr<Hello> DecodeHello(std::string_view body, uint32_t own_protocol_version);

struct Reply {
  bool welcome = false;
  ChannelToken token{};
  std::string reason;  // of a REJECT; cut at 1 KiB
  // Of a WELCOME: the descriptor of a Lane comes with the message's first byte, and the socket carries frames
  // from the next byte on.
  bool lane = false;
};
std::string EncodeReply(const Reply& reply);
absl::StatusOr<size_t> ReplyLength(std::string_view prefix);
absl::StatusOr<Reply> DecodeReply(std::string_view body);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_CHANNEL_HANDSHAKE_H_
