// Records of the control channel: their layout on the wire, and a parser that believes nothing.
//
// A record is a header of 40 bytes, little endian, and a body:
//   u32 body length | u8 type | u8 kind | u16 flags
//   u32 epoch | u32 rank | u64 call | u128 digest (lo, hi)
//
//   std::string wire = EncodeRecord(record);
//   RecordParser parser;
//   parser.Append(wire);
//   absl::StatusOr<std::optional<Record>> next = parser.Next();
#ifndef LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_RECORD_H_
#define LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_RECORD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "distributed/core/protocol/digest128.h"
#include "distributed/core/protocol/types.h"

namespace leafpack::protocol {

// Raised whenever a record changes its form; both sides of a handshake name it.
inline constexpr uint32_t kProtocolVersion = 1;
inline constexpr size_t kHeaderBytes = 40;
inline constexpr size_t kMaxBodyBytes = 68 << 10;

enum class RecordType : uint8_t {
  kAgree = 1,      // rank: "I am in this call; I have changed nothing"
  kRefuse = 2,     // rank: posts the call too, but it cannot succeed; kind: RefuseKind
  kWithdraw = 3,   // rank: wishes to give the call up; kind: WithdrawKind
  kDecide = 4,     // coordinator: the decision; kind: Decision
  kFail = 5,       // rank: its data phase failed; kind: FailKind
  kProbe = 6,      // coordinator: where are you?
  kState = 7,      // rank: call = last one issued; kind: Phase
  kAbort = 8,      // coordinator: epoch = the new one; call, rank, kind (FailKind) = the cause
  kDone = 9,       // rank: its data phase of a restore call is complete
  kCommit = 10,    // coordinator: all are
  kNeed = 11,      // coordinator: wants the description of the call
  kManifest = 12,  // rank: a chunk of it
  kLost = 13,      // coordinator: rank is gone; kind: LostKind; call = last one it was through with
  kBye = 14,       // both: leaves on purpose; call = last one it is through with
};

// Bits of `flags`; each belongs to the types named.
inline constexpr uint16_t kFlagFrame = 1 << 0;      // AGREE: the tree; DECIDE: the result
inline constexpr uint16_t kFlagRestore = 1 << 1;    // AGREE, FAIL: has a completion round
inline constexpr uint16_t kFlagTrusted = 1 << 2;    // AGREE: data starts without waiting
inline constexpr uint16_t kFlagGap = 1 << 3;        // AGREE, REFUSE: follows skipped numbers
inline constexpr uint16_t kFlagSoftEqual = 1 << 4;  // DECIDE: soft digests are equal everywhere
inline constexpr uint16_t kFlagLate = 1 << 5;       // DECIDE: was decided before this rank posted
inline constexpr uint16_t kFlagLast = 1 << 6;       // MANIFEST: last chunk
inline constexpr uint16_t kFlagOpen = 1 << 7;       // AGREE: a frame only if all ranks bring one

// One record. `attachment`, if set, follows `body` on the wire: bytes that several records share
// (the result of a frame) or that are not worth a copy. A parsed record has all of it in `body`.
struct Record {
  RecordType type = RecordType::kAgree;
  uint8_t kind = 0;
  uint16_t flags = 0;
  uint32_t epoch = 0;
  uint32_t rank = 0;
  uint64_t call = 0;
  Digest128 digest;
  std::string body;
  std::shared_ptr<const std::string> attachment;

  bool Has(uint16_t flag) const { return (flags & flag) != 0; }
  size_t body_size() const { return body.size() + (attachment ? attachment->size() : 0); }
};

// "AGREE", "DECIDE", …; "record of type 77" for a number that is none.
std::string RecordTypeName(RecordType type);

// Writes the header of `record` into `out`, which holds kHeaderBytes. The body and the attachment
// follow it as they are. body_size() must be at most kMaxBodyBytes.
void EncodeHeader(const Record& record, char* out);

// Header, body and attachment in one string; for tests and cold paths.
std::string EncodeRecord(const Record& record);

// Cuts a byte stream into records. After an error it stays in error: the peer is to be dropped. Not
// thread-safe.
class RecordParser {
 public:
  // Adds bytes read from the peer. Memory grows by what was appended and not yet taken, never by
  // what a length claims.
  void Append(std::string_view bytes);

  // The next whole record; nullopt if more bytes are needed; InvalidArgument with the reason if the
  // bytes are no record: an unknown type, kind or flag, a body over the limit, a body that a record
  // of its type cannot have.
  absl::StatusOr<std::optional<Record>> Next();
  // The same where `bytes` have just been read: takes a whole record out of them without keeping them first. Call it
  // until there is no record; what is unfinished is kept then, and `bytes` is empty.
  absl::StatusOr<std::optional<Record>> Next(std::string_view& bytes);

  // Bytes of an unfinished record; nonzero at a hang-up means that the peer died in the middle of
  // one.
  size_t pending() const { return buffer_.size() - start_; }

 private:
  // The record that `bytes` begin with, and its length on the wire; 0 if it is not whole.
  absl::StatusOr<Record> Parse(std::string_view bytes, size_t& taken);

  std::string buffer_;
  size_t start_ = 0;
  absl::Status error_;
};

// Typed bodies. Decode checks every length against what remains, ranks against `size`, texts
// against their limits, and that nothing is left over.

// AGREE: soft digest, then the frame's bytes to the end of the body.
std::string EncodeSoftDigest(const Digest128& soft);
struct AgreeView {
  Digest128 soft;
  std::string_view payload;  // points into the record
};
absl::StatusOr<AgreeView> DecodeAgree(const Record& record);

// DECIDE. Empty for OK; of a frame the whole body is the result (see FrameResult).
struct DecideBody {
  WithdrawKind why = WithdrawKind::kDeadline;  // of WITHDRAWN
  std::vector<uint32_t> ranks;                 // who differs, refused, gave up, is lost
  std::vector<uint32_t> missing;               // of WITHDRAWN: who had not posted
  std::string text;                            // does not name the call
  std::string path;                            // of MISMATCH: the first leaf that differs, or empty
};
std::string EncodeDecide(const DecideBody& body);
absl::StatusOr<DecideBody> DecodeDecide(const Record& record, uint32_t size);
// The result carried by a DECIDE with kFlagFrame; takes the bytes out of `record`.
std::shared_ptr<const std::string> FrameResult(Record& record);

// REFUSE: why (of kWithdrawn) and the reason for the others.
struct RefuseBody {
  WithdrawKind why = WithdrawKind::kDeadline;
  std::string reason;
};
std::string EncodeRefuse(const RefuseBody& body);
absl::StatusOr<RefuseBody> DecodeRefuse(const Record& record);

// FAIL: reason, and which paths are done, as text.
struct FailBody {
  std::string reason;
  std::string paths_done;
};
std::string EncodeFail(const FailBody& body);
absl::StatusOr<FailBody> DecodeFail(const Record& record);

// ABORT: ranks that failed, ranks that were late, the cause as text.
struct AbortBody {
  std::vector<uint32_t> ranks;
  std::vector<uint32_t> late;
  std::string text;
};
std::string EncodeAbort(const AbortBody& body);
absl::StatusOr<AbortBody> DecodeAbort(const Record& record, uint32_t size);

// STATE: the last call whose data phase this rank entered.
std::string EncodeState(uint64_t last_granted);
absl::StatusOr<uint64_t> DecodeState(const Record& record);

// LOST, BYE: the reason.
std::string EncodeReason(std::string_view reason);
absl::StatusOr<std::string> DecodeReason(const Record& record);

}  // namespace leafpack::protocol

#endif  // LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_RECORD_H_
