#include "tensordict/bucket/packer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensordict/bucket/bucket_plan.h"
#include "tensordict/bucket/buffer_pool.h"
#include "tensordict/dtype.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"
#include "tensordict/nested_key.h"

namespace {
std::atomic<int64_t> allocations{0};
}  // namespace

// Counts allocations of the whole program; see NothingIsAllocatedOnceWarm.
void* operator new(size_t bytes) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace leafpack {
namespace {

using testing::HasSubstr;

FlatTree Tree(const std::vector<at::Tensor>& leaves) {
  std::vector<std::pair<NestedKey, at::Tensor>> pairs;
  for (size_t i = 0; i < leaves.size(); ++i) pairs.emplace_back(NestedKey{i}, leaves[i]);
  return *MakeFlatTree(std::move(pairs));
}

BucketPlan PlanOf(const std::vector<at::Tensor>& leaves, Bucketing bucketing,
                  int64_t alignment = 0) {
  const absl::StatusOr<Layout> layout = Layout::Of(Tree(leaves));
  EXPECT_TRUE(layout.ok()) << layout.status();
  PlanParams params;
  params.alignment = alignment;
  return *MakeBucketPlan(*layout, bucketing, params);
}

Bucket OneBucket(const std::vector<at::Tensor>& leaves, int64_t alignment = 0) {
  const BucketPlan plan = PlanOf(leaves, Bucketing::MaxBytes(int64_t{1} << 40), alignment);
  EXPECT_EQ(plan.buckets.size(), 1u);
  return plan.buckets[0];
}

std::vector<char> BytesOf(const void* data, int64_t bytes) {
  const auto* begin = static_cast<const char*>(data);
  return std::vector<char>(begin, begin + bytes);
}

std::vector<char> StorageOf(const at::Tensor& t) {
  return BytesOf(t.storage().data(), static_cast<int64_t>(t.storage().nbytes()));
}

// Byte offsets in the storage of all elements in row-major order.
std::vector<int64_t> Offsets(const at::Tensor& t) {
  std::vector<int64_t> offsets = {t.storage_offset()};
  for (int64_t d = 0; d < t.dim(); ++d) {
    std::vector<int64_t> next;
    for (const int64_t o : offsets) {
      for (int64_t i = 0; i < t.size(d); ++i) next.push_back(o + i * t.stride(d));
    }
    offsets = std::move(next);
  }
  for (int64_t& o : offsets) o *= static_cast<int64_t>(t.itemsize());
  return offsets;
}

void FillRandom(void* data, int64_t bytes, at::ScalarType dtype, std::mt19937_64& rng) {
  auto* out = static_cast<unsigned char*>(data);
  for (int64_t i = 0; i < bytes; ++i) {
    out[i] = static_cast<unsigned char>(dtype == at::kBool ? rng() % 2 : rng());
  }
}

struct Shape {
  const char* name;
  // Makes a leaf of this shape from a storage of at least 4096 elements.
  std::function<at::Tensor(const at::Tensor& flat)> make;
};

const std::vector<Shape>& Shapes() {
  static const auto* const shapes = new std::vector<Shape>{
      {"contiguous", [](const at::Tensor& f) { return f.slice(0, 3, 63).view({3, 4, 5}); }},
      {"transposed", [](const at::Tensor& f) { return f.slice(0, 0, 60).view({6, 10}).t(); }},
      {"large transposed",
       [](const at::Tensor& f) { return f.slice(0, 0, 2500).view({50, 50}).t(); }},
      {"permuted",
       [](const at::Tensor& f) { return f.slice(0, 0, 60).view({3, 4, 5}).permute({1, 2, 0}); }},
      {"channels last",
       [](const at::Tensor& f) {
         return f.slice(0, 0, 120).view({2, 3, 4, 5}).permute({0, 3, 1, 2});
       }},
      {"every other", [](const at::Tensor& f) { return f.slice(0, 1, 41, 2); }},
      {"columns",
       [](const at::Tensor& f) { return f.slice(0, 0, 60).view({6, 10}).slice(1, 2, 7); }},
      {"columns transposed",
       [](const at::Tensor& f) { return f.slice(0, 0, 60).view({6, 10}).slice(1, 2, 7).t(); }},
      {"holes in all dims",
       [](const at::Tensor& f) { return f.as_strided({3, 4, 2}, {50, 7, 3}, 5); }},
      {"size 1 strides",
       [](const at::Tensor& f) { return f.as_strided({1, 6, 1}, {999, 1, 777}, 2); }},
      {"interlaced", [](const at::Tensor& f) { return f.as_strided({3, 2}, {2, 3}, 1); }},
      {"0-dim", [](const at::Tensor& f) { return f.select(0, 17); }},
      {"empty", [](const at::Tensor& f) { return f.slice(0, 0, 0).view({0, 3}); }},
  };
  return *shapes;
}

class PackerDtypeTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  std::mt19937_64 rng_{20240601};
  std::shared_ptr<BufferPool> pool_ = std::make_shared<BufferPool>();
  Packer packer_{pool_};

  at::Tensor RandomFlat(int64_t numel = 4096) {
    at::Tensor flat = at::empty({numel}, at::TensorOptions().dtype(GetParam()));
    FillRandom(flat.mutable_data_ptr(), static_cast<int64_t>(flat.nbytes()), GetParam(), rng_);
    return flat;
  }
};

// Every shape alone and all together: the packed bytes are the elements in logical order, unpacking
// writes them, and no other byte of the storage changes.
TEST_P(PackerDtypeTest, LogicalOrder) {
  std::vector<std::vector<at::Tensor>> trees;
  std::vector<at::Tensor> all;
  for (const Shape& shape : Shapes()) {
    trees.push_back({shape.make(RandomFlat())});
    all.push_back(shape.make(RandomFlat()));
  }
  trees.push_back(all);
  for (const std::vector<at::Tensor>& leaves : trees) {
    for (const int64_t alignment : {0, 64}) {
      const BucketPlan plan = PlanOf(leaves, Bucketing::MaxBytes(int64_t{1} << 40), alignment);
      for (const Bucket& bucket : plan.buckets) {
        absl::StatusOr<PackedBucket> packed = packer_.Pack(bucket, leaves);
        ASSERT_TRUE(packed.ok()) << packed.status();
        ASSERT_EQ(packed->bytes(), bucket.bytes);
        EXPECT_EQ(packed->dtype(), GetParam());
        EXPECT_EQ(packed->numel() * static_cast<int64_t>(c10::elementSize(GetParam())),
                  bucket.bytes);
        auto* const run = static_cast<char*>(packed->data());
        std::vector<char> expected(static_cast<size_t>(bucket.bytes), 0);
        for (const Slot& slot : bucket.slots) {
          const at::Tensor& leaf = leaves[static_cast<size_t>(slot.leaf)];
          const std::vector<char> storage = StorageOf(leaf);
          const size_t element = leaf.itemsize();
          const std::vector<int64_t> offsets = Offsets(leaf);
          for (size_t i = 0; i < offsets.size(); ++i) {
            std::memcpy(&expected[static_cast<size_t>(slot.offset) + i * element],
                        &storage[static_cast<size_t>(offsets[i])], element);
          }
        }
        EXPECT_EQ(BytesOf(run, bucket.bytes), expected);

        std::vector<std::vector<char>> storages;
        std::vector<char> payload(static_cast<size_t>(bucket.bytes));
        FillRandom(payload.data(), bucket.bytes, GetParam(), rng_);
        for (const Slot& slot : bucket.slots) {
          const at::Tensor& leaf = leaves[static_cast<size_t>(slot.leaf)];
          storages.push_back(StorageOf(leaf));
          const size_t element = leaf.itemsize();
          const std::vector<int64_t> offsets = Offsets(leaf);
          for (size_t i = 0; i < offsets.size(); ++i) {
            std::memcpy(&storages.back()[static_cast<size_t>(offsets[i])],
                        &payload[static_cast<size_t>(slot.offset) + i * element], element);
          }
        }
        std::memcpy(run, payload.data(), payload.size());
        ASSERT_TRUE(packer_.Unpack(bucket, *packed, leaves).ok());
        for (size_t s = 0; s < bucket.slots.size(); ++s) {
          EXPECT_EQ(StorageOf(leaves[static_cast<size_t>(bucket.slots[s].leaf)]), storages[s]);
        }
      }
    }
  }
}

// In memory order too a round trip gives back what was put in, and touches nothing else; leaves
// without gaps are their own memory.
TEST_P(PackerDtypeTest, MemoryOrder) {
  for (const Shape& shape : Shapes()) {
    SCOPED_TRACE(shape.name);
    const at::Tensor source = shape.make(RandomFlat());
    const at::Tensor flat = RandomFlat();
    const at::Tensor target = shape.make(flat);
    if (source.numel() == 0) continue;
    const Bucket bucket = OneBucket({source});
    absl::StatusOr<PackedBucket> packed = packer_.Pack(bucket, {source}, PackOrder::kMemory);
    ASSERT_TRUE(packed.ok()) << packed.status();
    EXPECT_EQ(packed->owned(), !source.is_non_overlapping_and_dense());
    absl::StatusOr<PackedBucket> staged = packer_.Stage(bucket, {source}, PackOrder::kMemory);
    ASSERT_TRUE(staged.ok());
    EXPECT_TRUE(staged->owned());
    EXPECT_EQ(BytesOf(staged->data(), bucket.bytes), BytesOf(packed->data(), bucket.bytes));
    std::vector<char> expected = StorageOf(target);
    const std::vector<char> storage = StorageOf(source);
    for (const int64_t o : Offsets(source)) {
      std::memcpy(&expected[static_cast<size_t>(o)], &storage[static_cast<size_t>(o)],
                  source.itemsize());
    }
    ASSERT_TRUE(packer_.Unpack(bucket, *staged, {target}).ok());
    EXPECT_EQ(StorageOf(target), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, PackerDtypeTest,
                         testing::Values(at::kByte, at::kChar, at::kShort, at::kInt, at::kLong,
                                         at::kUInt16, at::kUInt32, at::kUInt64, at::kHalf,
                                         at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat,
                                         at::kComplexDouble, at::kBool, at::kFloat8_e4m3fn,
                                         at::kFloat8_e5m2),
                         [](const auto& test) { return std::string(DtypeName(test.param)); });

class PackerTest : public testing::Test {
 protected:
  std::shared_ptr<BufferPool> pool_ = std::make_shared<BufferPool>();
  Packer packer_{pool_};
};

TEST_F(PackerTest, NeighboursInOneStorageAreOneSlotWithNoCopy) {
  const at::Tensor flat = at::arange(20, at::kFloat);
  const std::vector<at::Tensor> leaves = {flat.slice(0, 2, 8).view({2, 3}), flat.slice(0, 8, 9),
                                          flat.slice(0, 9, 9), flat.slice(0, 9, 20)};
  const Bucket bucket = OneBucket(leaves);
  absl::StatusOr<PackedBucket> packed = packer_.Pack(bucket, leaves);
  ASSERT_TRUE(packed.ok());
  EXPECT_FALSE(packed->owned());
  EXPECT_EQ(packed->data(), static_cast<char*>(flat.data_ptr()) + 8);
  EXPECT_EQ(packed->numel(), 18);
  EXPECT_EQ(pool_->stats().allocations, 0);
  packed->tensor().mul_(2);
  ASSERT_TRUE(packer_.Unpack(bucket, *packed, leaves).ok());
  EXPECT_EQ(flat[19].item<float>(), 38);
  EXPECT_EQ(flat[1].item<float>(), 1);

  // Staging copies all the same.
  absl::StatusOr<PackedBucket> staged = packer_.Stage(bucket, leaves);
  EXPECT_TRUE(staged->owned());
  EXPECT_EQ(BytesOf(staged->data(), bucket.bytes), BytesOf(packed->data(), bucket.bytes));

  // Another order in memory, a gap, another storage, padding: a copy.
  EXPECT_TRUE(packer_.Pack(OneBucket({leaves[3], leaves[0]}), {leaves[3], leaves[0]})->owned());
  EXPECT_TRUE(packer_.Pack(OneBucket({leaves[0], leaves[3]}), {leaves[0], leaves[3]})->owned());
  EXPECT_TRUE(
      packer_.Pack(OneBucket({leaves[0], leaves[1].clone()}), {leaves[0], leaves[1].clone()})
          ->owned());
  EXPECT_TRUE(packer_.Pack(OneBucket({leaves[0], leaves[1]}, 64), {leaves[0], leaves[1]})->owned());
}

TEST_F(PackerTest, OneContiguousLeafIsItsOwnBucket) {
  const at::Tensor x = at::arange(6, at::kDouble).view({2, 3});
  const Bucket bucket = OneBucket({x});
  EXPECT_FALSE(packer_.Pack(bucket, {x})->owned());
  const at::Tensor t = x.t();
  EXPECT_TRUE(packer_.Pack(OneBucket({t}), {t})->owned());
  EXPECT_FALSE(packer_.Pack(OneBucket({t}), {t}, PackOrder::kMemory)->owned());
}

TEST_F(PackerTest, ConjugateAndNegativeLeavesGiveTheirValues) {
  at::Tensor c = at::zeros({6}, at::kComplexFloat);
  auto* values = static_cast<float*>(c.mutable_data_ptr());
  for (int i = 0; i < 12; ++i) values[i] = static_cast<float>(i + 1);
  const at::Tensor conj = c.conj();
  const at::Tensor neg = at::imag(conj);
  ASSERT_TRUE(conj.is_conj());
  ASSERT_TRUE(neg.is_neg());
  for (const PackOrder order : {PackOrder::kLogical, PackOrder::kMemory}) {
    for (const at::Tensor& leaf : {conj, neg, conj.view({2, 3}).t()}) {
      const Bucket bucket = OneBucket({leaf});
      absl::StatusOr<PackedBucket> packed = packer_.Pack(bucket, {leaf}, order);
      ASSERT_TRUE(packed.ok()) << packed.status();
      ASSERT_TRUE(packed->owned());
      const at::Tensor plain = leaf.resolve_conj().resolve_neg().contiguous();
      EXPECT_EQ(BytesOf(packed->data(), bucket.bytes), BytesOf(plain.data_ptr(), bucket.bytes));
      packed->tensor().mul_(3);
      ASSERT_TRUE(packer_.Unpack(bucket, *packed, {leaf}).ok());
      EXPECT_TRUE(leaf.resolve_conj().resolve_neg().equal(plain.mul(3)));
    }
  }
}

TEST_F(PackerTest, AutogradRecordsNothingAndCountersAreLeftAlone) {
  at::Tensor w = at::zeros({4, 4}, at::kFloat);
  w.set_requires_grad(true);
  const at::Tensor view = w.detach().t();
  for (const at::Tensor& leaf : {w, view}) {
    const Bucket bucket = OneBucket({leaf});
    const auto version = leaf._version();
    absl::StatusOr<PackedBucket> packed = packer_.Stage(bucket, {leaf});
    ASSERT_TRUE(packed.ok());
    EXPECT_FALSE(packed->tensor().requires_grad());
    packed->tensor().fill_(5);
    ASSERT_TRUE(packer_.Unpack(bucket, *packed, {leaf}).ok());
    EXPECT_EQ(leaf._version(), version);
    EXPECT_FALSE(leaf.grad_fn());
    EXPECT_EQ(w.detach()[3][2].item<float>(), 5);
  }
  EXPECT_TRUE(w.requires_grad());
}

TEST_F(PackerTest, PaddingIsZero) {
  const std::vector<at::Tensor> leaves = {at::zeros({3}, at::kByte).fill_(0xff),
                                          at::zeros({5}, at::kByte).fill_(0xff)};
  const Bucket bucket = OneBucket(leaves, 16);
  {
    absl::StatusOr<PackedBucket> dirt = packer_.Allocate(bucket, c10::Device(c10::kCPU));
    std::memset(dirt->data(), 0xee, static_cast<size_t>(bucket.bytes));
  }
  const absl::StatusOr<PackedBucket> packed = packer_.Pack(bucket, leaves);
  std::vector<char> expected(21, '\0');
  std::fill_n(expected.begin(), 3, '\xff');
  std::fill_n(expected.begin() + 16, 5, '\xff');
  EXPECT_EQ(BytesOf(packed->data(), bucket.bytes), expected);
}

TEST_F(PackerTest, LeavesThatDoNotFitAreRefused) {
  const at::Tensor x = at::zeros({4}, at::kFloat);
  const Bucket bucket = OneBucket({x});
  const auto error = [&](const std::vector<at::Tensor>& leaves) {
    const absl::Status s = packer_.Pack(bucket, leaves).status();
    EXPECT_EQ(s.code(), absl::StatusCode::kInvalidArgument);
    return std::string(s.message());
  };
  EXPECT_THAT(error({}), HasSubstr("leaf 0 of 0"));
  EXPECT_THAT(error({at::zeros({5}, at::kFloat)}), HasSubstr("20 bytes"));
  EXPECT_THAT(error({at::zeros({4}, at::kInt)}), HasSubstr("int32"));
  EXPECT_THAT(error({at::Tensor()}), HasSubstr("undefined"));
  absl::StatusOr<PackedBucket> packed = packer_.Stage(bucket, {x});
  EXPECT_FALSE(packer_.Unpack(bucket, *packed, {at::zeros({5}, at::kFloat)}).ok());
  EXPECT_FALSE(
      packer_.Unpack(OneBucket({at::zeros({2}, at::kFloat)}), *packed, {at::zeros({2}, at::kFloat)})
          .ok());
}

TEST_F(PackerTest, NothingIsAllocatedOnceWarm) {
  std::vector<at::Tensor> leaves;
  for (int i = 0; i < 50; ++i) {
    leaves.push_back(at::zeros({8, 6}, at::kFloat));
    leaves.push_back(at::zeros({8, 6}, at::kFloat).t());
    leaves.push_back(at::zeros({8, 6}, at::kFloat).slice(1, 1, 4));
  }
  const BucketPlan plan = PlanOf(leaves, Bucketing::MaxBytes(4096));
  ASSERT_GT(plan.buckets.size(), 3u);
  std::vector<PackedBucket> packed(plan.buckets.size());
  const auto round = [&] {
    for (size_t b = 0; b < packed.size(); ++b) {
      absl::StatusOr<PackedBucket> one = packer_.Pack(plan.buckets[b], leaves);
      ASSERT_TRUE(one.ok());
      packed[b] = *std::move(one);
      EXPECT_EQ(packed[b].tensor().data_ptr(), packed[b].data());
    }
    for (size_t b = 0; b < packed.size(); ++b) {
      ASSERT_TRUE(packer_.Unpack(plan.buckets[b], packed[b], leaves).ok());
      packed[b] = PackedBucket();
    }
  };
  round();
  round();
  const int64_t before = allocations.load();
  const int64_t buffers = pool_->stats().allocations;
  for (int i = 0; i < 100; ++i) round();
  EXPECT_EQ(allocations.load() - before, 0);
  EXPECT_EQ(pool_->stats().allocations, buffers);
}

TEST_F(PackerTest, OneLeafFunctions) {
  const at::Tensor flat = at::arange(12, at::kInt);
  const at::Tensor leaf = flat.view({3, 4}).t();
  std::vector<int32_t> row(12);
  ASSERT_TRUE(PackLeaf(leaf, PackOrder::kLogical, row.data()).ok());
  EXPECT_THAT(row, testing::ElementsAre(0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11));
  ASSERT_TRUE(PackLeaf(leaf, PackOrder::kMemory, row.data()).ok());
  EXPECT_THAT(row, testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11));
  for (int32_t& x : row) x += 100;
  ASSERT_TRUE(UnpackLeaf(row.data(), PackOrder::kLogical, leaf).ok());
  EXPECT_EQ(flat[1].item<int32_t>(), 103);
}

}  // namespace
}  // namespace leafpack
