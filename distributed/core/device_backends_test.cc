#include "distributed/core/backend.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "distributed/core/device_traits.h"

namespace leafpack {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What all backends of a test did, in order.
std::vector<std::string>& Log() {
  static auto* const log = new std::vector<std::string>();
  return *log;
}

struct Script {
  bool fail_open = false;
  bool fail_reduce = false;
  absl::StatusOr<bool> done = true;
};

Script& ScriptOf(const std::string& name) {
  static auto* const scripts = new std::map<std::string, Script>();
  return (*scripts)[name];
}

class ScriptedWork : public DataWork {
 public:
  explicit ScriptedWork(std::string name) : name_(std::move(name)) {}
  bool IsDone() override { return !ScriptOf(name_).done.ok() || *ScriptOf(name_).done; }
  absl::StatusOr<bool> WaitFor(absl::Duration) override { return ScriptOf(name_).done; }

 private:
  const std::string name_;
};

class ScriptedContext : public DataContext {
 public:
  explicit ScriptedContext(std::string name) : name_(std::move(name)) {}
  absl::StatusOr<std::unique_ptr<DataWork>> AllReduce(std::vector<LeafView> views, const ReduceOp&) override {
    std::string sizes;
    for (const LeafView& view : views) absl::StrAppend(&sizes, " ", view.sizes[0]);
    Log().push_back(absl::StrCat(name_, " reduces", sizes));
    if (ScriptOf(name_).fail_reduce) return absl::InternalError("scripted");
    return std::make_unique<ScriptedWork>(name_);
  }
  absl::StatusOr<std::unique_ptr<DataWork>> Exchange(std::vector<Transfer> sends,
                                                     std::vector<Transfer> receives) override {
    Log().push_back(absl::StrCat(name_, " exchanges ", sends.size(), " ", receives.size()));
    return std::make_unique<ScriptedWork>(name_);
  }
  void Abort() override { Log().push_back(absl::StrCat(name_, " aborts")); }

 private:
  const std::string name_;
};

class ScriptedBackend : public Backend {
 public:
  ScriptedBackend(std::string name, c10::DeviceType device, bool packs)
      : name_(std::move(name)), device_(device), packs_(packs) {}
  std::string_view name() const override { return name_; }
  absl::Status SupportsAllReduce(at::ScalarType, ReduceOpKind, c10::DeviceType device) const override {
    return device == device_ ? absl::OkStatus() : absl::UnimplementedError("scripted");
  }
  absl::Status SupportsExchange(at::ScalarType, c10::DeviceType device) const override {
    return device == device_ ? absl::OkStatus() : absl::UnimplementedError("scripted");
  }
  bool PacksForItself() const override { return packs_; }
  BackendCost Cost(int) const override {
    return device_ == c10::DeviceType::CPU ? BackendCost{1, 2, 0} : BackendCost{3, 1, 5};
  }
  absl::StatusOr<std::shared_ptr<DataContext>> Open(const DataContextOptions&, absl::Time) override {
    Log().push_back(absl::StrCat(name_, " opens"));
    if (ScriptOf(name_).fail_open) return absl::UnavailableError("scripted");
    return std::make_shared<ScriptedContext>(name_);
  }

 private:
  const std::string name_;
  const c10::DeviceType device_;
  const bool packs_;
};

// One whose device is the second, and which is of one thread, as those for GPUs are.
class DeviceBackend : public ScriptedBackend, public DeviceTraits {
 public:
  DeviceBackend() : ScriptedBackend("device", c10::DeviceType::CUDA, true) {}
  bool MustEnqueueInCallerThread() const override { return true; }
  absl::Status CheckDevice(c10::Device device) const override {
    return device.index() == 1 ? absl::OkStatus() : absl::UnimplementedError("the second alone");
  }
  bool NeedsChecks() const override { return false; }
};

[[maybe_unused]] const bool kRegistered = [] {
  RegisterBackend("host", []() -> absl::StatusOr<std::unique_ptr<Backend>> {
    return std::make_unique<ScriptedBackend>("host", c10::DeviceType::CPU, true);
  });
  RegisterBackend("plain", []() -> absl::StatusOr<std::unique_ptr<Backend>> {
    return std::make_unique<ScriptedBackend>("plain", c10::DeviceType::CPU, false);
  });
  return RegisterBackend("device", []() -> absl::StatusOr<std::unique_ptr<Backend>> {
    return std::make_unique<DeviceBackend>();
  });
}();

class DeviceBackends : public ::testing::Test {
 protected:
  void SetUp() override {
    Log().clear();
    ScriptOf("host") = {};
    ScriptOf("device") = {};
    absl::StatusOr<std::unique_ptr<Backend>> made = MakeBackend("cuda:device,cpu:host");
    ASSERT_TRUE(made.ok()) << made.status();
    backend_ = *std::move(made);
  }
  std::shared_ptr<DataContext> Open() {
    absl::StatusOr<std::shared_ptr<DataContext>> context = backend_->Open({}, absl::InfiniteFuture());
    EXPECT_TRUE(context.ok()) << context.status();
    Log().clear();
    return context.ok() ? *context : nullptr;
  }
  std::unique_ptr<Backend> backend_;
};

LeafView View(c10::Device device, int64_t numel) {
  LeafView view;
  view.device = device;
  view.sizes = {numel};
  view.strides = {1};
  return view;
}

const c10::Device kHost = c10::Device(c10::kCPU);
const c10::Device kGpu = c10::Device(c10::kCUDA, 1);

TEST_F(DeviceBackends, EachDeviceIsServedByItsOwn) {
  EXPECT_EQ(backend_->name(), "cpu:host,cuda:device");  // one name, whatever the order was
  EXPECT_TRUE(backend_->SupportsAllReduce(at::kFloat, ReduceOpKind::kSum, c10::DeviceType::CPU).ok());
  EXPECT_TRUE(backend_->SupportsAllReduce(at::kFloat, ReduceOpKind::kSum, c10::DeviceType::CUDA).ok());
  const absl::Status none = backend_->SupportsAllReduce(at::kFloat, ReduceOpKind::kSum, c10::DeviceType::XPU);
  EXPECT_EQ(none.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(none.message(), HasSubstr("xpu"));
  EXPECT_TRUE(backend_->SupportsExchange(at::kFloat, c10::DeviceType::CPU).ok());
  EXPECT_EQ(backend_->SupportsExchange(at::kFloat, c10::DeviceType::CUDA).code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_TRUE(backend_->MustEnqueueInCallerThread());
  EXPECT_TRUE(backend_->PacksForItself());
  const BackendCost cost = backend_->Cost(2);
  EXPECT_EQ(cost.per_message, 3);
  EXPECT_EQ(cost.per_byte, 2);
  EXPECT_EQ(cost.pack_per_byte, 5);

  const DeviceTraits* traits = DeviceTraits::Of(*backend_);
  ASSERT_NE(traits, nullptr);
  EXPECT_TRUE(traits->CheckDevice(kHost).ok());
  EXPECT_TRUE(traits->CheckDevice(kGpu).ok());
  EXPECT_FALSE(traits->CheckDevice(c10::Device(c10::kCUDA, 0)).ok());
  EXPECT_TRUE(traits->NeedsChecks());  // a host backend is among them
}

TEST_F(DeviceBackends, SplitsAnOperationAndJoinsItsWorks) {
  const std::shared_ptr<DataContext> context = Open();
  absl::StatusOr<std::unique_ptr<DataWork>> work =
      context->AllReduce({View(kGpu, 1), View(kHost, 2), View(kGpu, 3)}, ReduceOp::kSum);
  ASSERT_TRUE(work.ok()) << work.status();
  EXPECT_THAT(Log(), ElementsAre("host reduces 2", "device reduces 1 3"));
  EXPECT_TRUE((*work)->IsDone());
  EXPECT_TRUE(*(*work)->WaitFor(absl::ZeroDuration()));
  ScriptOf("host").done = false;
  EXPECT_FALSE((*work)->IsDone());
  EXPECT_FALSE(*(*work)->WaitFor(absl::ZeroDuration()));
  // The error of one is told although the other still runs.
  ScriptOf("device").done = absl::UnavailableError("scripted");
  EXPECT_EQ((*work)->WaitFor(absl::ZeroDuration()).status().code(), absl::StatusCode::kUnavailable);
  context->Abort();
  EXPECT_THAT(Log(), ElementsAre("host reduces 2", "device reduces 1 3", "host aborts", "device aborts"));
}

TEST_F(DeviceBackends, OneDeviceAloneIsItsBackends) {
  const std::shared_ptr<DataContext> context = Open();
  ASSERT_TRUE(context->AllReduce({View(kGpu, 1)}, ReduceOp::kSum).ok());
  ASSERT_TRUE(context->Exchange({{1, {View(kHost, 4)}}}, {}).ok());
  EXPECT_THAT(Log(), ElementsAre("device reduces 1", "host exchanges 1 0"));
  EXPECT_EQ(context->Exchange({}, {{1, {View(kGpu, 4)}}}).status().code(), absl::StatusCode::kUnimplemented);
}

TEST_F(DeviceBackends, AnUnservedDeviceIsRefusedBeforeAnythingMoves) {
  const std::shared_ptr<DataContext> context = Open();
  EXPECT_EQ(context->AllReduce({View(kHost, 1), View(c10::Device(c10::kMeta), 2)}, ReduceOp::kSum).status().code(),
            absl::StatusCode::kUnimplemented);
  EXPECT_THAT(Log(), IsEmpty());
}

TEST_F(DeviceBackends, WhatWasOpenedIsAbortedIfAnotherDoesNotOpen) {
  ScriptOf("device").fail_open = true;
  const absl::Status status = backend_->Open({}, absl::InfiniteFuture()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(status.message(), HasSubstr("device for cuda"));
  EXPECT_THAT(Log(), ElementsAre("host opens", "device opens", "host aborts"));
}

TEST_F(DeviceBackends, NamesThatAreNone) {
  for (const auto& [name, says] : std::vector<std::pair<std::string, std::string>>{
           {"cpu:host,", "device:backend"},
           {"cpu:", "device:backend"},
           {":host", "device:backend"},
           {"cpu:host:more", "device:backend"},
           {"cpu:host,cpu:host", "twice"},
           {"banana:host", "no kind of device"},
           {"cpu:plain", "does not pack"}}) {
    const absl::Status status = MakeBackend(name).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(status.message(), HasSubstr(says));
    EXPECT_THAT(status.message(), HasSubstr(name));
  }
  const absl::Status unknown = MakeBackend("cpu:host,cuda:nothing").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(unknown.message(), HasSubstr("nothing"));
}

}  // namespace
}  // namespace leafpack
