// Every instruction set that this machine has gives the bits of the loops for all machines.
#include "distributed/core/reduce/direct.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace leafpack::reduce_internal {
namespace {

using Find = DirectKernel (*)(DirectType, DirectOp, int);

void ExpectSameBits(Find find) {
  std::mt19937 random(7);
  int kernels = 0;
  for (int type = 0; type < static_cast<int>(DirectType::kCount); ++type) {
    for (int op = 0; op < static_cast<int>(DirectOp::kCount); ++op) {
      for (int inputs = 1; inputs <= kDirectInputs + 1; ++inputs) {
        const DirectKernel expected =
            FindBaseKernel(static_cast<DirectType>(type), static_cast<DirectOp>(op), inputs);
        const DirectKernel tested =
            find(static_cast<DirectType>(type), static_cast<DirectOp>(op), inputs);
        ASSERT_EQ(expected == nullptr, tested == nullptr);
        if (expected == nullptr) continue;
        ++kernels;
        for (const int64_t count : {0, 1, 15, 64, 333}) {
          // Odd addresses; numbers without NaN of several payloads, whose choice is free.
          std::vector<std::vector<char>> sources(5, std::vector<char>(8 * 333 + 1));
          const char* pointers[kDirectInputs] = {};
          for (int i = 0; i < inputs; ++i) {
            for (char& c : sources[static_cast<size_t>(i)]) {
              c = static_cast<char>(random() % 0x70);
            }
            pointers[i] = sources[static_cast<size_t>(i)].data() + 1;
          }
          std::vector<char> a(8 * 333 + 1), b(8 * 333 + 1);
          expected(pointers, a.data() + 1, count);
          tested(pointers, b.data() + 1, count);
          ASSERT_EQ(a, b) << "type " << type << " op " << op << " inputs " << inputs;
          // Into the last input.
          std::vector<char>& last = sources[static_cast<size_t>(inputs - 1)];
          tested(pointers, last.data() + 1, count);
          ASSERT_TRUE(std::equal(a.begin() + 1, a.begin() + 1 + count, last.begin() + 1))
              << "in place: type " << type << " op " << op << " inputs " << inputs;
        }
      }
    }
  }
  EXPECT_GE(kernels, 150);
}

TEST(DirectTest, Avx2HasTheSameBits) {
  if (!HasAvx2()) GTEST_SKIP() << "this machine has no AVX2";
  ExpectSameBits(&FindAvx2Kernel);
}

TEST(DirectTest, Avx512HasTheSameBits) {
  if (!HasAvx512()) GTEST_SKIP() << "this machine has no AVX-512";
  ExpectSameBits(&FindAvx512Kernel);
}

TEST(DirectTest, TheChoiceHasTheSameBits) { ExpectSameBits(&FindDirectKernel); }

}  // namespace
}  // namespace leafpack::reduce_internal
