#include "distributed/tree/reduce_rounds.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace leafpack::internal {
namespace {

BucketPlan MakePlan(const std::vector<int64_t>& elements, c10::ScalarType dtype) {
  BucketPlan plan;
  for (const int64_t count : elements) {
    Bucket bucket;
    bucket.dtype = dtype;
    bucket.bytes = count * static_cast<int64_t>(c10::elementSize(dtype));
    bucket.slots.push_back({static_cast<int64_t>(plan.buckets.size()), 0, bucket.bytes});
    plan.buckets.push_back(std::move(bucket));
  }
  return plan;
}

// Every element of every bucket has one owner, runs come in order, and scratch is bounded.
void ExpectSound(const BucketPlan& plan, const std::vector<ReduceRound>& rounds, int ranks) {
  std::vector<int64_t> next(plan.buckets.size());
  int64_t opened = 0, closed = 0, all = 0;
  for (const Bucket& bucket : plan.buckets) all += bucket.bytes;
  for (const ReduceRound& round : rounds) {
    EXPECT_FALSE(round.chunks.empty());
    opened += round.opened_bytes;
    closed += round.closed_bytes;
    EXPECT_LE(closed, opened);
    std::vector<int64_t> received(static_cast<size_t>(ranks));
    bool split = false;
    for (const ReduceChunk& chunk : round.chunks) {
      const auto element =
          static_cast<int64_t>(c10::elementSize(plan.buckets[chunk.bucket].dtype));
      EXPECT_EQ(chunk.begin, next[chunk.bucket]);
      EXPECT_GT(chunk.count, 0);
      next[chunk.bucket] += chunk.count;
      split |= chunk.owner < 0;
      int64_t at = chunk.begin;
      for (int r = 0; r < ranks; ++r) {
        if (chunk.PartCount(r, ranks) == 0) continue;
        EXPECT_EQ(chunk.PartBegin(r, ranks), at);
        at += chunk.PartCount(r, ranks);
        received[static_cast<size_t>(r)] += chunk.PartCount(r, ranks) * element * (ranks - 1);
      }
      EXPECT_EQ(at, chunk.begin + chunk.count);
    }
    EXPECT_EQ(split, round.has_split);
    for (const int64_t bytes : received) EXPECT_LE(bytes, kRoundBytes + 64 * 16 * (ranks - 1));
  }
  EXPECT_EQ(opened, all);
  EXPECT_EQ(closed, all);
  for (size_t i = 0; i < plan.buckets.size(); ++i) {
    EXPECT_EQ(next[i] * static_cast<int64_t>(c10::elementSize(plan.buckets[i].dtype)),
              plan.buckets[i].bytes);
  }
}

const std::vector<std::vector<int64_t>> kSizes = {
    {}, {1}, {7, 1, 3}, {5'000'003}, {10, 4'000'000, 10, 33'000, 2'500'000, 1}};

TEST(ReduceRoundsTest, ToARoot) {
  for (const std::vector<int64_t>& sizes : kSizes) {
    for (const c10::ScalarType dtype : {c10::ScalarType::Float, c10::ScalarType::ComplexDouble}) {
      const BucketPlan plan = MakePlan(sizes, dtype);
      for (int ranks = 2; ranks <= 5; ++ranks) {
        const std::vector<ReduceRound> rounds = PlanReduceRounds(plan, ranks, ranks - 1);
        ExpectSound(plan, rounds, ranks);
        for (const ReduceRound& round : rounds) {
          for (const ReduceChunk& chunk : round.chunks) {
            if (ranks == 2) {
              EXPECT_EQ(chunk.owner, 1);
            }
            if (chunk.owner < 0) {
              EXPECT_GT(ranks, 2);
            }
          }
        }
      }
    }
  }
}

TEST(ReduceRoundsTest, LargeRunsAreCutAndSmallOnesShareARound) {
  const BucketPlan plan = MakePlan({100, 100, 100, 8'000'000}, c10::ScalarType::Float);
  const std::vector<ReduceRound> rounds = PlanReduceRounds(plan, 4, 2);
  ASSERT_GE(rounds.size(), 2u);
  ASSERT_GE(rounds[0].chunks.size(), 4u);
  EXPECT_EQ(rounds[0].chunks[0], (ReduceChunk{0, 0, 100, 2}));
  EXPECT_EQ(rounds[0].chunks[2], (ReduceChunk{2, 0, 100, 2}));
  EXPECT_EQ(rounds[0].chunks[3].owner, -1);
  EXPECT_GT(rounds[0].chunks[3].PartCount(0, 4), 0);
}

TEST(ReduceRoundsTest, Scattered) {
  for (const std::vector<int64_t>& sizes : kSizes) {
    for (int ranks = 2; ranks <= 4; ++ranks) {
      const BucketPlan plan = MakePlan(sizes, c10::ScalarType::Float);
      std::vector<int> owners;
      for (size_t i = 0; i < sizes.size(); ++i) owners.push_back(static_cast<int>(i * 7 % 3) % ranks);
      const std::vector<ReduceRound> rounds = PlanReduceScatterRounds(plan, owners, ranks);
      ExpectSound(plan, rounds, ranks);
      for (const ReduceRound& round : rounds) {
        for (const ReduceChunk& chunk : round.chunks) EXPECT_EQ(chunk.owner, owners[chunk.bucket]);
      }
    }
  }
}

}  // namespace
}  // namespace leafpack::internal
