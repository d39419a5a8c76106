// Every rank makes a small tree and averages it over all ranks; then the ranks disagree on purpose.
// Started by leafpack-launch, or alone: then it is the only rank.
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "distributed/distributed.h"
#include "tensordict/io/safetensors.h"
#include "tensordict/nn/module.h"
#include "tensordict/ops/ops.h"
#include "tensordict/tensordict.h"

namespace {

absl::StatusOr<leafpack::TensorDict> MakeTree(int rank) {
  return leafpack::TensorDict::Make({
      {"bias", at::full({3}, 10.0 * rank)},
      {"encoder", {{"weight", at::full({2, 2}, 1.0 + rank)}}},
  });
}

absl::StatusOr<leafpack::Group> MakeGroup() {
  if (std::getenv("RANK") != nullptr) return leafpack::GroupFromEnvironment({});
  absl::StatusOr<std::vector<leafpack::Group>> groups = leafpack::LocalGroups(1);
  if (!groups.ok()) return groups.status();
  return groups->front();
}

absl::Status Run() {
  absl::StatusOr<leafpack::Group> group = MakeGroup();
  if (!group.ok()) return group.status();
  const int rank = group->rank().value();
  const int size = group->size();

  absl::StatusOr<leafpack::TensorDict> tree = MakeTree(rank);
  if (!tree.ok()) return tree.status();
  const absl::Status reduced = leafpack::AllReduce(*tree, *group, {.op = leafpack::ReduceOp::kAvg});
  if (!reduced.ok()) return reduced;
  absl::StatusOr<at::Tensor> weight = tree->Get({"encoder", "weight"});
  if (!weight.ok()) return weight.status();
  if (!at::equal(*weight, at::full({2, 2}, 1.0 + (size - 1) / 2.0))) {
    return absl::InternalError("encoder.weight is no average");
  }

  // An error crosses the library's border whole, with its details.
  leafpack::TensorDict other;
  absl::Status set = other.Set("only_on_" + std::to_string(rank), at::full({1}, 1.0));
  if (!set.ok()) return set;
  const absl::Status refused = leafpack::AllReduce(other, *group);
  if (size == 1) {
    if (!refused.ok()) return refused;
  } else if (leafpack::GetErrorDetails(refused).kind != leafpack::ErrorKind::kLayoutMismatch ||
             leafpack::GetErrorDetails(refused).path != "only_on_0") {
    return absl::InternalError("no mismatch at only_on_0: " + refused.ToString());
  }
  std::printf("rank %d of %d: encoder.weight is %g\n", rank, size, weight->view({-1})[0].item<double>());
  return absl::OkStatus();
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (status.ok()) return EXIT_SUCCESS;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return EXIT_FAILURE;
}
