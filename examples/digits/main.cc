// bazel run //examples:digits -- --ranks=4 --epochs=10 --bucketing=auto
//
// Without RANK in its environment this program starts itself on --ranks local ranks; with it, it is
// one of them. So it can also be started by //distributed/launch or by torchrun.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "tools/cpp/runfiles/runfiles.h"

#include "distributed/distributed.h"
#include "distributed/launch/launcher.h"
#include "examples/digits/data.h"
#include "examples/digits/train.h"

ABSL_FLAG(int, ranks, 4, "Number of local ranks.");
ABSL_FLAG(int, epochs, 10, "Times that the training images are gone through.");
ABSL_FLAG(int64_t, batch, 64, "Images of one step, over all ranks.");
ABSL_FLAG(double, rate, 0.1, "Learning rate.");
ABSL_FLAG(uint64_t, seed, 1, "Of the weights and of the order of images.");
ABSL_FLAG(std::string, bucketing, "auto",
          "How gradients are put into messages: auto, per_leaf, or a number of bytes.");
ABSL_FLAG(double, min_accuracy, 0.95, "The held-out accuracy below which the program fails.");
ABSL_FLAG(double, tolerance, 1e-4,
          "Largest difference of a weight from the training in one process that is accepted. Sums "
          "over a batch are taken in another order there, so the last bits differ.");
ABSL_FLAG(std::string, data, "", "The file of images; empty: the one that comes with the program.");
ABSL_FLAG(std::string, log_dir, "", "Folder for the output of each rank.");

namespace leafpack::digits {
namespace {

absl::StatusOr<Bucketing> ParseBucketing(const std::string& text) {
  if (text == "auto") return Bucketing::Auto();
  if (text == "per_leaf") return Bucketing::PerLeaf();
  int64_t bytes = 0;
  if (absl::SimpleAtoi(text, &bytes) && bytes > 0) return Bucketing::MaxBytes(bytes);
  return absl::InvalidArgumentError(
      absl::StrCat("--bucketing=", text, ": not auto, per_leaf or a positive number of bytes"));
}

absl::StatusOr<TrainOptions> OptionsFromFlags() {
  TrainOptions options;
  options.epochs = absl::GetFlag(FLAGS_epochs);
  options.batch = absl::GetFlag(FLAGS_batch);
  options.rate = absl::GetFlag(FLAGS_rate);
  options.seed = absl::GetFlag(FLAGS_seed);
  if (options.epochs < 1) return absl::InvalidArgumentError("--epochs must be at least 1");
  absl::StatusOr<Bucketing> bucketing = ParseBucketing(absl::GetFlag(FLAGS_bucketing));
  if (!bucketing.ok()) return bucketing.status();
  options.bucketing = *bucketing;
  return options;
}

absl::StatusOr<std::string> DataPath(const char* program) {
  if (!absl::GetFlag(FLAGS_data).empty()) {
    return std::filesystem::absolute(absl::GetFlag(FLAGS_data)).string();
  }
  using bazel::tools::cpp::runfiles::Runfiles;
  std::string error;
  std::unique_ptr<Runfiles> runfiles(Runfiles::Create(program, &error));
  if (runfiles == nullptr) return absl::NotFoundError(error);
  return runfiles->Rlocation("leafpack/examples/data/digits.csv");
}

void PrintTimes(const Trained& trained) {
  const Times& t = trained.times;
  const double phases = t.prepare + t.agree + t.pack + t.communicate + t.unpack;
  std::printf("where the time went (rank 0, %lld steps, %lld leaves and %lld bytes of gradients in ",
              static_cast<long long>(trained.steps), static_cast<long long>(trained.leaves),
              static_cast<long long>(trained.bytes));
  if (trained.buckets == 0) {
    std::printf("one frame per step):\n");
  } else {
    std::printf("%lld message%s per step):\n", static_cast<long long>(trained.buckets),
                trained.buckets == 1 ? "" : "s");
  }
  const auto row = [&](const char* what, double seconds) {
    std::printf("  %-12s %8.1f ms  %5.1f %%\n", what, 1e3 * seconds, 100 * seconds / t.total);
  };
  row("compute", t.compute);
  row("plan", t.prepare);
  row("agree", t.agree);  // and wait for ranks that are not there yet
  row("pack", t.pack);
  row("communicate", t.communicate);
  row("unpack", t.unpack);
  row("other", t.total - t.compute - phases);
  row("total", t.total);
}

absl::Status RunRank() {
  absl::StatusOr<TrainOptions> options = OptionsFromFlags();
  if (!options.ok()) return options.status();
  absl::StatusOr<Digits> digits = ReadDigits(absl::GetFlag(FLAGS_data));
  if (!digits.ok()) return digits.status();
  absl::StatusOr<Group> group = GroupFromEnvironment({.backend = "gloo"});
  if (!group.ok()) return group.status();
  const bool first = group->rank().value() == 0;
  if (first) {
    std::printf("%lld images to learn from, %lld held out, %d ranks\n",
                static_cast<long long>(digits->train.size()),
                static_cast<long long>(digits->held_out.size()), group->size());
  }
  absl::StatusOr<Trained> trained = Train(*digits, *options, *group);
  if (!trained.ok()) return trained.status();

  if (absl::Status s = CheckEqualOnAllRanks(trained->net, *group); !s.ok()) return s;
  std::printf("weights on rank %d: %s\n", group->rank().value(), Fingerprint(trained->net).c_str());
  std::fflush(stdout);
  if (absl::Status s = group->Shutdown(absl::Seconds(10)); !s.ok()) return s;
  if (!first) return absl::OkStatus();
  std::printf("all %d ranks hold equal weights, to the bit\n", group->size());

  absl::StatusOr<Trained> alone = TrainAlone(*digits, *options);
  if (!alone.ok()) return alone.status();
  const double difference = LargestDifference(trained->net, alone->net);
  const double tolerance = absl::GetFlag(FLAGS_tolerance);
  std::printf("one process with the same batches: held-out accuracy %.2f %%; weights differ by %.2g "
              "at most (tolerance %g)\n",
              100 * alone->accuracy, difference, tolerance);
  PrintTimes(*trained);
  std::fflush(stdout);
  if (!(difference <= tolerance)) {
    return absl::InternalError(absl::StrCat("the weights differ by ", difference,
                                            " from those of one process; the tolerance is ",
                                            tolerance));
  }
  if (!(trained->accuracy >= absl::GetFlag(FLAGS_min_accuracy))) {
    return absl::InternalError(absl::StrCat("the held-out accuracy is ", trained->accuracy,
                                            ", below --min_accuracy=",
                                            absl::GetFlag(FLAGS_min_accuracy)));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> StartRanks(int argc, char** argv) {
  absl::StatusOr<TrainOptions> options = OptionsFromFlags();
  if (!options.ok()) return options.status();
  absl::StatusOr<std::string> data = DataPath(argv[0]);
  if (!data.ok()) return data.status();
  LaunchOptions launch;
  launch.ranks = absl::GetFlag(FLAGS_ranks);
  launch.log_dir = absl::GetFlag(FLAGS_log_dir);
  launch.name = "digits";
  std::vector<std::string> command = {std::filesystem::read_symlink("/proc/self/exe").string()};
  command.insert(command.end(), argv + 1, argv + argc);
  command.push_back(absl::StrCat("--data=", *data));  // the last one counts
  absl::StatusOr<LaunchResult> result = Launch(launch, std::move(command));
  if (!result.ok()) return result.status();
  return result->exit_code;
}

}  // namespace
}  // namespace leafpack::digits

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "trains a small net on hand-written digits, data parallel on local ranks");
  absl::ParseCommandLine(argc, argv);
  if (std::getenv("RANK") == nullptr) {
    absl::StatusOr<int> code = leafpack::digits::StartRanks(argc, argv);
    if (!code.ok()) std::fprintf(stderr, "digits: %s\n", code.status().ToString().c_str());
    return code.ok() ? *code : 1;
  }
  const absl::Status status = leafpack::digits::RunRank();
  if (!status.ok()) std::fprintf(stderr, "digits: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
