// The handle of one call of an EngineImpl.
#ifndef LEAFPACK_DISTRIBUTED_CORE_ENGINE_CALL_H_
#define LEAFPACK_DISTRIBUTED_CORE_ENGINE_CALL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "distributed/core/engine.h"
#include "distributed/core/engine_impl.h"

namespace leafpack {

class CallImpl final : public Call {
 public:
  CallImpl(std::shared_ptr<EngineImpl> engine, std::shared_ptr<CallState> state)
      : engine_(std::move(engine)), state_(std::move(state)) {}
  ~CallImpl() override { engine_->DropCall(state_); }

  uint64_t number() const override { return state_->number; }
  absl::Time deadline() const override { return state_->deadline; }

  absl::Status AwaitDecision(const InterruptCheck& interrupt) override {
    return engine_->AwaitDecision(*state_, protocol::kNever, interrupt).status();
  }
  absl::StatusOr<bool> AwaitDecisionUntil(absl::Time until,
                                          const InterruptCheck& interrupt) override {
    return engine_->AwaitDecision(*state_, ToSteady(until), interrupt);
  }
  bool is_frame() const override { return state_->outcome.frame != nullptr; }
  absl::Span<const char> frame_result() const override {
    return state_->outcome.frame == nullptr ? absl::Span<const char>()
                                            : absl::Span<const char>(*state_->outcome.frame);
  }
  bool soft_digests_agree() const override { return state_->soft_equal; }

  absl::StatusOr<std::shared_ptr<DataContext>> EnterData(
      const InterruptCheck& interrupt) override {
    return engine_->EnterData(*state_, interrupt);
  }
  void LeaveTurnstile() override { engine_->LeaveTurnstile(*state_); }
  absl::Status Poll() override { return engine_->Poll(*state_); }
  absl::Status FinishData(absl::Status status, std::vector<std::string> paths_done,
                          const InterruptCheck& interrupt) override {
    return engine_->FinishData(*state_, std::move(status), std::move(paths_done), interrupt);
  }
  void Cancel() override { engine_->Withdraw(state_->number, protocol::WithdrawKind::kCancel); }

 private:
  const std::shared_ptr<EngineImpl> engine_;
  const std::shared_ptr<CallState> state_;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_ENGINE_CALL_H_
