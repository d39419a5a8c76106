// The library as a whole: versions, and where log messages go.
#include <cstdint>
#include <memory>
#include <string>

#include <torch/headeronly/version.h>

#include "absl/base/no_destructor.h"
#include "absl/base/thread_annotations.h"
#include "absl/log/globals.h"
#include "absl/log/initialize.h"
#include "absl/log/log_entry.h"
#include "absl/log/log_sink.h"
#include "absl/log/log_sink_registry.h"
#include "absl/synchronization/mutex.h"

#include "bindings/c/guard.h"
#include "bindings/c/handles.h"
#include "bindings/c/leafpack.h"

namespace leafpack::c {
namespace {

using LogFunction = void (*)(void* context, int32_t severity, const char* file, int32_t line,
                             const char* message);

class CallingSink : public absl::LogSink {
 public:
  CallingSink(LogFunction log, void* context) : log_(log), context_(context) {}

  void Send(const absl::LogEntry& entry) override {
    const int32_t severity = entry.log_severity() == absl::LogSeverity::kInfo ? LEAFPACK_LOG_INFO
                             : entry.log_severity() == absl::LogSeverity::kWarning
                                 ? LEAFPACK_LOG_WARNING
                                 : LEAFPACK_LOG_ERROR;
    const std::string file(entry.source_filename());
    const std::string message = TextForC(entry.text_message());
    log_(context_, severity, file.c_str(), entry.source_line(), message.c_str());
  }

 private:
  const LogFunction log_;
  void* const context_;
};

// Where messages go now.
class LogRoute {
 public:
  void Set(LogFunction log, void* context) {
    absl::MutexLock lock(&mutex_);
    if (!initialized_) {
      absl::InitializeLog();  // before, messages go to the standard error stream whatever is set
      initialized_ = true;
    }
    if (sink_ != nullptr) absl::RemoveLogSink(sink_.get());  // waits for messages under way
    sink_ = nullptr;
    if (log == nullptr) {
      absl::SetStderrThreshold(absl::LogSeverityAtLeast::kInfo);
      return;
    }
    sink_ = std::make_unique<CallingSink>(log, context);
    absl::SetStderrThreshold(absl::LogSeverityAtLeast::kInfinity);
    absl::AddLogSink(sink_.get());
  }

 private:
  absl::Mutex mutex_;
  bool initialized_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<CallingSink> sink_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace
}  // namespace leafpack::c

using namespace leafpack::c;  // NOLINT(google-build-using-namespace): the functions of leafpack.h

const char* leafpack_version(void) { return LEAFPACK_VERSION_TEXT; }

int32_t leafpack_version_number(void) {
  return LEAFPACK_VERSION_MAJOR * 10000 + LEAFPACK_VERSION_MINOR * 100 + LEAFPACK_VERSION_PATCH;
}

int32_t leafpack_abi_version(void) { return LEAFPACK_ABI_VERSION; }

const char* leafpack_torch_version(void) { return TORCH_VERSION; }

int64_t leafpack_live_handles(void) { return live_handles.load(std::memory_order_relaxed); }

leafpack_error* leafpack_set_log(void (*log)(void* context, int32_t severity, const char* file,
                                             int32_t line, const char* message),
                                 void* context) {
  return Guard([&] {
    static absl::NoDestructor<LogRoute> route;
    route->Set(log, context);
  });
}
