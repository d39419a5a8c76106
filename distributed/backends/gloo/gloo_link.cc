#include "distributed/backends/gloo/gloo_link.h"

#include <chrono>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

#include "distributed/backends/gloo/interfaces.h"

namespace leafpack::gloo_internal {
namespace {

constexpr int kAbortTag = 1 << 30;
constexpr std::chrono::milliseconds kAbortWait{1};

// Threads that run all-reduces, each one at a time: while one waits for its peers the other moves data.
constexpr int kThreads = 2;

// c10d takes int milliseconds in places; a day is longer than any call.
std::chrono::milliseconds ToC10dTimeout(absl::Duration timeout) {
  const absl::Duration bounded =
      std::min(std::max(timeout, absl::Milliseconds(1)), absl::Hours(24));
  return std::chrono::milliseconds(absl::ToInt64Milliseconds(absl::Ceil(bounded, absl::Milliseconds(1))));
}

// The first line: c10d and Gloo append stack traces and source positions.
std::string FirstLine(std::string_view what) { return std::string(what.substr(0, what.find('\n'))); }

absl::StatusOr<std::shared_ptr<::gloo::transport::Device>> MakeDevice(
    const DataContextOptions& options) {
  absl::StatusOr<std::string> interface = ChooseInterface(options.interface_name, options.all_local);
  if (!interface.ok()) return interface.status();
  if (!interface->empty()) return c10d::ProcessGroupGloo::createDeviceForInterface(*interface);
  return c10d::ProcessGroupGloo::createDefaultDevice();
}

absl::Status AbortedStatus() { return absl::CancelledError("the data context was aborted"); }

c10d::ReduceOp::RedOpType ToC10d(ReduceOpKind op) {
  switch (op) {
    case ReduceOpKind::kProduct:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOpKind::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOpKind::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOpKind::kBand:
      return c10d::ReduceOp::BAND;
    case ReduceOpKind::kBor:
      return c10d::ReduceOp::BOR;
    case ReduceOpKind::kBxor:
      return c10d::ReduceOp::BXOR;
    default:
      return c10d::ReduceOp::SUM;
  }
}

at::Tensor BytesTensor(void* data, int64_t bytes) {
  return at::from_blob(data, {bytes}, at::TensorOptions().dtype(at::kByte));
}

}  // namespace

Message::Message() = default;
Message::Message(Message&&) noexcept = default;
Message& Message::operator=(Message&&) noexcept = default;
Message::~Message() = default;

GlooLink::GlooLink(c10::intrusive_ptr<c10d::ProcessGroupGloo> group,
                   const DataContextOptions& options)
    : rank_(options.rank),
      size_(options.size),
      timeout_(options.timeout),
      group_(std::move(group)) {}

GlooLink::~GlooLink() {
  // c10d waits for what is queued.
  if (HasPendingAllReduce()) Abort();
  try {
    group_.reset();
  } catch (const std::exception&) {
    // Closing connections that are broken already: nothing is left to do.
  }
}

absl::StatusOr<std::unique_ptr<GlooLink>> GlooLink::Connect(const DataContextOptions& options,
                                                            absl::Time deadline) {
  try {
    absl::StatusOr<std::shared_ptr<::gloo::transport::Device>> device = MakeDevice(options);
    if (!device.ok()) return device.status();
    auto pg_options =
        c10d::ProcessGroupGloo::Options::create(ToC10dTimeout(deadline - absl::Now()));
    pg_options->devices.push_back(*std::move(device));
    pg_options->threads = kThreads;
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(options.store, options.rank,
                                                             options.size, pg_options);
    group->setTimeout(ToC10dTimeout(options.timeout));
    return std::unique_ptr<GlooLink>(new GlooLink(std::move(group), options));
  } catch (const std::exception& e) {
    const std::string text =
        absl::StrCat("Gloo could not connect rank ", options.rank, " of ", options.size, ": ",
                     FirstLine(e.what()));
    if (absl::Now() >= deadline) return absl::DeadlineExceededError(text);
    return absl::UnavailableError(text);
  }
}

absl::Status GlooLink::StatusOfText(const std::string& text, int peer) const {
  if (aborted_.load()) return AbortedStatus();
  const std::string with =
      peer < 0 ? std::string() : absl::StrCat(" with group rank ", peer);
  if (absl::StrContains(text, "Timed out waiting")) {
    return absl::DeadlineExceededError(absl::StrCat("Gloo moved no data", with, " within ",
                                                    absl::FormatDuration(timeout_)));
  }
  return absl::UnavailableError(absl::StrCat("Gloo's connection", with, " failed: ", text));
}

absl::Status GlooLink::Send(int peer, uint32_t tag, const void* data, int64_t bytes,
                            Message* message) {
  try {
    // c10d's interface has no const; a send only reads.
    std::vector<at::Tensor> tensors = {BytesTensor(const_cast<void*>(data), bytes)};
    absl::MutexLock lock(&post_mutex_);
    message->peer_ = peer;
    message->work_ = group_->send(tensors, peer, static_cast<int>(tag));
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return StatusOfText(FirstLine(e.what()), peer);
  }
}

absl::Status GlooLink::Receive(int peer, uint32_t tag, void* data, int64_t bytes,
                               Message* message) {
  try {
    std::vector<at::Tensor> tensors = {BytesTensor(data, bytes)};
    absl::MutexLock lock(&post_mutex_);
    message->peer_ = peer;
    message->work_ = group_->recv(tensors, peer, static_cast<int>(tag));
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return StatusOfText(FirstLine(e.what()), peer);
  }
}

absl::Status GlooLink::Wait(Message& message) {
  try {
    message.work_->wait(ToC10dTimeout(timeout_));
    message.work_.reset();
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return StatusOfText(FirstLine(e.what()), message.peer_);
  }
}

absl::Status GlooLink::AllReduce(ReduceOpKind op, at::ScalarType dtype, void* data, int64_t count,
                                 std::shared_ptr<const void> keep_alive, Message* message) {
  try {
    c10d::AllreduceOptions options;
    options.reduceOp = ToC10d(op);
    std::vector<at::Tensor> tensors = {at::from_blob(
        data, {count}, [keep_alive = std::move(keep_alive)](void*) {},
        at::TensorOptions().dtype(dtype))};
    absl::MutexLock lock(&post_mutex_);
    if (aborted_.load()) return AbortedStatus();
    message->work_ = group_->allreduce(tensors, options);
    std::erase_if(all_reduces_, [](const c10::weak_intrusive_ptr<c10d::Work>& weak) {
      const auto work = weak.lock();
      return work == nullptr || work->isCompleted();
    });
    all_reduces_.emplace_back(message->work_);
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return StatusOfText(FirstLine(e.what()), message->peer_);
  }
}

absl::StatusOr<bool> GlooLink::WaitFor(Message& message, absl::Duration slice) {
  c10d::Work& work = *message.work_;
  try {
    work.wait(ToC10dTimeout(slice));
    return true;
  } catch (const std::exception&) {
    // The slice ran out, or the work failed: the work knows.
  }
  if (!work.isCompleted()) return false;
  try {
    if (const std::exception_ptr failure = work.exception()) std::rethrow_exception(failure);
    return true;
  } catch (const std::exception& e) {
    return StatusOfText(FirstLine(e.what()), message.peer_);
  }
}

bool GlooLink::IsDone(const Message& message) const { return message.work_->isCompleted(); }

bool GlooLink::HasPendingAllReduce() {
  absl::MutexLock lock(&post_mutex_);
  for (const c10::weak_intrusive_ptr<c10d::Work>& weak : all_reduces_) {
    const auto work = weak.lock();
    if (work != nullptr && !work->isCompleted()) return true;
  }
  return false;
}

void GlooLink::Abort() {
  if (aborted_.exchange(true)) return;
  // Closing connections does not end what waits on them; a receive that times out fails every
  // connection of the context and with it every message.
  char byte = 0;
  Message message;
  if (!Receive((rank_ + 1) % size_, kAbortTag, &byte, 1, &message).ok()) return;
  try {
    message.work_->wait(kAbortWait);
  } catch (const std::exception&) {
    // The time-out that was asked for.
  }
}

}  // namespace leafpack::gloo_internal
