#include "tensordict/digest128.h"

#include <gtest/gtest.h>

#include <string>

#include "tensordict/digest_builder.h"

namespace leafpack {
namespace {

TEST(Digest128Test, ToString) {
  EXPECT_EQ(Digest128().ToString(), std::string(32, '0'));
  EXPECT_EQ((Digest128{.lo = 0xabc, .hi = 0x1}).ToString(), "00000000000000010000000000000abc");
  EXPECT_TRUE(Digest128().IsZero());
  EXPECT_FALSE((Digest128{.lo = 1}).IsZero());
}

TEST(DigestBuilderTest, TheSameEverywhere) {
  DigestBuilder builder("test 1");
  builder.U8(1);
  builder.U32(0x01020304);
  builder.U64(0x0102030405060708);
  builder.I64(-2);
  builder.Bytes("abc");
  builder.Digest({.lo = 3, .hi = 4});
  EXPECT_EQ(builder.Finish().ToString(), "c1c131578a2d4dbefeef9ad203d3ffb6");
}

TEST(DigestBuilderTest, StringsDoNotRunTogether) {
  DigestBuilder a("");
  a.Bytes("ab");
  a.Bytes("c");
  DigestBuilder b("");
  b.Bytes("a");
  b.Bytes("bc");
  EXPECT_NE(a.Finish(), b.Finish());
  EXPECT_NE(DigestBuilder("x").Finish(), DigestBuilder("y").Finish());
}

}  // namespace
}  // namespace leafpack
