#include "distributed/core/testing/fake_backend.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace leafpack::testing {
namespace {

struct Shared {
  DataContextOptions options;
  std::shared_ptr<FakeFaults> faults;
  std::atomic<bool> aborted{false};
  absl::Mutex mu;  // the store serves one thread at a time
};

size_t ByteCount(const LeafView& view) {
  size_t n = c10::elementSize(view.dtype);
  for (int64_t size : view.sizes) n *= static_cast<size_t>(size);
  return n;
}

void Append(const std::vector<LeafView>& views, std::vector<uint8_t>& bytes) {
  for (const LeafView& view : views) {
    const auto* data = static_cast<const uint8_t*>(view.data);
    bytes.insert(bytes.end(), data, data + ByteCount(view));
  }
}

// An operation that stores its bytes under some keys at once and is over when others are there.
class FakeWork : public DataWork {
 public:
  using Values = std::vector<std::vector<uint8_t>>;

  explicit FakeWork(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {
    ++shared_->faults->works;
    stalled_ = shared_->faults->stall_next_op.exchange(false);
    if (shared_->faults->fail_next_op.exchange(false)) result_ = absl::InternalError("fake fault");
  }
  ~FakeWork() override { --shared_->faults->works; }

  virtual absl::Status Send() = 0;

  bool IsDone() override {
    absl::MutexLock lock(&mu_);
    return Advance();
  }

  absl::StatusOr<bool> WaitFor(absl::Duration slice) override {
    const absl::Time until = absl::Now() + slice;
    while (true) {
      {
        absl::MutexLock lock(&mu_);
        if (Advance()) {
          if (result_.ok()) return true;
          return result_;
        }
      }
      if (absl::Now() >= until) return false;
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

 protected:
  const DataContextOptions& options() const { return shared_->options; }

  // Nothing is sent by an operation that was ordered to stall or to fail.
  absl::Status Put(const std::string& key, const std::vector<uint8_t>& bytes) {
    absl::MutexLock lock(&mu_);
    if (stalled_ || !result_.ok()) return absl::OkStatus();
    absl::MutexLock store_lock(&shared_->mu);
    try {
      shared_->options.store->set(key, bytes);
    } catch (const std::exception& e) {
      return absl::InternalError(e.what());
    }
    return absl::OkStatus();
  }

  void CountSent(size_t bytes) { shared_->faults->exchanged_bytes += static_cast<int64_t>(bytes); }

  // The keys that the operation needs, and what it does once all are there.
  virtual std::vector<std::string> Needs() const = 0;
  virtual absl::Status Take(const Values& values) = 0;

 private:
  bool Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (done_) return true;
    if (!result_.ok()) return done_ = true;
    if (shared_->aborted) {
      result_ = absl::AbortedError("fake context was aborted");
      return done_ = true;
    }
    if (stalled_) return false;
    Values values;
    try {
      absl::MutexLock lock(&shared_->mu);
      const std::vector<std::string> keys = Needs();
      if (!keys.empty() && !shared_->options.store->check(keys)) return false;
      for (const std::string& key : keys) values.push_back(shared_->options.store->get(key));
    } catch (const std::exception& e) {
      result_ = absl::InternalError(e.what());
      return done_ = true;
    }
    result_ = Take(values);
    return done_ = true;
  }

  const std::shared_ptr<Shared> shared_;
  bool stalled_ = false;
  absl::Mutex mu_;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status result_ ABSL_GUARDED_BY(mu_);
};

class FakeAllReduce : public FakeWork {
 public:
  FakeAllReduce(std::shared_ptr<Shared> shared, uint64_t number, std::vector<LeafView> views,
                bool average)
      : FakeWork(std::move(shared)), number_(number), views_(std::move(views)), average_(average) {}

  absl::Status Send() override {
    std::vector<uint8_t> bytes;
    Append(views_, bytes);
    return Put(Key(options().rank), bytes);
  }

 private:
  std::string Key(int rank) const { return absl::StrCat("op/", number_, "/", rank); }

  std::vector<std::string> Needs() const override {
    std::vector<std::string> keys;
    for (int r = 0; r < options().size; ++r) keys.push_back(Key(r));
    return keys;
  }

  absl::Status Take(const Values& all) override {
    size_t offset = 0;
    for (const LeafView& view : views_) {
      auto* out = static_cast<float*>(view.data);
      const size_t n = ByteCount(view) / sizeof(float);
      for (size_t i = 0; i < n; ++i) {
        float sum = 0;
        for (const std::vector<uint8_t>& bytes : all) {
          float value = 0;
          if (bytes.size() >= offset + (i + 1) * sizeof(float)) {
            std::memcpy(&value, bytes.data() + offset + i * sizeof(float), sizeof(float));
          }
          sum += value;
        }
        out[i] = average_ ? sum / static_cast<float>(all.size()) : sum;
      }
      offset += n * sizeof(float);
    }
    return absl::OkStatus();
  }

  const uint64_t number_;
  const std::vector<LeafView> views_;
  const bool average_;
};

class FakeExchange : public FakeWork {
 public:
  FakeExchange(std::shared_ptr<Shared> shared, uint64_t number, std::vector<Transfer> sends,
               std::vector<Transfer> receives)
      : FakeWork(std::move(shared)),
        number_(number),
        sends_(std::move(sends)),
        receives_(std::move(receives)) {}

  absl::Status Send() override {
    for (const Transfer& transfer : sends_) {
      std::vector<uint8_t> bytes;
      Append(transfer.views, bytes);
      CountSent(bytes.size());
      if (absl::Status put = Put(Key(options().rank, transfer.peer), bytes); !put.ok()) return put;
    }
    return absl::OkStatus();
  }

 private:
  std::string Key(int from, int to) const {
    return absl::StrCat("exchange/", number_, "/", from, "/", to);
  }

  std::vector<std::string> Needs() const override {
    std::vector<std::string> keys;
    for (const Transfer& transfer : receives_) keys.push_back(Key(transfer.peer, options().rank));
    return keys;
  }

  absl::Status Take(const Values& values) override {
    for (size_t i = 0; i < receives_.size(); ++i) {
      size_t offset = 0;
      for (const LeafView& view : receives_[i].views) {
        const size_t bytes = ByteCount(view);
        if (offset + bytes > values[i].size()) return WrongSize(i);
        if (bytes > 0) std::memcpy(view.data, values[i].data() + offset, bytes);
        offset += bytes;
      }
      if (offset != values[i].size()) return WrongSize(i);
    }
    return absl::OkStatus();
  }

  absl::Status WrongSize(size_t i) const {
    return absl::InternalError(
        absl::StrCat("fake exchange: rank ", receives_[i].peer, " sent other sizes"));
  }

  const uint64_t number_;
  const std::vector<Transfer> sends_, receives_;
};

class FakeContext : public DataContext {
 public:
  explicit FakeContext(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {
    ++shared_->faults->contexts;
  }
  ~FakeContext() override { --shared_->faults->contexts; }

  absl::StatusOr<std::unique_ptr<DataWork>> AllReduce(std::vector<LeafView> views,
                                                      const ReduceOp& op) override {
    return Start(std::make_unique<FakeAllReduce>(shared_, ++number_, std::move(views),
                                                 op.kind == ReduceOpKind::kAvg));
  }

  absl::StatusOr<std::unique_ptr<DataWork>> Exchange(std::vector<Transfer> sends,
                                                     std::vector<Transfer> receives) override {
    return Start(std::make_unique<FakeExchange>(shared_, ++number_, std::move(sends),
                                                std::move(receives)));
  }

  void Abort() override {
    if (!shared_->aborted.exchange(true)) ++shared_->faults->aborts;
  }

 private:
  absl::StatusOr<std::unique_ptr<DataWork>> Start(std::unique_ptr<FakeWork> work) {
    if (shared_->aborted) return absl::AbortedError("fake context was aborted");
    if (absl::Status sent = work->Send(); !sent.ok()) return sent;
    return work;
  }

  const std::shared_ptr<Shared> shared_;
  uint64_t number_ = 0;
};

}  // namespace

absl::Status FakeBackend::SupportsAllReduce(at::ScalarType dtype, ReduceOpKind op,
                                            c10::DeviceType device) const {
  if (dtype == at::ScalarType::Float && device == c10::kCPU &&
      (op == ReduceOpKind::kSum || op == ReduceOpKind::kAvg)) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError("the fake backend sums and averages float32 only");
}

absl::Status FakeBackend::SupportsExchange(at::ScalarType /*dtype*/, c10::DeviceType device) const {
  if (device == c10::kCPU) return absl::OkStatus();
  return absl::UnimplementedError("the fake backend moves CPU memory only");
}

BackendCost FakeBackend::Cost(int ranks) const {
  return {.per_message = 1e-3 * ranks, .per_byte = 1e-9, .pack_per_byte = 1e-10};
}

absl::StatusOr<std::shared_ptr<DataContext>> FakeBackend::Open(const DataContextOptions& options,
                                                               absl::Time deadline) {
  if (faults_->fail_next_open.exchange(false)) {
    return absl::InvalidArgumentError("fake context does not open");
  }
  ++faults_->opens;
  auto shared = std::make_shared<Shared>();
  shared->options = options;
  shared->faults = faults_;
  // Collective: comes back when all ranks are here.
  try {
    options.store->set(absl::StrCat("here/", options.rank), std::vector<uint8_t>{1});
    std::vector<std::string> keys;
    for (int r = 0; r < options.size; ++r) keys.push_back(absl::StrCat("here/", r));
    while (!options.store->check(keys)) {
      if (absl::Now() >= deadline) {
        return absl::DeadlineExceededError("fake context: not all ranks came");
      }
      absl::SleepFor(absl::Milliseconds(1));
    }
  } catch (const std::exception& e) {
    return absl::InternalError(e.what());
  }
  return std::make_shared<FakeContext>(std::move(shared));
}

void RegisterFakeBackend() {
  static const bool registered =
      RegisterBackend("fake",
                      []() -> absl::StatusOr<std::unique_ptr<Backend>> {
                        return std::make_unique<FakeBackend>();
                      }) &&
      RegisterBackend("fake-caller", []() -> absl::StatusOr<std::unique_ptr<Backend>> {
        return std::make_unique<FakeBackend>(/*caller_thread=*/true);
      });
  (void)registered;
}

}  // namespace leafpack::testing
