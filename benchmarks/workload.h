// Workloads of the benchmarks: the leaves of a tree, without values.
#ifndef LEAFPACK_BENCHMARKS_WORKLOAD_H_
#define LEAFPACK_BENCHMARKS_WORKLOAD_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <c10/core/ScalarType.h>

#include "absl/status/statusor.h"

#include "tensordict/tensor_dict.h"

namespace leafpack {

struct WorkloadLeaf {
  std::string key;  // dots separate the components
  std::vector<int64_t> shape;
  at::ScalarType dtype = at::ScalarType::Float;
};

struct Workload {
  std::string name;
  std::vector<WorkloadLeaf> leaves;

  int64_t bytes() const;
  // A tree with these leaves, each filled with `value`.
  absl::StatusOr<TensorDict> MakeTree(double value) const;
};

// Reads {"name": "...", "leaves": [{"key": "...", "shape": [...], "dtype": "float32"}, ...]}.
// InvalidArgument with the position for anything else.
absl::StatusOr<Workload> ParseWorkload(std::string_view json);

// "1000x4KiB": that many float32 leaves of that size (B, KiB, MiB).
absl::StatusOr<Workload> GridWorkload(std::string_view text);

// A grid point, a file in benchmarks/workloads without its ending, or the path of a file.
absl::StatusOr<Workload> FindWorkload(const std::string& name);

// Names of the grid points, and of the files that come with the benchmarks.
std::vector<std::string> GridNames();
std::vector<std::string> ModelNames();

}  // namespace leafpack

#endif  // LEAFPACK_BENCHMARKS_WORKLOAD_H_
