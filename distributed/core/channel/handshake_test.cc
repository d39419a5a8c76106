#include "distributed/core/channel/handshake.h"

#include <random>
#include <string>

#include "gtest/gtest.h"

namespace leafpack {
namespace {

Rendezvous Example() {
  return {3, *NewToken(), *NewToken(), "leafpack-abc", {{false, "10.0.0.7", 4711}, {true, "fd00::7", 65535}}};
}

TEST(HandshakeTest, TokensAreRandomAndCompared) {
  const ChannelToken a = *NewToken(), b = *NewToken();
  EXPECT_TRUE(TokensEqual(a, a));
  EXPECT_FALSE(TokensEqual(a, b));
  for (size_t bit = 0; bit < 128; ++bit) {
    ChannelToken changed = a;
    changed[bit / 8] = static_cast<uint8_t>(changed[bit / 8] ^ (1u << bit % 8));
    EXPECT_FALSE(TokensEqual(a, changed)) << bit;
  }
}

TEST(HandshakeTest, RendezvousRoundTrip) {
  const Rendezvous in = Example();
  absl::StatusOr<Rendezvous> out = DecodeRendezvous(EncodeRendezvous(in));
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_EQ(out->protocol_version, 3u);
  EXPECT_EQ(out->token_a, in.token_a);
  EXPECT_EQ(out->token_b, in.token_b);
  EXPECT_EQ(out->unix_name, in.unix_name);
  EXPECT_EQ(out->tcp, in.tcp);
  EXPECT_EQ(out->tcp[0].ToString(), "10.0.0.7:4711");
  EXPECT_EQ(out->tcp[1].ToString(), "[fd00::7]:65535");
}

TEST(HandshakeTest, RendezvousSkipsLinesOfLaterVersions) {
  std::string value = EncodeRendezvous(Example());
  value.insert(value.find("token_b"), "rdma some thing else\n");
  EXPECT_TRUE(DecodeRendezvous(value).ok());
}

TEST(HandshakeTest, RendezvousThatIsCutOrChangedIsRefusedOrDecoded) {
  const std::string value = EncodeRendezvous(Example());
  for (size_t length = 0; length + 1 < value.size(); ++length) {
    EXPECT_FALSE(DecodeRendezvous(value.substr(0, length)).ok()) << length;
  }
  for (const char* bad : {"", "end\n", "leafpack-channel x\n", "leafpack-channel 1\ntoken_a zz\ntoken_b zz\nend\n"}) {
    EXPECT_FALSE(DecodeRendezvous(bad).ok()) << bad;
  }
  std::string port = value;
  port.replace(port.find("4711"), 4, "70000");
  EXPECT_FALSE(DecodeRendezvous(port).ok());
  EXPECT_FALSE(DecodeRendezvous(value + std::string(5000, 'x')).ok());
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    std::string changed = value;
    changed[random() % changed.size()] = static_cast<char>(random());
    DecodeRendezvous(changed).IgnoreError();  // must not read beyond its input; a sanitizer watches
  }
}

TEST(HandshakeTest, HelloRoundTrip) {
  const Hello in{1, *NewToken(), 5, 9, "0.1.0"};
  const std::string wire = EncodeHello(in);
  absl::StatusOr<size_t> length = HelloLength(wire.substr(0, kHandshakePrefixBytes));
  ASSERT_TRUE(length.ok());
  ASSERT_EQ(*length, wire.size() - kHandshakePrefixBytes);
  const std::string body = wire.substr(kHandshakePrefixBytes);
  absl::StatusOr<Hello> out = DecodeHello(body, 1);
  ASSERT_TRUE(out.ok());
  EXPECT_EQ(out->protocol_version, 1u);
  EXPECT_EQ(out->token, in.token);
  EXPECT_EQ(out->rank, 5u);
  EXPECT_EQ(out->size, 9u);
  EXPECT_EQ(out->library_version, "0.1.0");
  EXPECT_FALSE(DecodeHello(body + "x", 1).ok());
  EXPECT_TRUE(DecodeHello(body + "x", 2).ok());
  for (size_t cut = 0; cut < body.size(); ++cut) EXPECT_FALSE(DecodeHello(body.substr(0, cut), 1).ok()) << cut;
}

TEST(HandshakeTest, LengthsAreChecked) {
  const std::string wire = EncodeHello({1, *NewToken(), 5, 9, std::string(1000, 'v')});
  EXPECT_TRUE(HelloLength(wire.substr(0, 8)).ok());
  EXPECT_FALSE(HelloLength(std::string_view("LPHI\x01\x01\x00\x00", 8)).ok());  // 257
  EXPECT_FALSE(HelloLength(std::string_view("LPHI\x10\x00\x00\x00", 8)).ok());  // too short to be one
  EXPECT_FALSE(HelloLength(std::string_view("LPHJ\x40\x00\x00\x00", 8)).ok());
  EXPECT_FALSE(ReplyLength(wire.substr(0, 8)).ok());
}

TEST(HandshakeTest, ReplyRoundTrip) {
  for (const auto& [welcome, lane] : {std::pair(true, true), std::pair(true, false), std::pair(false, false)}) {
    const Reply in{welcome, *NewToken(), welcome ? "" : std::string(5000, 'r'), lane};
    const std::string wire = EncodeReply(in);
    ASSERT_EQ(*ReplyLength(wire.substr(0, 8)), wire.size() - 8);
    absl::StatusOr<Reply> out = DecodeReply(wire.substr(8));
    ASSERT_TRUE(out.ok());
    EXPECT_EQ(out->welcome, welcome);
    EXPECT_EQ(out->lane, lane);
    EXPECT_EQ(out->token, in.token);
    EXPECT_EQ(out->reason, in.reason.substr(0, 1024));
  }
  EXPECT_FALSE(DecodeReply(std::string(17, '\2')).ok());
  EXPECT_FALSE(DecodeReply("").ok());
  EXPECT_FALSE(DecodeReply(std::string(17, '\1')).ok());
  EXPECT_FALSE(DecodeReply(std::string(17, '\1') + '\2').ok());
  EXPECT_FALSE(DecodeReply(std::string(19, '\1')).ok());
}

}  // namespace
}  // namespace leafpack
