#include "distributed/backends/gloo/gloo_link.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
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
#include "distributed/backends/gloo/no_sigpipe.h"

namespace leafpack::gloo_internal {
namespace {

constexpr std::string_view kAborted = "the data context was aborted";
constexpr int kAbortTag = static_cast<int>(messages::MessageLink::kTagLimit);
constexpr std::chrono::milliseconds kAbortWait{1};

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

at::Tensor BytesTensor(void* data, int64_t bytes) {
  return at::from_blob(data, {bytes}, at::TensorOptions().dtype(at::kByte));
}

struct GlooMessage : messages::Message {
  c10::intrusive_ptr<c10d::Work> work;
  int peer = -1;
};

// Measured by real-time priority on two cores, where the rest of the machine does not disturb: Gloo's I/O
// thread spins while another thread holds a connection's lock, so what is best is what keeps the thread
// that posts from writing to a connection on which data arrives. With receives posted first that thread
// writes to the sockets, else Gloo's thread does, as soon as the receiver asks.
messages::Schedule ScheduleFor(int ranks) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  if (ranks <= 2) {
    return {.stage_bytes = 8 * kMiB, .one_stage_bytes = 8 * kMiB, .active = 3, .started = 2,
            .receive_first = true};
  }
  return {.stage_bytes = std::max(kMiB, ranks * kMiB / 4), .one_stage_bytes = 4 * kMiB,
          .active = 2, .started = 1, .receive_first = false};
}

}  // namespace

GlooLink::GlooLink(c10::intrusive_ptr<c10d::ProcessGroupGloo> group,
                   const DataContextOptions& options)
    : schedule_(ScheduleFor(options.size)), timeout_(options.timeout), group_(std::move(group)) {}

GlooLink::~GlooLink() {
  try {
    group_.reset();
  } catch (const std::exception&) {
    // Closing connections that are broken already: nothing is left to do.
  }
}

absl::StatusOr<std::unique_ptr<GlooLink>> GlooLink::Connect(const DataContextOptions& options,
                                                            absl::Time deadline) {
  const ScopedNoSigpipe no_sigpipe;  // Gloo's own thread, which writes too, inherits it
  try {
    absl::StatusOr<std::shared_ptr<::gloo::transport::Device>> device = MakeDevice(options);
    if (!device.ok()) return device.status();
    auto pg_options =
        c10d::ProcessGroupGloo::Options::create(ToC10dTimeout(deadline - absl::Now()));
    pg_options->devices.push_back(*std::move(device));
    pg_options->threads = 1;  // messages need none; c10d wants at least one
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
  if (aborted_.load()) return absl::CancelledError(kAborted);
  if (absl::StrContains(text, "Timed out waiting")) {
    return absl::DeadlineExceededError(absl::StrCat("Gloo moved no data with group rank ", peer,
                                                    " within ", absl::FormatDuration(timeout_)));
  }
  return absl::UnavailableError(
      absl::StrCat("Gloo's connection with group rank ", peer, " failed: ", text));
}

absl::StatusOr<std::unique_ptr<messages::Message>> GlooLink::Post(
    int peer, absl::Span<const messages::Run> runs,
    absl::FunctionRef<c10::intrusive_ptr<c10d::Work>(c10d::ProcessGroupGloo&, std::vector<at::Tensor>&)>
        post) {
  if (runs.size() != 1) {
    return absl::InternalError(absl::StrCat("a message of Gloo's has one run, not ", runs.size()));
  }
  try {
    std::vector<at::Tensor> tensors = {BytesTensor(runs[0].data, runs[0].bytes)};
    auto message = std::make_unique<GlooMessage>();
    message->peer = peer;
    absl::MutexLock lock(&post_mutex_);
    const ScopedNoSigpipe no_sigpipe;
    message->work = post(*group_, tensors);
    return message;
  } catch (const std::exception& e) {
    return StatusOfText(FirstLine(e.what()), peer);
  }
}

absl::StatusOr<std::unique_ptr<messages::Message>> GlooLink::Send(
    int peer, uint32_t tag, absl::Span<const messages::Run> runs) {
  return Post(peer, runs, [&](c10d::ProcessGroupGloo& group, std::vector<at::Tensor>& tensors) {
    return group.send(tensors, peer, static_cast<int>(tag));
  });
}

absl::StatusOr<std::unique_ptr<messages::Message>> GlooLink::Receive(
    int peer, uint32_t tag, absl::Span<const messages::Run> runs) {
  return Post(peer, runs, [&](c10d::ProcessGroupGloo& group, std::vector<at::Tensor>& tensors) {
    return group.recv(tensors, peer, static_cast<int>(tag));
  });
}

absl::Status GlooLink::Wait(messages::Message& base) {
  auto& message = static_cast<GlooMessage&>(base);
  {
    absl::MutexLock lock(&wait_mutex_);
    if (aborted_.load()) return absl::CancelledError(kAborted);
    waiting_.push_back(message.work);
  }
  absl::Status status;
  try {
    if (!message.work->wait(ToC10dTimeout(timeout_))) status = absl::CancelledError(kAborted);
  } catch (const std::exception& e) {
    status = StatusOfText(FirstLine(e.what()), message.peer);
  }
  {
    absl::MutexLock lock(&wait_mutex_);
    std::erase(waiting_, message.work);
  }
  if (status.ok()) message.work.reset();
  return status;
}

void GlooLink::Abort() {
  if (aborted_.exchange(true)) return;
  // Closing connections does not end what waits on them; a receive that times out fails every
  // connection of the context and with it every message. It is a receive from anyone: one from a
  // rank whose connection has broken already would fail at once, and the others never hear of it.
  char byte = 0;
  std::vector<at::Tensor> tensors = {BytesTensor(&byte, 1)};
  try {
    c10::intrusive_ptr<c10d::Work> work;
    {
      absl::MutexLock lock(&post_mutex_);
      const ScopedNoSigpipe no_sigpipe;
      work = group_->recvAnysource(tensors, kAbortTag);
    }
    work->wait(kAbortWait);
  } catch (const std::exception&) {
    // The time-out that was asked for.
  }
  // A connection that the peer had closed before is not told of the time-out, and neither are the
  // messages on it.
  absl::MutexLock lock(&wait_mutex_);
  for (const c10::intrusive_ptr<c10d::Work>& waiting : waiting_) waiting->abort();
}

}  // namespace leafpack::gloo_internal
