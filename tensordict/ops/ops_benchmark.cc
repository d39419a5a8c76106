// What operations on a tree cost beside the same loop over a vector of tensors.
//
//   bazelw run -c opt //tensordict/ops:ops_benchmark
//
// BM_X is the tree's, BM_XLoop the hand-written loop: compare the two lines of one run.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tensordict/ops/arithmetic.h"
#include "tensordict/ops/cast.h"
#include "tensordict/ops/combine.h"
#include "tensordict/ops/index.h"
#include "tensordict/ops/shape.h"
#include "tensordict/ops/walk.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {
namespace {

constexpr int64_t kLeaves = 1000;

// Small leaves, so that calls weigh more than elements; ten to a node, as the parameters of a model
// are.
TensorDict Model() {
  TensorDict tree({4});
  for (int64_t i = 0; i < kLeaves; ++i) {
    const absl::Status s =
        tree.Set({"model", absl::StrCat("layer", i / 10), absl::StrCat("parameter", i % 10)},
                 at::zeros({4, 4}, at::kFloat));
    if (!s.ok()) std::abort();
  }
  return tree;
}

std::vector<at::Tensor> Leaves(const TensorDict& tree) {
  return *internal::TensorsOf("benchmark", tree);
}

template <typename Body>
void Run(benchmark::State& state, const Body& body) {
  for (auto _ : state) benchmark::DoNotOptimize(body());
  state.counters["per_leaf"] = benchmark::Counter(
      static_cast<double>(kLeaves),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

// `leaf` makes one tensor of one; the loop collects them in a vector.
template <typename Leaf>
void Loop(benchmark::State& state, const Leaf& leaf) {
  const std::vector<at::Tensor> leaves = Leaves(Model());
  Run(state, [&] {
    std::vector<at::Tensor> results;
    results.reserve(leaves.size());
    for (const at::Tensor& x : leaves) results.push_back(leaf(x));
    return results;
  });
}

void BM_Clone(benchmark::State& state) {
  const TensorDict tree = Model();
  Run(state, [&] { return Clone(tree); });
}
BENCHMARK(BM_Clone);
void BM_CloneLoop(benchmark::State& state) {
  Loop(state, [](const at::Tensor& x) { return x.clone(); });
}
BENCHMARK(BM_CloneLoop);

void BM_IndexPosition(benchmark::State& state) {
  const TensorDict tree = Model();
  Run(state, [&] { return Index(tree, {1}); });
}
BENCHMARK(BM_IndexPosition);
void BM_IndexPositionLoop(benchmark::State& state) {
  Loop(state, [](const at::Tensor& x) { return x.select(0, 1); });
}
BENCHMARK(BM_IndexPositionLoop);

void BM_View(benchmark::State& state) {
  const TensorDict tree = Model();
  Run(state, [&] { return View(tree, {2, 2}); });
}
BENCHMARK(BM_View);
void BM_ViewLoop(benchmark::State& state) {
  Loop(state, [](const at::Tensor& x) { return x.view({2, 2, 4}); });
}
BENCHMARK(BM_ViewLoop);

void BM_To(benchmark::State& state) {
  const TensorDict tree = Model();
  Run(state, [&] { return To(tree, {.dtype = at::kDouble}); });
}
BENCHMARK(BM_To);
void BM_ToLoop(benchmark::State& state) {
  Loop(state, [](const at::Tensor& x) { return x.to(at::kDouble); });
}
BENCHMARK(BM_ToLoop);

void BM_Stack(benchmark::State& state) {
  const std::vector<TensorDict> trees = {Model(), Model()};
  Run(state, [&] { return Stack(trees); });
}
BENCHMARK(BM_Stack);
void BM_StackLoop(benchmark::State& state) {
  const std::vector<at::Tensor> a = Leaves(Model());
  const std::vector<at::Tensor> b = Leaves(Model());
  Run(state, [&] {
    std::vector<at::Tensor> results;
    results.reserve(a.size());
    for (size_t i = 0; i < a.size(); ++i) results.push_back(at::stack({a[i], b[i]}));
    return results;
  });
}
BENCHMARK(BM_StackLoop);

void BM_Add(benchmark::State& state) {
  const TensorDict a = Model();
  const TensorDict b = Model();
  Run(state, [&] { return Add(a, b); });
}
BENCHMARK(BM_Add);
void BM_AddLoop(benchmark::State& state) {
  const std::vector<at::Tensor> a = Leaves(Model());
  const std::vector<at::Tensor> b = Leaves(Model());
  Run(state, [&] { return at::_foreach_add(a, b); });
}
BENCHMARK(BM_AddLoop);

void BM_AddInPlace(benchmark::State& state) {
  const TensorDict a = Model();
  const TensorDict b = Model();
  Run(state, [&] { return AddInPlace(a, b); });
}
BENCHMARK(BM_AddInPlace);
void BM_AddInPlaceLoop(benchmark::State& state) {
  const std::vector<at::Tensor> a = Leaves(Model());
  const std::vector<at::Tensor> b = Leaves(Model());
  Run(state, [&] {
    at::_foreach_add_(a, b);
    return 0;
  });
}
BENCHMARK(BM_AddInPlaceLoop);

}  // namespace
}  // namespace leafpack
