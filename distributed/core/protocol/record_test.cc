// Records survive the wire, and bytes that are no record are refused without belief or growth.
#include "distributed/core/protocol/record.h"

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace leafpack::protocol {
namespace {

Record Make(RecordType type, uint8_t kind = 0, std::string body = {}) {
  Record record;
  record.type = type;
  record.kind = kind;
  record.epoch = 0x01020304;
  record.rank = 5;
  record.call = 0x1122334455667788;
  record.digest = {0xAABBCCDDEEFF0011, 0x2233445566778899};
  record.body = std::move(body);
  return record;
}

// One valid record of each type.
std::vector<Record> AllRecords() {
  std::vector<Record> all;
  all.push_back(Make(RecordType::kAgree, 0, EncodeSoftDigest({1, 2}) + std::string(1000, 'x')));
  all.back().flags = kFlagFrame;
  all.push_back(Make(RecordType::kRefuse, 2, EncodeRefuse({WithdrawKind::kInterrupt, "because"})));
  all.push_back(Make(RecordType::kWithdraw, 1));
  all.push_back(Make(RecordType::kDecide, 1,
                     EncodeDecide({WithdrawKind::kCancel, {1, 2}, {3}, "text", "path"})));
  all.push_back(Make(RecordType::kFail, 0, EncodeFail({"reason", "a, b"})));
  all.push_back(Make(RecordType::kProbe));
  all.push_back(Make(RecordType::kState, 2, EncodeState(77)));
  all.push_back(Make(RecordType::kAbort, 1, EncodeAbort({{0}, {1, 2}, "text"})));
  all.push_back(Make(RecordType::kDone));
  all.push_back(Make(RecordType::kCommit));
  all.push_back(Make(RecordType::kNeed));
  all.push_back(Make(RecordType::kManifest, 0, "chunk"));
  all.push_back(Make(RecordType::kLost, 0, EncodeReason("hang-up")));
  all.push_back(Make(RecordType::kBye, 0, EncodeReason("")));
  return all;
}

void ExpectSame(const Record& a, const Record& b) {
  EXPECT_EQ(a.type, b.type);
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.flags, b.flags);
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.rank, b.rank);
  EXPECT_EQ(a.call, b.call);
  EXPECT_EQ(a.digest, b.digest);
  EXPECT_EQ(a.body, b.body);
}

TEST(RecordTest, HeaderIsLittleEndianAndFortyBytes) {
  Record record = Make(RecordType::kManifest, 0, "abc");
  record.flags = kFlagLast;
  const std::string wire = EncodeRecord(record);
  const std::string expected(
      "\x03\0\0\0"
      "\x0c"
      "\0"
      "\x40\0"
      "\x04\x03\x02\x01"
      "\x05\0\0\0"
      "\x88\x77\x66\x55\x44\x33\x22\x11"
      "\x11\0\xff\xee\xdd\xcc\xbb\xaa"
      "\x99\x88\x77\x66\x55\x44\x33\x22"
      "abc",
      43);
  EXPECT_EQ(wire, expected);
}

TEST(RecordTest, DigestPrintsAsHex) {
  EXPECT_EQ((Digest128{0x0123456789abcdef, 0xfedcba9876543210}).ToString(),
            "fedcba98765432100123456789abcdef");
  EXPECT_TRUE(Digest128().IsZero());
}

TEST(RecordParserTest, EveryTypeSurvivesAnyCut) {
  const std::vector<Record> all = AllRecords();
  std::string wire;
  for (const Record& record : all) wire += EncodeRecord(record);
  for (const size_t step : {size_t{1}, size_t{7}, size_t{39}, size_t{41}, wire.size()}) {
    RecordParser parser;
    size_t seen = 0;
    for (size_t at = 0; at < wire.size(); at += step) {
      parser.Append(std::string_view(wire).substr(at, step));
      while (true) {
        absl::StatusOr<std::optional<Record>> next = parser.Next();
        ASSERT_TRUE(next.ok()) << next.status();
        if (!next->has_value()) break;
        ASSERT_LT(seen, all.size());
        ExpectSame(**next, all[seen++]);
      }
    }
    EXPECT_EQ(seen, all.size());
    EXPECT_EQ(parser.pending(), 0u);
  }
}

// What was just read is taken from where it lies, and only what is unfinished is kept.
TEST(RecordParserTest, TakesRecordsFromFreshBytes) {
  std::string wire;
  for (int i = 0; i < 3; ++i) wire += EncodeRecord(Make(RecordType::kLost, 0, EncodeReason(std::string(i, 'r'))));
  for (size_t step : {wire.size(), size_t{1}, size_t{7}, size_t{41}, size_t{45}}) {
    RecordParser parser;
    size_t seen = 0;
    for (size_t at = 0; at < wire.size(); at += step) {
      std::string_view bytes = std::string_view(wire).substr(at, step);
      while (true) {
        absl::StatusOr<std::optional<Record>> next = parser.Next(bytes);
        ASSERT_TRUE(next.ok()) << next.status();
        if (!next->has_value()) break;
        EXPECT_EQ(*DecodeReason(**next), std::string(seen++, 'r')) << "in steps of " << step;
      }
      EXPECT_TRUE(bytes.empty());
    }
    EXPECT_EQ(seen, 3u) << "in steps of " << step;
    EXPECT_EQ(parser.pending(), 0u);
  }
  RecordParser parser;
  std::string bad = EncodeRecord(Make(RecordType::kCommit));
  bad[4] = 0;
  std::string_view bytes = bad;
  EXPECT_FALSE(parser.Next(bytes).ok());
  std::string good = EncodeRecord(Make(RecordType::kCommit));
  bytes = good;
  EXPECT_FALSE(parser.Next(bytes).ok()) << "it stays in error";
}

TEST(RecordParserTest, AttachmentFollowsTheBody) {
  Record record = Make(RecordType::kAgree, 0, EncodeSoftDigest({}));
  record.flags = kFlagFrame;
  record.attachment = std::make_shared<const std::string>("payload");
  RecordParser parser;
  parser.Append(EncodeRecord(record));
  absl::StatusOr<std::optional<Record>> next = parser.Next();
  ASSERT_TRUE(next.ok() && next->has_value());
  EXPECT_EQ(DecodeAgree(**next)->payload, "payload");
  EXPECT_EQ(DecodeAgree(record)->payload, "payload");
}

TEST(RecordParserTest, RefusesWhatIsNoRecord) {
  struct Case {
    size_t at;
    std::string bytes;
    std::string says;
  };
  const std::string good = EncodeRecord(Make(RecordType::kCommit));
  const std::vector<Case> cases = {
      {4, std::string(1, '\0'), "unknown record type 0"},
      {4, "\x0f", "unknown record type 15"},
      {5, "\x01", "COMMIT of unknown kind 1"},
      {6, "\x01", "COMMIT with unknown flags 1"},
      {7, "\x80", "COMMIT with unknown flags 32768"},
      {0, "\x01", "COMMIT with a body of 1 bytes"},
      {0, "\xff\xff\xff\xff", "COMMIT with a body of 4294967295 bytes"},
  };
  for (const Case& c : cases) {
    std::string bad = good;
    bad.replace(c.at, c.bytes.size(), c.bytes);
    RecordParser parser;
    parser.Append(bad);
    absl::StatusOr<std::optional<Record>> next = parser.Next();
    ASSERT_FALSE(next.ok()) << c.says;
    EXPECT_NE(next.status().message().find(c.says), std::string::npos) << next.status();
    // It stays in error, and keeps nothing more.
    parser.Append(good);
    EXPECT_FALSE(parser.Next().ok());
  }
}

TEST(RecordParserTest, BodyLimitsAreExact) {
  Record record = Make(RecordType::kManifest, 0, std::string(kManifestChunk, 'x'));
  RecordParser parser;
  parser.Append(EncodeRecord(record));
  EXPECT_TRUE(parser.Next().ok());
  record.body += 'x';
  parser.Append(EncodeRecord(record));
  EXPECT_FALSE(parser.Next().ok());
}

TEST(BodyTest, RoundTrips) {
  const std::vector<Record> all = AllRecords();
  EXPECT_EQ(DecodeAgree(all[0])->soft, (Digest128{1, 2}));
  EXPECT_EQ(DecodeRefuse(all[1])->reason, "because");
  EXPECT_EQ(DecodeRefuse(all[1])->why, WithdrawKind::kInterrupt);
  const absl::StatusOr<DecideBody> decide = DecodeDecide(all[3], 4);
  ASSERT_TRUE(decide.ok());
  EXPECT_EQ(decide->why, WithdrawKind::kCancel);
  EXPECT_EQ(decide->ranks, (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(decide->missing, (std::vector<uint32_t>{3}));
  EXPECT_EQ(decide->text, "text");
  EXPECT_EQ(decide->path, "path");
  EXPECT_EQ(DecodeFail(all[4])->paths_done, "a, b");
  EXPECT_EQ(*DecodeState(all[6]), 77u);
  EXPECT_EQ(DecodeAbort(all[7], 3)->late, (std::vector<uint32_t>{1, 2}));
  EXPECT_EQ(*DecodeReason(all[12]), "hang-up");
}

TEST(BodyTest, ChecksRanksLengthsAndLeftovers) {
  Record record = AllRecords()[3];
  EXPECT_FALSE(DecodeDecide(record, 3).ok());  // names rank 3 of 3
  record.body.pop_back();
  EXPECT_FALSE(DecodeDecide(record, 4).ok());
  record.body += "yz";
  EXPECT_FALSE(DecodeDecide(record, 4).ok());
  record = Make(RecordType::kDecide, 1, std::string("\0\xff\xff\xff\x7f", 5));
  EXPECT_FALSE(DecodeDecide(record, 4).ok());
  record = Make(RecordType::kRefuse, 0, std::string("\0\xff\xff\0\0", 5));
  EXPECT_FALSE(DecodeRefuse(record).ok());
  record = Make(RecordType::kDecide, 0, "x");
  EXPECT_FALSE(DecodeDecide(record, 4).ok());  // OK of a data call has no body
  record = AllRecords()[0];
  record.flags = 0;
  EXPECT_FALSE(DecodeAgree(record).ok());  // payload without the flag
  record.flags = kFlagFrame | kFlagTrusted;
  EXPECT_FALSE(DecodeAgree(record).ok());
}

TEST(BodyTest, TextsAreCutToTheirLimitOnACharacter) {
  std::string reason(kMaxReasonBytes - 1, 'a');
  reason += "\xc3\xa9";  // é, of which only one byte would fit
  const Record record =
      Make(RecordType::kRefuse, 0, EncodeRefuse({WithdrawKind::kDeadline, reason}));
  const absl::StatusOr<RefuseBody> body = DecodeRefuse(record);
  ASSERT_TRUE(body.ok());
  EXPECT_EQ(body->reason, std::string(kMaxReasonBytes - 1, 'a'));
}

// Feeds `wire` in random pieces; whatever happens, the parser must not crash, must not make up
// bytes, and must decode or refuse every body.
void Feed(const std::string& wire, std::mt19937_64& random) {
  RecordParser parser;
  size_t at = 0;
  size_t consumed = 0;
  while (at < wire.size()) {
    const size_t n = std::min<size_t>(1 + random() % 100, wire.size() - at);
    parser.Append(std::string_view(wire).substr(at, n));
    at += n;
    while (true) {
      absl::StatusOr<std::optional<Record>> next = parser.Next();
      if (!next.ok()) {
        ASSERT_FALSE(next.status().message().empty());
        return;
      }
      if (!next->has_value()) break;
      Record& record = **next;
      ASSERT_LE(record.body.size(), kMaxBodyBytes);
      consumed += kHeaderBytes + record.body.size();
      ASSERT_LE(consumed, at);
      ASSERT_EQ(EncodeRecord(record), wire.substr(consumed - kHeaderBytes - record.body.size(),
                                                  kHeaderBytes + record.body.size()));
      (void)DecodeAgree(record).ok();
      (void)DecodeRefuse(record).ok();
      (void)DecodeDecide(record, 4).ok();
      (void)DecodeFail(record).ok();
      (void)DecodeAbort(record, 4).ok();
      (void)DecodeState(record).ok();
      (void)DecodeReason(record).ok();
    }
    ASSERT_EQ(parser.pending(), at - consumed);
  }
}

TEST(RecordParserFuzz, RandomBytes) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    std::string wire(random() % 400, '\0');
    for (char& c : wire) c = static_cast<char>(random());
    Feed(wire, random);
    if (HasFatalFailure()) return;
  }
}

TEST(RecordParserFuzz, MutatedAndTruncatedStreams) {
  const std::vector<Record> all = AllRecords();
  for (uint64_t seed = 0; seed < 6000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    std::string wire;
    const size_t records = 1 + random() % 6;
    for (size_t i = 0; i < records; ++i) wire += EncodeRecord(all[random() % all.size()]);
    switch (random() % 5) {
      case 0:
        wire.resize(random() % wire.size());
        break;
      case 1:
        for (uint64_t i = 1 + random() % 8; i > 0; --i)
          wire[random() % wire.size()] = static_cast<char>(random());
        break;
      case 2:
        wire.insert(random() % wire.size(),
                    std::string(1 + random() % 50, static_cast<char>(random())));
        break;
      case 3:
        wire.erase(random() % wire.size(), 1 + random() % 50);
        break;
      case 4: {  // a huge or off-by-some length
        const uint32_t length = random() % 2 == 0 ? static_cast<uint32_t>(random())
                                                  : static_cast<uint32_t>(random() % 100);
        std::memcpy(wire.data(), &length, 4);
        break;
      }
    }
    if (!wire.empty()) Feed(wire, random);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace leafpack::protocol
