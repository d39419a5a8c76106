#include "distributed/core/protocol/record.h"

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace leafpack::protocol {
namespace {

template <typename T>
void PutInt(char* out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out[i] = static_cast<char>(value >> (8 * i));
}

template <typename T>
T GetInt(const char* in) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i)
    value |= static_cast<T>(static_cast<T>(static_cast<unsigned char>(in[i])) << (8 * i));
  return value;
}

template <typename T>
void AppendInt(std::string& out, T value) {
  char bytes[sizeof(T)];
  PutInt(bytes, value);
  out.append(bytes, sizeof(T));
}

void AppendText(std::string& out, std::string_view text) {
  const std::string clipped = Clip(text);
  AppendInt<uint32_t>(out, static_cast<uint32_t>(clipped.size()));
  out += clipped;
}

// A list that is cut, not refused: ranks beyond it are only missing from a report.
constexpr size_t kMaxListedRanks = 4096;

void AppendRanks(std::string& out, const std::vector<uint32_t>& ranks) {
  const size_t n = ranks.size() < kMaxListedRanks ? ranks.size() : kMaxListedRanks;
  AppendInt<uint32_t>(out, static_cast<uint32_t>(n));
  for (size_t i = 0; i < n; ++i) AppendInt<uint32_t>(out, ranks[i]);
}

// Reads a body front to back; the first thing that does not fit is remembered.
class Reader {
 public:
  Reader(std::string_view bytes, std::string_view what) : rest_(bytes), what_(what) {}

  template <typename T>
  T Int() {
    if (failed_ || rest_.size() < sizeof(T)) return Fail<T>("too short");
    const T value = GetInt<T>(rest_.data());
    rest_.remove_prefix(sizeof(T));
    return value;
  }

  std::string Text() {
    const uint32_t n = Int<uint32_t>();
    if (failed_) return {};
    if (n > kMaxReasonBytes) return Fail<std::string>("text over its limit");
    if (n > rest_.size()) return Fail<std::string>("text longer than what remains");
    std::string text(rest_.substr(0, n));
    rest_.remove_prefix(n);
    return text;
  }

  std::vector<uint32_t> Ranks(uint32_t size) {
    const uint32_t n = Int<uint32_t>();
    if (failed_) return {};
    if (n > kMaxListedRanks || n > rest_.size() / 4)
      return Fail<std::vector<uint32_t>>("list longer than what remains");
    std::vector<uint32_t> ranks(n);
    for (uint32_t& rank : ranks) {
      rank = Int<uint32_t>();
      if (rank >= size) return Fail<std::vector<uint32_t>>("a rank outside the group");
    }
    return ranks;
  }

  // Error text, or OK if all was read.
  absl::Status Done() const {
    if (!failed_ && !rest_.empty())
      return absl::InvalidArgumentError(
          absl::StrCat(what_, ": ", rest_.size(), " bytes left over"));
    if (failed_) return absl::InvalidArgumentError(absl::StrCat(what_, ": ", why_));
    return absl::OkStatus();
  }

 private:
  template <typename T>
  T Fail(std::string_view why) {
    if (!failed_) why_ = why;
    failed_ = true;
    return T{};
  }

  std::string_view rest_;
  std::string_view what_;
  std::string_view why_;
  bool failed_ = false;
};

// What a record of one type may look like.
struct Shape {
  const char* name;
  uint8_t kinds;   // kind < kinds
  uint16_t flags;  // bits that may be set
  uint32_t min_body;
  uint32_t max_body;
};

constexpr uint32_t kText = 4 + kMaxReasonBytes;
constexpr uint32_t kList = 4 + 4 * kMaxListedRanks;
constexpr uint32_t kMaxBody = kMaxBodyBytes;

constexpr Shape kShapes[] = {
    {"", 0, 0, 0, 0},
    {"AGREE", 1, kFlagFrame | kFlagRestore | kFlagTrusted | kFlagGap | kFlagOpen, 16,
     16 + kMaxFramePayload},
    {"REFUSE", kRefuseKindCount, kFlagGap, 5, 1 + kText},
    {"WITHDRAW", kWithdrawKindCount, 0, 0, 0},
    {"DECIDE", kDecisionCount, kFlagFrame | kFlagSoftEqual | kFlagLate, 0, kMaxBody},
    {"FAIL", kFailKindCount, kFlagRestore, 8, 2 * kText},
    {"PROBE", 1, 0, 0, 0},
    {"STATE", kPhaseCount, 0, 8, 8},
    {"ABORT", kFailKindCount, 0, 12, 2 * kList + kText},
    {"DONE", 1, 0, 0, 0},
    {"COMMIT", 1, 0, 0, 0},
    {"NEED", 1, 0, 0, 0},
    {"MANIFEST", 1, kFlagLast, 0, kManifestChunk},
    {"LOST", kLostKindCount, 0, 4, kText},
    {"BYE", 1, 0, 4, kText},
};
constexpr size_t kShapeCount = sizeof(kShapes) / sizeof(kShapes[0]);
static_assert(2 * kList + kText <= kMaxBody);
static_assert(16 + kMaxFramePayload <= kMaxBody);

// A typed body from a record whose attachment may be set (rank 0 hands records over without a
// wire).
std::string_view Bytes(const Record& record) {
  return record.attachment && record.body.empty() ? std::string_view(*record.attachment)
                                                  : std::string_view(record.body);
}

}  // namespace

std::string RecordTypeName(RecordType type) {
  const auto i = static_cast<size_t>(type);
  if (i == 0 || i >= kShapeCount) return absl::StrCat("record of type ", i);
  return kShapes[i].name;
}

void EncodeHeader(const Record& record, char* out) {
  PutInt<uint32_t>(out, static_cast<uint32_t>(record.body_size()));
  out[4] = static_cast<char>(record.type);
  out[5] = static_cast<char>(record.kind);
  PutInt<uint16_t>(out + 6, record.flags);
  PutInt<uint32_t>(out + 8, record.epoch);
  PutInt<uint32_t>(out + 12, record.rank);
  PutInt<uint64_t>(out + 16, record.call);
  PutInt<uint64_t>(out + 24, record.digest.lo);
  PutInt<uint64_t>(out + 32, record.digest.hi);
}

std::string EncodeRecord(const Record& record) {
  std::string out(kHeaderBytes, '\0');
  EncodeHeader(record, out.data());
  out += record.body;
  if (record.attachment) out += *record.attachment;
  return out;
}

void RecordParser::Append(std::string_view bytes) {
  if (!error_.ok()) return;
  if (start_ == buffer_.size()) {
    buffer_.clear();
    start_ = 0;
  } else if (start_ > buffer_.size() / 2) {
    buffer_.erase(0, start_);
    start_ = 0;
  }
  buffer_.append(bytes);
}

absl::StatusOr<std::optional<Record>> RecordParser::Next() {
  size_t taken;
  absl::StatusOr<Record> record = Parse(std::string_view(buffer_).substr(start_), taken);
  if (!record.ok()) return record.status();
  if (taken == 0) return std::nullopt;
  start_ += taken;
  if (start_ == buffer_.size()) {
    buffer_.clear();
    start_ = 0;
  }
  return std::optional<Record>(*std::move(record));
}

absl::StatusOr<std::optional<Record>> RecordParser::Next(std::string_view& bytes) {
  if (pending() > 0) {
    Append(std::exchange(bytes, {}));
    return Next();
  }
  size_t taken;
  absl::StatusOr<Record> record = Parse(bytes, taken);
  if (!record.ok()) return record.status();
  if (taken == 0) {
    Append(std::exchange(bytes, {}));
    return std::nullopt;
  }
  bytes.remove_prefix(taken);
  return std::optional<Record>(*std::move(record));
}

absl::StatusOr<Record> RecordParser::Parse(std::string_view bytes, size_t& taken) {
  taken = 0;
  if (!error_.ok()) return error_;
  Record record;
  if (bytes.size() < kHeaderBytes) return record;
  const char* const at = bytes.data();
  const uint32_t length = GetInt<uint32_t>(at);
  const auto type = static_cast<uint8_t>(at[4]);
  const auto kind = static_cast<uint8_t>(at[5]);
  const uint16_t flags = GetInt<uint16_t>(at + 6);
  if (type == 0 || type >= kShapeCount)
    return error_ = absl::InvalidArgumentError(absl::StrCat("unknown record type ", type));
  const Shape& shape = kShapes[type];
  if (kind >= shape.kinds)
    return error_ = absl::InvalidArgumentError(absl::StrCat(shape.name, " of unknown kind ", kind));
  if ((flags & ~shape.flags) != 0)
    return error_ =
               absl::InvalidArgumentError(absl::StrCat(shape.name, " with unknown flags ", flags));
  if (length < shape.min_body || length > shape.max_body) {
    return error_ = absl::InvalidArgumentError(absl::StrCat(shape.name, " with a body of ", length,
                                                            " bytes, allowed are ", shape.min_body,
                                                            " to ", shape.max_body));
  }
  if (bytes.size() - kHeaderBytes < length) return record;
  record.type = static_cast<RecordType>(type);
  record.kind = kind;
  record.flags = flags;
  record.epoch = GetInt<uint32_t>(at + 8);
  record.rank = GetInt<uint32_t>(at + 12);
  record.call = GetInt<uint64_t>(at + 16);
  record.digest.lo = GetInt<uint64_t>(at + 24);
  record.digest.hi = GetInt<uint64_t>(at + 32);
  record.body.assign(at + kHeaderBytes, length);
  taken = kHeaderBytes + length;
  return record;
}

std::string EncodeSoftDigest(const Digest128& soft) {
  std::string out;
  AppendInt<uint64_t>(out, soft.lo);
  AppendInt<uint64_t>(out, soft.hi);
  return out;
}

absl::StatusOr<AgreeView> DecodeAgree(const Record& record) {
  if (record.body.size() < 16) return absl::InvalidArgumentError("AGREE: too short");
  AgreeView view;
  view.soft.lo = GetInt<uint64_t>(record.body.data());
  view.soft.hi = GetInt<uint64_t>(record.body.data() + 8);
  view.payload = record.attachment ? std::string_view(*record.attachment)
                                   : std::string_view(record.body).substr(16);
  if (record.attachment && record.body.size() != 16)
    return absl::InvalidArgumentError("AGREE: payload in two parts");
  if (!record.Has(kFlagFrame) && !view.payload.empty())
    return absl::InvalidArgumentError("AGREE: payload without the frame flag");
  if (view.payload.size() > kMaxFramePayload)
    return absl::InvalidArgumentError("AGREE: payload over its limit");
  if (record.Has(kFlagTrusted) &&
      (record.Has(kFlagFrame) || record.Has(kFlagRestore) || record.Has(kFlagOpen))) {
    return absl::InvalidArgumentError(
        "AGREE: a trusted call is neither a frame nor an open or a restore call");
  }
  return view;
}

std::string EncodeDecide(const DecideBody& body) {
  std::string out;
  AppendInt<uint8_t>(out, static_cast<uint8_t>(body.why));
  AppendRanks(out, body.ranks);
  AppendRanks(out, body.missing);
  AppendText(out, body.text);
  AppendText(out, body.path);
  return out;
}

absl::StatusOr<DecideBody> DecodeDecide(const Record& record, uint32_t size) {
  DecideBody body;
  if (record.kind == static_cast<uint8_t>(Decision::kOk)) {
    if (!record.Has(kFlagFrame) && record.body_size() != 0)
      return absl::InvalidArgumentError("DECIDE: OK with a body");
    return body;
  }
  if (record.Has(kFlagFrame)) return absl::InvalidArgumentError("DECIDE: a result without OK");
  Reader reader(Bytes(record), "DECIDE");
  const auto why = reader.Int<uint8_t>();
  body.ranks = reader.Ranks(size);
  body.missing = reader.Ranks(size);
  body.text = reader.Text();
  body.path = reader.Text();
  if (absl::Status s = reader.Done(); !s.ok()) return s;
  if (why >= kWithdrawKindCount) return absl::InvalidArgumentError("DECIDE: unknown reason");
  body.why = static_cast<WithdrawKind>(why);
  return body;
}

std::shared_ptr<const std::string> FrameResult(Record& record) {
  if (record.attachment) return std::move(record.attachment);
  return std::make_shared<const std::string>(std::move(record.body));
}

std::string EncodeRefuse(const RefuseBody& body) {
  std::string out;
  AppendInt<uint8_t>(out, static_cast<uint8_t>(body.why));
  AppendText(out, body.reason);
  return out;
}

absl::StatusOr<RefuseBody> DecodeRefuse(const Record& record) {
  Reader reader(Bytes(record), "REFUSE");
  const auto why = reader.Int<uint8_t>();
  RefuseBody body;
  body.reason = reader.Text();
  if (absl::Status s = reader.Done(); !s.ok()) return s;
  if (why >= kWithdrawKindCount) return absl::InvalidArgumentError("REFUSE: unknown reason");
  body.why = static_cast<WithdrawKind>(why);
  return body;
}

std::string EncodeFail(const FailBody& body) {
  std::string out;
  AppendText(out, body.reason);
  AppendText(out, body.paths_done);
  return out;
}

absl::StatusOr<FailBody> DecodeFail(const Record& record) {
  Reader reader(Bytes(record), "FAIL");
  FailBody body;
  body.reason = reader.Text();
  body.paths_done = reader.Text();
  if (absl::Status s = reader.Done(); !s.ok()) return s;
  return body;
}

std::string EncodeAbort(const AbortBody& body) {
  std::string out;
  AppendRanks(out, body.ranks);
  AppendRanks(out, body.late);
  AppendText(out, body.text);
  return out;
}

absl::StatusOr<AbortBody> DecodeAbort(const Record& record, uint32_t size) {
  Reader reader(Bytes(record), "ABORT");
  AbortBody body;
  body.ranks = reader.Ranks(size);
  body.late = reader.Ranks(size);
  body.text = reader.Text();
  if (absl::Status s = reader.Done(); !s.ok()) return s;
  return body;
}

std::string EncodeState(uint64_t last_granted) {
  std::string out;
  AppendInt<uint64_t>(out, last_granted);
  return out;
}

absl::StatusOr<uint64_t> DecodeState(const Record& record) {
  Reader reader(Bytes(record), "STATE");
  const auto last = reader.Int<uint64_t>();
  if (absl::Status s = reader.Done(); !s.ok()) return s;
  return last;
}

std::string EncodeReason(std::string_view reason) {
  std::string out;
  AppendText(out, reason);
  return out;
}

absl::StatusOr<std::string> DecodeReason(const Record& record) {
  Reader reader(Bytes(record), "reason");
  std::string reason = reader.Text();
  if (absl::Status s = reader.Done(); !s.ok()) return s;
  return reason;
}

}  // namespace leafpack::protocol
