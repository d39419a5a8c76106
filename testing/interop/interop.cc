// The rank in C++: README.md says what it does.
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "absl/log/absl_check.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "distributed/distributed.h"
#include "tensordict/tensordict.h"

namespace leafpack {
namespace {

template <typename T>
at::Tensor Fractions(int rank, at::IntArrayRef sizes, at::ScalarType dtype, int divisor) {
  at::Tensor tensor = at::empty(sizes, dtype);
  T* const data = tensor.mutable_data_ptr<T>();
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    data[i] = static_cast<T>(rank + 1) / static_cast<T>(i + divisor);
  }
  return tensor;
}

at::Tensor Weight(int rank) { return Fractions<float>(rank, {2, 3}, at::kFloat, 3); }

TensorDict MakeTree(int rank, int64_t biases) {
  TensorDict tree;
  at::Tensor layer = at::empty({}, at::kLong);
  *layer.mutable_data_ptr<int64_t>() = rank + 1;
  ABSL_CHECK_OK(tree.Set({"encoder", "weight"}, Weight(rank)));
  ABSL_CHECK_OK(tree.Set({"encoder", "bias"}, Fractions<double>(rank, {biases}, at::kDouble, 7)));
  ABSL_CHECK_OK(tree.Set({"layers", 0}, layer));
  ABSL_CHECK_OK(tree.Set("large", Fractions<float>(rank, {100000}, at::kFloat, 3)));
  return tree;
}

std::ofstream OpenFile(const std::string& name, int rank) {
  std::ofstream file(absl::StrCat(std::getenv("TEST_TMPDIR"), "/", name, ".", rank),
                     std::ios::binary);
  ABSL_CHECK(file.is_open());
  return file;
}

void WriteLeaves(const TensorDict& tree, int rank) {
  std::ofstream file = OpenFile("result", rank);
  tree.Visit([&](const NestedKey&, const at::Tensor& leaf) {
    file.write(static_cast<const char*>(leaf.const_data_ptr()),
               static_cast<std::streamsize>(leaf.nbytes()));
  });
  file.close();
  ABSL_CHECK(file.good());
}

void Mismatch(const Group& group, int rank) {
  const absl::Status status = AllReduce(MakeTree(rank, rank == 1 ? 5 : 4), group);
  ABSL_CHECK_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  const ErrorDetails details = GetErrorDetails(status);
  ABSL_CHECK(details.kind == ErrorKind::kLayoutMismatch);
  ABSL_CHECK_EQ(details.path, "encoder.bias");
  OpenFile("error", rank) << status.message() << "\n";
}

void BroadcastTree(const Group& group, int rank) {
  std::optional<TreeArg> sent;
  if (rank == 0) {
    TensorDict tree;
    ABSL_CHECK_OK(tree.Set({"encoder", "weight"}, Weight(0)));
    ABSL_CHECK_OK(tree.Set("step", NonTensor(7)));
    ABSL_CHECK_OK(tree.Set("note", NonTensor("from rank 0")));
    sent = TreeArg(tree);
  }
  absl::StatusOr<TreeResult> result = Broadcast(sent, GlobalRank(0), group);
  ABSL_CHECK_OK(result);
  absl::StatusOr<TensorDict> tree = result->Dict();
  ABSL_CHECK_OK(tree);
  absl::StatusOr<at::Tensor> weight = tree->Get({"encoder", "weight"});
  ABSL_CHECK_OK(weight);
  ABSL_CHECK(weight->equal(Weight(0)));
  ABSL_CHECK(*tree->GetNonTensor("step") == NonTensor(7));
  ABSL_CHECK(*tree->GetNonTensor("note") == NonTensor("from rank 0"));
}

void Run() {
  absl::StatusOr<Group> group = GroupFromEnvironment();
  ABSL_CHECK_OK(group);
  const int rank = group->rank().value();
  const TensorDict tree = MakeTree(rank, 4);
  ABSL_CHECK_OK(AllReduce(tree, *group));
  WriteLeaves(tree, rank);
  Mismatch(*group, rank);
  BroadcastTree(*group, rank);
  ABSL_CHECK_OK(Barrier(*group));
}

}  // namespace
}  // namespace leafpack

int main() { leafpack::Run(); }
