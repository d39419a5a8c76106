// GoogleTest's main for multirank_cc_test: prints a stack on SIGTERM and on crashes, so that a rank
// that is ended because it hangs, or because another one failed, shows where it stood.
#include "absl/debugging/failure_signal_handler.h"
#include "absl/debugging/symbolize.h"
#include "gtest/gtest.h"

int main(int argc, char** argv) {
  absl::InitializeSymbolizer(argv[0]);
  absl::FailureSignalHandlerOptions options;
  options.call_previous_handler = true;  // the exit status stays that of the signal
  absl::InstallFailureSignalHandler(options);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
