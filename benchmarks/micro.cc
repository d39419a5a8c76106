// Micro-benchmarks: walking, layout, plan, copies, reduction, and the smallest calls.
//
//   bazel run //benchmarks:micro -- --benchmark_filter=Agreement
//
// Counters: "per_leaf" is time divided by the number of leaves.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"

#include "benchmarks/workload.h"
#include "distributed/core/engine.h"
#include "distributed/core/reduce/reduce.h"
#include "distributed/store/groups.h"
#include "distributed/tree/all_reduce.h"
#include "tensordict/bucket/bucket_plan.h"
#include "tensordict/bucket/packer.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {
namespace {

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (!value.ok()) {
    fprintf(stderr, "%s\n", value.status().ToString().c_str());
    std::abort();
  }
  return *std::move(value);
}

TensorDict GridTree(int64_t leaves, int64_t bytes) {
  return OrDie(OrDie(GridWorkload(absl::StrCat(leaves, "x", bytes, "B"))).MakeTree(1));
}

void PerLeaf(benchmark::State& state, int64_t leaves) {
  state.counters["per_leaf"] =
      benchmark::Counter(static_cast<double>(leaves),
                         benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void BM_Flatten(benchmark::State& state) {
  const TensorDict tree = GridTree(state.range(0), 64);
  for (auto _ : state) benchmark::DoNotOptimize(Flatten(tree));
  PerLeaf(state, state.range(0));
}
BENCHMARK(BM_Flatten)->Arg(1)->Arg(1000);

void BM_LayoutAndDigest(benchmark::State& state) {
  const FlatTree flat = Flatten(GridTree(state.range(0), 64));
  for (auto _ : state) {
    Layout layout = OrDie(Layout::Of(flat));
    benchmark::DoNotOptimize(layout);
  }
  PerLeaf(state, state.range(0));
}
BENCHMARK(BM_LayoutAndDigest)->Arg(1)->Arg(1000);

void BM_LayoutMatches(benchmark::State& state) {
  const FlatTree flat = Flatten(GridTree(state.range(0), 64));
  const Layout layout = OrDie(Layout::Of(flat));
  for (auto _ : state) benchmark::DoNotOptimize(layout.Matches(flat));
  PerLeaf(state, state.range(0));
}
BENCHMARK(BM_LayoutMatches)->Arg(1)->Arg(1000);

void BM_Plan(benchmark::State& state) {
  const Layout layout = OrDie(Layout::Of(Flatten(GridTree(state.range(0), 4096))));
  for (auto _ : state) benchmark::DoNotOptimize(OrDie(MakeBucketPlan(layout, Bucketing::Auto())));
  PerLeaf(state, state.range(0));
}
BENCHMARK(BM_Plan)->Arg(1)->Arg(1000);

// Range: leaves, bytes of each.
void BM_PackAndUnpack(benchmark::State& state) {
  const FlatTree flat = Flatten(GridTree(state.range(0), state.range(1)));
  const Layout layout = OrDie(Layout::Of(flat));
  const BucketPlan plan =
      OrDie(MakeBucketPlan(layout, Bucketing::MaxBytes(state.range(0) * state.range(1))));
  Packer packer(std::make_shared<BufferPool>());
  for (auto _ : state) {
    PackedBucket packed = OrDie(packer.Stage(plan.buckets[0], flat.leaves));
    if (!packer.Unpack(plan.buckets[0], packed, flat.leaves).ok()) std::abort();
  }
  state.SetBytesProcessed(state.iterations() * 2 * state.range(0) * state.range(1));
}
BENCHMARK(BM_PackAndUnpack)->Args({1000, 4096})->Args({100, 102400})->Args({16, 4 << 20});

// Range: dtype, inputs.
void BM_Reduce(benchmark::State& state) {
  const auto dtype = static_cast<at::ScalarType>(state.range(0));
  const int64_t bytes = 1 << 20;
  const int64_t count = bytes / static_cast<int64_t>(c10::elementSize(dtype));
  std::vector<std::vector<char>> buffers(state.range(1), std::vector<char>(bytes));
  std::vector<const void*> inputs;
  for (const std::vector<char>& buffer : buffers) inputs.push_back(buffer.data());
  for (auto _ : state) {
    if (!ReduceInto(ReduceOpKind::kSum, dtype, inputs, buffers[0].data(), count).ok()) std::abort();
  }
  state.SetLabel(c10::toString(dtype));
  state.SetBytesProcessed(state.iterations() * state.range(1) * bytes);
}
BENCHMARK(BM_Reduce)
    ->ArgsProduct({{static_cast<int>(at::kFloat), static_cast<int>(at::kHalf),
                    static_cast<int>(at::kBFloat16), static_cast<int>(at::kLong)},
                   {2, 4}});

// Ranks as threads: the others call in a loop until rank 0 is through. `call` returns false to stop.
template <typename Body>
void WithPeers(benchmark::State& state, int ranks, Body body) {
  at::set_num_threads(1);
  const std::vector<Group> groups = OrDie(LocalGroups(ranks));
  std::vector<std::thread> peers;
  for (int rank = 1; rank < ranks; ++rank) {
    peers.emplace_back([&, rank] {
      while (body(groups[rank], false)) {
      }
    });
  }
  for (auto _ : state) body(groups[0], false);
  body(groups[0], true);
  for (std::thread& peer : peers) peer.join();
}

// One leaf of range(1) bytes on range(0) ranks; small ones ride with their digest. The last call's
// sum tells the peers to stop.
void BM_SmallTree(benchmark::State& state) {
  const int64_t elements = state.range(1) / 4;
  WithPeers(state, static_cast<int>(state.range(0)), [elements](const Group& group, bool stop) {
    thread_local at::Tensor leaf;
    thread_local TensorDict tree;
    if (!leaf.defined() || leaf.numel() != elements) {
      leaf = at::empty({elements}, at::kFloat);
      tree = OrDie(TensorDict::Make({{"leaf", leaf}}));
    }
    leaf.mutable_data_ptr<float>()[0] = stop ? 1.0f : 0.0f;
    if (!AllReduce(tree, group).ok()) std::abort();
    return leaf.const_data_ptr<float>()[0] == 0.0f;
  });
}
BENCHMARK(BM_SmallTree)
    ->UseRealTime()
    ->ArgsProduct({{2, 4}, {64, 4096, 16384}})
    ->Unit(benchmark::kMicrosecond);

// The agreement of a call alone, on range(0) ranks: posted, decided, ended without data.
void BM_Agreement(benchmark::State& state) {
  WithPeers(state, static_cast<int>(state.range(0)), [](const Group& group, bool stop) {
    CallSpec spec;
    spec.name = "agreement";
    spec.digest = 1;
    spec.is_frame = true;
    spec.payload.assign(1, stop ? '\1' : '\0');
    spec.describe = [] { return std::vector<DescriptionEntry>(); };
    spec.reduce = [](absl::Span<const absl::Span<const char>> payloads, absl::Span<char> out) {
      out[0] = 0;
      for (absl::Span<const char> payload : payloads) {
        out[0] = static_cast<char>(out[0] | payload[0]);
      }
    };
    const std::shared_ptr<Call> call = OrDie(group.engine().Post(std::move(spec)));
    if (!call->AwaitDecision().ok()) std::abort();
    return call->frame_result()[0] == 0;
  });
}
BENCHMARK(BM_Agreement)->UseRealTime()->Arg(2)->Arg(3)->Arg(4)->Unit(benchmark::kMicrosecond);

// What a call costs this host besides moving data: a group of one, a tree that was planned before.
void BM_HostOverhead(benchmark::State& state) {
  const std::vector<Group> groups = OrDie(LocalGroups(1));
  const TensorDict tree = GridTree(state.range(0), 64);
  const FlatTree flat = Flatten(tree);
  for (auto _ : state) {
    if (!AllReduce(flat, groups[0]).ok()) std::abort();
  }
  PerLeaf(state, state.range(0));
}
BENCHMARK(BM_HostOverhead)->Arg(1)->Arg(1000);

}  // namespace
}  // namespace leafpack

BENCHMARK_MAIN();
