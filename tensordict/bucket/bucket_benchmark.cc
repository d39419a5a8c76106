// Planning, and packing beside a plain memcpy and torch's own cat of the same bytes.
//
//   bazelw run //tensordict/bucket:bucket_benchmark
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "tensordict/bucket/bucket_plan.h"
#include "tensordict/bucket/buffer_pool.h"
#include "tensordict/bucket/packer.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"
#include "tensordict/nested_key.h"

namespace leafpack {
namespace {

enum Kind : int64_t { kContiguous, kTransposed, kColumns };

std::vector<at::Tensor> Leaves(int64_t n, int64_t bytes, int64_t kind) {
  const int64_t rows = 32;
  const int64_t columns = bytes / 4 / rows;
  std::vector<at::Tensor> leaves;
  for (int64_t i = 0; i < n; ++i) {
    switch (kind) {
      case kTransposed:
        leaves.push_back(at::zeros({columns, rows}, at::kFloat).t());
        break;
      case kColumns:
        leaves.push_back(at::zeros({rows, 2 * columns}, at::kFloat).slice(1, 0, columns));
        break;
      default:
        leaves.push_back(at::zeros({rows, columns}, at::kFloat));
    }
  }
  return leaves;
}

Layout LayoutOf(const std::vector<at::Tensor>& leaves) {
  std::vector<std::pair<NestedKey, at::Tensor>> pairs;
  for (size_t i = 0; i < leaves.size(); ++i) pairs.emplace_back(NestedKey{i}, leaves[i]);
  return *Layout::Of(*MakeFlatTree(std::move(pairs)));
}

void Plan(benchmark::State& state, Bucketing bucketing) {
  const Layout layout = LayoutOf(Leaves(state.range(0), 4096, kContiguous));
  for (auto _ : state) benchmark::DoNotOptimize(MakeBucketPlan(layout, bucketing));
  state.counters["per_leaf"] = benchmark::Counter(
      static_cast<double>(state.range(0)),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK_CAPTURE(Plan, Auto, Bucketing::Auto())->Arg(1000);
BENCHMARK_CAPTURE(Plan, PerLeaf, Bucketing::PerLeaf())->Arg(1000);
BENCHMARK_CAPTURE(Plan, MaxBytes, Bucketing::MaxBytes(1 << 20))->Arg(1000);

const auto kWorkloads = [](auto* b) {
  b->ArgNames({"leaves", "bytes", "kind"});
  for (const int64_t kind : {kContiguous, kTransposed, kColumns}) {
    b->Args({1000, 4096, kind})->Args({16, 4 << 20, kind});
  }
};

void SetBytes(benchmark::State& state) {
  state.SetBytesProcessed(state.iterations() * state.range(0) * state.range(1));
}

void BM_Pack(benchmark::State& state) {
  const std::vector<at::Tensor> leaves = Leaves(state.range(0), state.range(1), state.range(2));
  const Bucket bucket =
      MakeBucketPlan(LayoutOf(leaves), Bucketing::MaxBytes(int64_t{1} << 40))->buckets[0];
  Packer packer(std::make_shared<BufferPool>());
  for (auto _ : state) benchmark::DoNotOptimize(packer.Pack(bucket, leaves));
  SetBytes(state);
}
BENCHMARK(BM_Pack)->Apply(kWorkloads);

void BM_Unpack(benchmark::State& state) {
  const std::vector<at::Tensor> leaves = Leaves(state.range(0), state.range(1), state.range(2));
  const Bucket bucket =
      MakeBucketPlan(LayoutOf(leaves), Bucketing::MaxBytes(int64_t{1} << 40))->buckets[0];
  Packer packer(std::make_shared<BufferPool>());
  const PackedBucket packed = *packer.Pack(bucket, leaves);
  for (auto _ : state) benchmark::DoNotOptimize(packer.Unpack(bucket, packed, leaves));
  SetBytes(state);
}
BENCHMARK(BM_Unpack)->Apply(kWorkloads);

// The peers: one memcpy of as many bytes, and at::cat into memory that exists.
void BM_Memcpy(benchmark::State& state) {
  const at::Tensor from = at::zeros({state.range(0) * state.range(1)}, at::kByte);
  const at::Tensor to = at::zeros({state.range(0) * state.range(1)}, at::kByte);
  for (auto _ : state) {
    std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), to.nbytes());
    benchmark::ClobberMemory();
  }
  SetBytes(state);
}
BENCHMARK(BM_Memcpy)->ArgNames({"leaves", "bytes"})->Args({1000, 4096})->Args({16, 4 << 20});

void BM_AtenCat(benchmark::State& state) {
  std::vector<at::Tensor> leaves = Leaves(state.range(0), state.range(1), state.range(2));
  at::Tensor out = at::empty({state.range(0) * leaves[0].size(0), leaves[0].size(1)}, at::kFloat);
  for (auto _ : state) benchmark::DoNotOptimize(at::cat_out(out, leaves));
  SetBytes(state);
}
BENCHMARK(BM_AtenCat)->Apply(kWorkloads);

}  // namespace
}  // namespace leafpack
