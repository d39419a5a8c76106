// The records that travel on a connection between two mailboxes: see docs/p2p.md. Pure encoding.
#ifndef LEAFPACK_DISTRIBUTED_MAILBOX_WIRE_H_
#define LEAFPACK_DISTRIBUTED_MAILBOX_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/numeric/int128.h"
#include "distributed/core/byte_io.h"

namespace leafpack::mailbox {

inline constexpr uint32_t kMailboxProtocolVersion = 1;

enum class RecordType : uint8_t {
  // From the sender.
  kOffer = 1,
  kDescription = 2,
  kData = 3,
  kWithdraw = 4,
  // From the receiver.
  kNeed = 16,
  kAccept = 17,
  kRefuse = 18,
  kDone = 19,
  kCancel = 20,
  // From both.
  kBye = 32,
};

// u32 body length | u8 type | u8 flags | u16 zero | u64 transfer
inline constexpr size_t kHeaderBytes = 16;
// Of a record that is not kData.
inline constexpr size_t kMaxBodyBytes = size_t{96} << 10;
// Of kData.
inline constexpr size_t kMaxDataBytes = size_t{512} << 10;
inline constexpr size_t kDescriptionChunkBytes = size_t{64} << 10;
inline constexpr size_t kMaxDescriptionBytes = size_t{64} << 20;
inline constexpr size_t kMaxTextBytes = 4 << 10;
inline constexpr size_t kMaxLabelBytes = 256;

// A transfer of so many bytes rides with its offer, as long as this many of a connection are unanswered.
inline constexpr int64_t kMaxEagerBytes = int64_t{64} << 10;
inline constexpr int64_t kMaxEagerOutstanding = int64_t{1} << 20;
// Offers of one sender that nobody has received yet.
inline constexpr size_t kMaxWaitingOffers = size_t{64} << 10;
// Withdrawn ones among them that are remembered.
inline constexpr size_t kMaxTombstones = 1024;

// Flags.
inline constexpr uint8_t kFlagEager = 1;      // kOffer: the bytes follow in the body
inline constexpr uint8_t kFlagLast = 1;       // kDescription: its last chunk

// Why a side gave up; bodies of kWithdraw and kCancel: u8 and a text.
enum class GiveUp : uint8_t { kDeadline = 1, kInterrupt = 2, kCancel = 3, kError = 4 };
// What a receiver found wrong; body of kRefuse: u8, text, path.
enum class Refusal : uint8_t { kMismatch = 1, kError = 2 };

enum class PayloadKind : uint8_t { kTree = 0, kBytes = 1 };

struct Header {
  uint32_t length = 0;
  uint8_t type = 0;
  uint8_t flags = 0;
  uint64_t transfer = 0;
};

inline void PutHeader(ByteWriter& out, const Header& header) {
  out.U32(header.length);
  out.U8(header.type);
  out.U8(header.flags);
  out.U16(0);
  out.U64(header.transfer);
}

inline std::string EncodeRecord(RecordType type, uint64_t transfer, std::string_view body = {},
                                uint8_t flags = 0) {
  ByteWriter out;
  out.Reserve(kHeaderBytes + body.size());
  PutHeader(out, {static_cast<uint32_t>(body.size()), static_cast<uint8_t>(type), flags, transfer});
  out.Raw(body);
  return std::move(out).Take();
}

// False for a header that no record has. `bytes` has kHeaderBytes.
inline bool GetHeader(std::string_view bytes, Header& header) {
  ByteReader in(bytes);
  header.length = in.U32();
  header.type = in.U8();
  header.flags = in.U8();
  const uint16_t zero = in.U16();
  header.transfer = in.U64();
  const bool data = header.type == static_cast<uint8_t>(RecordType::kData);
  return zero == 0 && header.length <= (data ? kMaxDataBytes : kMaxBodyBytes) &&
         (!data || header.length > 0);
}

// What a sender says of a transfer.
struct Offer {
  PayloadKind kind = PayloadKind::kTree;
  int64_t tag = 0;
  int64_t bytes = 0;
  absl::uint128 digest = 0;
  std::string label;  // the name that the caller gave
};

inline std::string EncodeOffer(const Offer& offer, std::string_view eager) {
  ByteWriter out;
  out.Reserve(64 + offer.label.size() + eager.size());
  out.U8(static_cast<uint8_t>(offer.kind));
  out.I64(offer.tag);
  out.I64(offer.bytes);
  out.U64(absl::Uint128Low64(offer.digest));
  out.U64(absl::Uint128High64(offer.digest));
  out.String(offer.label);
  out.Raw(eager);
  return std::move(out).Take();
}

// False for bytes that are no offer. `eager`: what follows it, all bytes of the transfer if `is_eager`.
inline bool DecodeOffer(std::string_view body, bool is_eager, Offer& offer, std::string_view& eager) {
  ByteReader in(body);
  const uint8_t kind = in.U8();
  offer.kind = static_cast<PayloadKind>(kind);
  offer.tag = in.I64();
  offer.bytes = in.I64();
  const uint64_t low = in.U64();
  offer.digest = absl::MakeUint128(in.U64(), low);
  const std::string_view label = in.String();
  eager = in.Raw(in.remaining());
  if (!in.ok() || kind > 1 || offer.bytes < 0 || label.size() > kMaxLabelBytes) return false;
  offer.label = label;
  return is_eager ? static_cast<int64_t>(eager.size()) == offer.bytes : eager.empty();
}

}  // namespace leafpack::mailbox

#endif  // LEAFPACK_DISTRIBUTED_MAILBOX_WIRE_H_
