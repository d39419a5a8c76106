// Every rank prints the mean of what the ranks hold:
//   bazel run @leafpack//distributed/launch -- -n 2 -- $PWD/bazel-bin/app/program
#include <cstdio>

#include "ATen/ops/full.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "app/average.h"

namespace {

absl::Status Run() {
  absl::StatusOr<leafpack::Group> group = leafpack::GroupFromEnvironment();
  if (!group.ok()) return group.status();
  leafpack::TensorDict tree;
  const at::Tensor weight = at::full({2, 3}, static_cast<double>(group->rank().value()));
  if (absl::Status s = tree.Set({"encoder", "weight"}, weight); !s.ok()) return s;
  if (absl::Status s = app::Average(tree, *group); !s.ok()) return s;
  std::printf("mean of %d ranks: %g\n", group->size(), weight.sum().item<double>() / 6);
  return absl::OkStatus();
}

}  // namespace

int main() {
  const absl::Status status = Run();
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
