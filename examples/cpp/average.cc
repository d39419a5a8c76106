// Averages the gradients of a model over all ranks:
//     ./bazelw run //distributed/launch -- -n 4 -- $PWD/bazel-bin/examples/cpp/average
#include <ATen/ops/full.h>

#include <cstdio>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "distributed/distributed.h"
#include "tensordict/tensordict.h"

absl::Status Run() {
  absl::StatusOr<leafpack::Group> group = leafpack::GroupFromEnvironment();
  if (!group.ok()) return group.status();
  const int rank = group->rank().value();
  const int size = group->size();

  // Tensors are shared with the tree, not copied.
  at::Tensor weight = at::full({2, 3}, 1.0 * rank);
  leafpack::TensorDict gradients;
  if (absl::Status set = gradients.Set({"encoder", "weight"}, weight); !set.ok()) return set;

  absl::StatusOr<leafpack::TreeWork> work =
      leafpack::AllReduceAsync(gradients, *group, {.op = leafpack::ReduceOp::kAvg});
  if (!work.ok()) return work.status();
  // ... other work; until the wait, nobody touches the gradients ...
  if (absl::Status averaged = work->Wait(); !averaged.ok()) return averaged;

  const float found = *weight.const_data_ptr<float>();
  const float expected = static_cast<float>(size - 1) / 2;
  std::printf("rank %d of %d: %g, expected %g\n", rank, size, found, expected);
  return found == expected ? absl::OkStatus() : absl::InternalError("no average");
}

int main() {
  const absl::Status status = Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  for (leafpack::GlobalRank rank : leafpack::GetErrorDetails(status).ranks) {
    std::fprintf(stderr, "  it is about rank %d\n", rank.value());
  }
  return 1;
}
