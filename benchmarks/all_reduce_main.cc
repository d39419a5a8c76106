// bazel run //benchmarks:all_reduce -- --workload=mobilenet-v2 --ranks=2,4
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "benchmarks/all_reduce.h"
#include "benchmarks/workload.h"

ABSL_FLAG(std::vector<std::string>, workload, std::vector<std::string>({"grid"}),
          "workloads: grid, models, COUNTxSIZE such as 1000x4KiB, a model's name, or a file");
ABSL_FLAG(std::vector<std::string>, ranks, std::vector<std::string>({"2", "4"}),
          "numbers of local ranks");
ABSL_FLAG(int, rounds, 21, "rounds; every mode runs once in each");
ABSL_FLAG(std::vector<std::string>, caps, std::vector<std::string>({"1048576", "26214400"}),
          "caps of a bucket, bytes");
ABSL_FLAG(std::string, backend, "gloo", "backend of leafpack's modes: gloo, shm or socket");
ABSL_FLAG(bool, per_leaf, true, "also one message per leaf");
ABSL_FLAG(bool, json, false, "print one JSON array instead of tables");

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "All-reduce of trees of tensors on local ranks: the automatic plan, one message per leaf, caps, "
      "one flat c10d all_reduce of the same bytes over Gloo, and a local add_.");
  absl::ParseCommandLine(argc, argv);
  std::vector<std::string> names;
  for (const std::string& name : absl::GetFlag(FLAGS_workload)) {
    const std::vector<std::string> group = name == "grid"     ? leafpack::GridNames()
                                           : name == "models" ? leafpack::ModelNames()
                                                              : std::vector<std::string>{name};
    names.insert(names.end(), group.begin(), group.end());
  }
  const bool json = absl::GetFlag(FLAGS_json);
  std::vector<std::string> objects;
  for (const std::string& name : names) {
    const absl::StatusOr<leafpack::Workload> workload = leafpack::FindWorkload(name);
    if (!workload.ok()) {
      fprintf(stderr, "%s\n", workload.status().ToString().c_str());
      return 2;
    }
    for (const std::string& ranks : absl::GetFlag(FLAGS_ranks)) {
      leafpack::AllReduceBenchmarkOptions options;
      options.rounds = absl::GetFlag(FLAGS_rounds);
      options.per_leaf = absl::GetFlag(FLAGS_per_leaf);
      options.backend = absl::GetFlag(FLAGS_backend);
      options.caps.clear();
      for (const std::string& cap : absl::GetFlag(FLAGS_caps)) {
        if (!absl::SimpleAtoi(cap, &options.caps.emplace_back())) {
          fprintf(stderr, "--caps: '%s' is no number of bytes\n", cap.c_str());
          return 2;
        }
      }
      if (!absl::SimpleAtoi(ranks, &options.ranks)) {
        fprintf(stderr, "--ranks: '%s' is no number\n", ranks.c_str());
        return 2;
      }
      const auto result = leafpack::RunAllReduceBenchmark(*workload, options);
      if (!result.ok()) {
        fprintf(stderr, "%s\n", result.status().ToString().c_str());
        return 1;
      }
      if (json) {
        objects.push_back(leafpack::FormatJson(*result));
      } else {
        printf("%s", leafpack::FormatTable(*result).c_str());
        fflush(stdout);
      }
    }
  }
  if (json) printf("[%s]\n", absl::StrJoin(objects, ",\n ").c_str());
  return 0;
}
