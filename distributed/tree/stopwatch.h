// Adds the time that a scope takes to a counter.
#ifndef LEAFPACK_DISTRIBUTED_TREE_STOPWATCH_H_
#define LEAFPACK_DISTRIBUTED_TREE_STOPWATCH_H_

#include <chrono>

namespace leafpack::internal {

class ScopedStopwatch {
 public:
  // `seconds` outlives this.
  explicit ScopedStopwatch(double& seconds) : seconds_(seconds) {}
  ~ScopedStopwatch() {
    seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count();
  }
  ScopedStopwatch(const ScopedStopwatch&) = delete;
  ScopedStopwatch& operator=(const ScopedStopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  const Clock::time_point begin_ = Clock::now();
};

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_STOPWATCH_H_
