// What a call pays per leaf before any data moves: flatten, layout, and looking again.
//
//   bazelw run //tensordict:layout_benchmark
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"
#include "tensordict/nested_key.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {
namespace {

// `n` leaves of 4 KiB, ten to a node, as the parameters of a model are.
TensorDict Model(int64_t n) {
  TensorDict tree;
  for (int64_t i = 0; i < n; ++i) {
    const absl::Status s =
        tree.Set({"model", absl::StrCat("layer", i / 10), absl::StrCat("parameter", i % 10)},
                 at::zeros({32, 32}, at::kFloat));
    if (!s.ok()) std::abort();
  }
  return tree;
}

void PerLeaf(benchmark::State& state, int64_t leaves) {
  state.counters["per_leaf"] = benchmark::Counter(
      static_cast<double>(leaves),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

// The same structure as last time.
void BM_Flatten(benchmark::State& state) {
  const TensorDict tree = Model(state.range(0));
  for (auto _ : state) benchmark::DoNotOptimize(Flatten(tree));
  PerLeaf(state, state.range(0));
}
BENCHMARK(BM_Flatten)->Arg(10)->Arg(1000)->Arg(100000);

// A leaf came or went since.
void BM_FlattenChanged(benchmark::State& state) {
  TensorDict tree = Model(state.range(0));
  for (auto _ : state) {
    benchmark::DoNotOptimize(tree.Set("extra", at::Tensor()).ok());
    benchmark::DoNotOptimize(Flatten(tree));
    benchmark::DoNotOptimize(tree.Erase("extra").ok());
  }
  PerLeaf(state, state.range(0));
}
BENCHMARK(BM_FlattenChanged)->Arg(1000);

void BM_LayoutOf(benchmark::State& state) {
  const FlatTree flat = Flatten(Model(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(Layout::Of(flat));
  PerLeaf(state, state.range(0));
}
BENCHMARK(BM_LayoutOf)->Arg(10)->Arg(1000)->Arg(100000);

// All leaves are columns of one matrix: every bounding box meets every other.
void BM_LayoutOfColumns(benchmark::State& state) {
  const at::Tensor matrix = at::zeros({100, state.range(0)}, at::kFloat);
  std::vector<std::pair<NestedKey, at::Tensor>> leaves;
  for (int64_t i = 0; i < state.range(0); ++i)
    leaves.emplace_back(NestedKey{i}, matrix.select(1, i));
  const FlatTree flat = *MakeFlatTree(std::move(leaves));
  for (auto _ : state) benchmark::DoNotOptimize(Layout::Of(flat));
  PerLeaf(state, state.range(0));
}
BENCHMARK(BM_LayoutOfColumns)->Arg(10)->Arg(100)->Arg(1000)->Arg(10000);

void BM_Matches(benchmark::State& state) {
  const FlatTree flat = Flatten(Model(state.range(0)));
  const Layout layout = *Layout::Of(flat);
  for (auto _ : state) benchmark::DoNotOptimize(layout.Matches(flat));
  PerLeaf(state, state.range(0));
}
BENCHMARK(BM_Matches)->Arg(10)->Arg(1000)->Arg(100000);

// What every planned call pays: flatten, match, and the end of the list of leaves.
void BM_FlattenAndMatch(benchmark::State& state) {
  const TensorDict tree = Model(state.range(0));
  const Layout layout = *Layout::Of(Flatten(tree));
  for (auto _ : state) benchmark::DoNotOptimize(layout.Matches(Flatten(tree)));
  PerLeaf(state, state.range(0));
}
BENCHMARK(BM_FlattenAndMatch)->Arg(10)->Arg(1000)->Arg(100000);

}  // namespace
}  // namespace leafpack
