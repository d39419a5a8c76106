// Keeps SIGPIPE from this thread while it lives. Gloo writes to its sockets in the thread that posts a
// message, and does not ask for the error in place of the signal: without this a peer that has closed its
// end would end our process, where the program has not said what to do with the signal.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_NO_SIGPIPE_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_NO_SIGPIPE_H_

#include <signal.h>
#include <time.h>

namespace leafpack::gloo_internal {

class ScopedNoSigpipe {
 public:
  ScopedNoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
    blocks_ = sigismember(&before_, SIGPIPE) == 0;
    pending_before_ = blocks_ && Pending();
  }
  ~ScopedNoSigpipe() {
    if (!blocks_) return;
    if (!pending_before_ && Pending()) {
      const timespec now = {0, 0};
      sigtimedwait(&pipe_, nullptr, &now);  // a write's signal is pending on the thread that wrote
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  ScopedNoSigpipe(const ScopedNoSigpipe&) = delete;
  ScopedNoSigpipe& operator=(const ScopedNoSigpipe&) = delete;

 private:
  static bool Pending() {
    sigset_t pending;
    sigemptyset(&pending);
    sigpending(&pending);
    return sigismember(&pending, SIGPIPE) == 1;
  }

  sigset_t pipe_;
  sigset_t before_;
  bool blocks_ = false;
  bool pending_before_ = false;
};

}  // namespace leafpack::gloo_internal

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_GLOO_NO_SIGPIPE_H_
