#include "distributed/core/channel/handshake.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace leafpack {
namespace {

constexpr std::string_view kHelloMagic = "LPHI";
constexpr std::string_view kReplyMagic = "LPRE";
constexpr size_t kHelloFixedBytes = 4 + 16 + 4 + 4 + 1;
constexpr size_t kReplyFixedBytes = 1 + 16;
constexpr size_t kMaxReasonBytes = 1024;
constexpr std::string_view kRendezvousName = "leafpack-channel";

void AppendU32(std::string& out, uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<char>(value >> shift));
}

uint32_t ReadU32(std::string_view bytes) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[static_cast<size_t>(i)]);
  return value;
}

void AppendToken(std::string& out, const ChannelToken& token) {
  out.append(reinterpret_cast<const char*>(token.data()), token.size());
}

ChannelToken ReadToken(std::string_view bytes) {
  ChannelToken token;
  std::memcpy(token.data(), bytes.data(), token.size());
  return token;
}

std::string Hex(const ChannelToken& token) {
  return absl::BytesToHexString({reinterpret_cast<const char*>(token.data()), token.size()});
}

bool ParseHex(std::string_view text, ChannelToken& token) {
  std::string bytes;
  if (text.size() != 2 * token.size() || !absl::HexStringToBytes(text, &bytes)) return false;
  token = ReadToken(bytes);
  return true;
}

std::string WithPrefix(std::string_view magic, std::string_view body) {
  std::string out(magic);
  AppendU32(out, static_cast<uint32_t>(body.size()));
  out.append(body);
  return out;
}

absl::StatusOr<size_t> BodyLength(std::string_view prefix, std::string_view magic, size_t least, size_t most) {
  if (prefix.size() != kHandshakePrefixBytes || prefix.substr(0, 4) != magic) {
    return absl::InvalidArgumentError("the peer does not speak this protocol");
  }
  const size_t length = ReadU32(prefix.substr(4));
  if (length < least || length > most) {
    return absl::InvalidArgumentError(absl::StrCat("a handshake message of ", length, " bytes"));
  }
  return length;
}

}  // namespace

absl::StatusOr<ChannelToken> NewToken() {
  ChannelToken token;
  size_t filled = 0;
  while (filled < token.size()) {
    const ssize_t n = getrandom(token.data() + filled, token.size() - filled, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return absl::UnavailableError(absl::StrCat("getrandom: ", std::strerror(errno)));
    filled += static_cast<size_t>(n);
  }
  return token;
}

bool TokensEqual(const ChannelToken& a, const ChannelToken& b) {
  volatile uint8_t difference = 0;
  for (size_t i = 0; i < a.size(); ++i) difference = difference | (a[i] ^ b[i]);
  return difference == 0;
}

std::string TcpAddress::ToString() const {
  return v6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

std::string EncodeRendezvous(const Rendezvous& rendezvous) {
  std::string out = absl::StrCat(kRendezvousName, " ", rendezvous.protocol_version, "\n", "token_a ",
                                 Hex(rendezvous.token_a), "\ntoken_b ", Hex(rendezvous.token_b), "\n");
  if (!rendezvous.unix_name.empty()) absl::StrAppend(&out, "unix ", rendezvous.unix_name, "\n");
  for (const TcpAddress& address : rendezvous.tcp) {
    absl::StrAppend(&out, address.v6 ? "tcp6 " : "tcp4 ", address.host, " ", address.port, "\n");
  }
  return out + "end\n";
}

absl::StatusOr<Rendezvous> DecodeRendezvous(std::string_view value) {
  const auto bad = [](std::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("the store's value is no address of a rank 0: ", why));
  };
  if (value.size() > 4096) return bad("too long");
  Rendezvous result;
  bool has_a = false, has_b = false, has_end = false, first = true;
  for (std::string_view line : absl::StrSplit(value, '\n', absl::SkipEmpty())) {
    const std::vector<std::string_view> words = absl::StrSplit(line, ' ');
    if (first) {
      if (words.size() != 2 || words[0] != kRendezvousName ||
          !absl::SimpleAtoi(words[1], &result.protocol_version)) {
        return bad("no version");
      }
      first = false;
    } else if (words[0] == "token_a" && words.size() == 2) {
      has_a = ParseHex(words[1], result.token_a);
    } else if (words[0] == "token_b" && words.size() == 2) {
      has_b = ParseHex(words[1], result.token_b);
    } else if (words[0] == "unix" && words.size() == 2) {
      if (words[1].empty() || words[1].size() > 100) return bad("a bad Unix name");
      result.unix_name = std::string(words[1]);
    } else if ((words[0] == "tcp4" || words[0] == "tcp6") && words.size() == 3) {
      uint32_t port = 0;
      if (!absl::SimpleAtoi(words[2], &port) || port == 0 || port > 65535 || result.tcp.size() >= 16) {
        return bad("a bad TCP address");
      }
      result.tcp.push_back({words[0] == "tcp6", std::string(words[1]), static_cast<uint16_t>(port)});
    } else if (line == "end") {
      has_end = true;
    }
  }
  if (!has_a || !has_b) return bad("no tokens");
  if (!has_end) return bad("cut short");
  return result;
}

std::string EncodeHello(const Hello& hello) {
  std::string body;
  AppendU32(body, hello.protocol_version);
  AppendToken(body, hello.token);
  AppendU32(body, hello.rank);
  AppendU32(body, hello.size);
  const std::string_view version =
      std::string_view(hello.library_version).substr(0, kMaxLibraryVersionBytes);
  body.push_back(static_cast<char>(version.size()));
  body.append(version);
  return WithPrefix(kHelloMagic, body);
}

absl::StatusOr<size_t> HelloLength(std::string_view prefix) {
  return BodyLength(prefix, kHelloMagic, kHelloFixedBytes, kMaxHelloBytes);
}

absl::StatusOr<Hello> DecodeHello(std::string_view body, uint32_t own_protocol_version) {
  if (body.size() < kHelloFixedBytes) return absl::InvalidArgumentError("a HELLO that is too short");
  Hello hello;
  hello.protocol_version = ReadU32(body);
  hello.token = ReadToken(body.substr(4));
  hello.rank = ReadU32(body.substr(20));
  hello.size = ReadU32(body.substr(24));
  const size_t version_bytes = static_cast<uint8_t>(body[28]);
  const std::string_view rest = body.substr(kHelloFixedBytes);
  const bool exact = hello.protocol_version == own_protocol_version;
  if (version_bytes > rest.size() || (exact && version_bytes != rest.size())) {
    return absl::InvalidArgumentError("a HELLO of the wrong length");
  }
  hello.library_version = std::string(rest.substr(0, version_bytes));
  return hello;
}

std::string EncodeReply(const Reply& reply) {
  std::string body(1, reply.welcome ? 1 : 0);
  AppendToken(body, reply.token);
  if (reply.welcome) {
    body.push_back(reply.lane ? 1 : 0);
  } else {
    body.append(reply.reason, 0, kMaxReasonBytes);
  }
  return WithPrefix(kReplyMagic, body);
}

absl::StatusOr<size_t> ReplyLength(std::string_view prefix) {
  return BodyLength(prefix, kReplyMagic, kReplyFixedBytes, kMaxReplyBytes);
}

absl::StatusOr<Reply> DecodeReply(std::string_view body) {
  if (body.size() < kReplyFixedBytes || static_cast<uint8_t>(body[0]) > 1) {
    return absl::InvalidArgumentError("a bad answer to HELLO");
  }
  Reply reply;
  reply.welcome = body[0] == 1;
  reply.token = ReadToken(body.substr(1));
  const std::string_view rest = body.substr(kReplyFixedBytes);
  if (reply.welcome) {
    if (rest.size() != 1 || static_cast<uint8_t>(rest[0]) > 1) {
      return absl::InvalidArgumentError("a WELCOME that says nothing of a lane");
    }
    reply.lane = rest[0] == 1;
    return reply;
  }
  reply.reason = std::string(rest);
  return reply;
}

}  // namespace leafpack
