#include "distributed/core/device_backends.h"

#include <algorithm>
#include <exception>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

#include "distributed/core/backend.h"
#include "distributed/core/device_traits.h"

namespace leafpack {
namespace {

// By the name of the device, so that all ranks take the parts in one order.
template <typename T>
using ByDevice = std::map<std::string, T, std::less<>>;

std::string DeviceName(c10::DeviceType device) { return c10::DeviceTypeName(device, true); }

// Several operations as one.
class Works : public DataWork {
 public:
  explicit Works(std::vector<std::unique_ptr<DataWork>> works) : works_(std::move(works)) {}

  bool IsDone() override {
    return std::ranges::all_of(works_, [](const auto& work) { return work->IsDone(); });
  }
  absl::StatusOr<bool> WaitFor(absl::Duration slice) override {
    const absl::Time until = absl::Now() + slice;
    bool all = true;
    // Also past one that still runs: the error of another one is told at once.
    for (const std::unique_ptr<DataWork>& work : works_) {
      const absl::StatusOr<bool> done =
          work->WaitFor(all ? std::max(until - absl::Now(), absl::ZeroDuration()) : absl::ZeroDuration());
      if (!done.ok()) return done;
      all = all && *done;
    }
    return all;
  }

 private:
  const std::vector<std::unique_ptr<DataWork>> works_;
};

class Contexts : public DataContext {
 public:
  explicit Contexts(ByDevice<std::shared_ptr<DataContext>> parts) : parts_(std::move(parts)) {}

  absl::StatusOr<std::unique_ptr<DataWork>> AllReduce(std::vector<LeafView> views,
                                                      const ReduceOp& op) override {
    ByDevice<std::vector<LeafView>> by_device;
    for (LeafView& view : views) {
      by_device[DeviceName(view.device.type())].push_back(std::move(view));
    }
    for (const auto& [device, part] : by_device) {
      if (!parts_.contains(device)) return Unserved(device);
    }
    std::vector<std::unique_ptr<DataWork>> works;
    for (auto& [device, part] : by_device) {
      absl::StatusOr<std::unique_ptr<DataWork>> work =
          parts_.find(device)->second->AllReduce(std::move(part), op);
      if (!work.ok()) return work;
      works.push_back(*std::move(work));
    }
    return Joined(std::move(works));
  }

  absl::StatusOr<std::unique_ptr<DataWork>> Exchange(std::vector<Transfer> sends,
                                                     std::vector<Transfer> receives) override {
    for (const std::vector<Transfer>* transfers : {&sends, &receives}) {
      for (const Transfer& transfer : *transfers) {
        for (const LeafView& view : transfer.views) {
          if (!view.device.is_cpu()) return Unserved(view.device.str());
        }
      }
    }
    const auto cpu = parts_.find("cpu");
    if (cpu == parts_.end()) return Unserved("cpu");
    return cpu->second->Exchange(std::move(sends), std::move(receives));
  }

  void Abort() override {
    for (const auto& [device, part] : parts_) part->Abort();
  }

 private:
  static absl::Status Unserved(std::string_view device) {
    return absl::UnimplementedError(absl::StrCat("no backend of this group serves leaves on ", device));
  }
  static std::unique_ptr<DataWork> Joined(std::vector<std::unique_ptr<DataWork>> works) {
    if (works.size() == 1) return std::move(works.front());
    return std::make_unique<Works>(std::move(works));
  }

  const ByDevice<std::shared_ptr<DataContext>> parts_;
};

class DeviceBackends : public Backend, public DeviceTraits {
 public:
  explicit DeviceBackends(ByDevice<std::unique_ptr<Backend>> parts)
      : parts_(std::move(parts)),
        name_(absl::StrJoin(parts_, ",", [](std::string* out, const auto& part) {
          absl::StrAppend(out, part.first, ":", part.second->name());
        })) {}

  std::string_view name() const override { return name_; }

  absl::Status SupportsAllReduce(at::ScalarType dtype, ReduceOpKind op,
                                 c10::DeviceType device) const override {
    const Backend* part = Find(device);
    return part == nullptr ? Unserved(device) : part->SupportsAllReduce(dtype, op, device);
  }
  absl::Status SupportsExchange(at::ScalarType dtype, c10::DeviceType device) const override {
    const Backend* part = Find(device);
    if (part == nullptr) return Unserved(device);
    if (device != c10::DeviceType::CPU) {
      return absl::UnimplementedError(absl::StrCat("the backends ", name_, " exchange CPU tensors, not ",
                                                   DeviceName(device)));
    }
    return part->SupportsExchange(dtype, device);
  }
  bool MustEnqueueInCallerThread() const override {
    return std::ranges::any_of(parts_, [](const auto& part) {
      return part.second->MustEnqueueInCallerThread();
    });
  }
  bool PacksForItself() const override { return true; }

  // Of the slowest: a plan knows one cost for all devices.
  BackendCost Cost(int ranks) const override {
    BackendCost cost;
    for (const auto& [device, part] : parts_) {
      const BackendCost of_part = part->Cost(ranks);
      cost.per_message = std::max(cost.per_message, of_part.per_message);
      cost.per_byte = std::max(cost.per_byte, of_part.per_byte);
      cost.pack_per_byte = std::max(cost.pack_per_byte, of_part.pack_per_byte);
    }
    return cost;
  }

  absl::StatusOr<std::shared_ptr<DataContext>> Open(const DataContextOptions& options,
                                                    absl::Time deadline) override {
    ByDevice<std::shared_ptr<DataContext>> contexts;
    for (const auto& [device, part] : parts_) {
      DataContextOptions theirs = options;
      if (options.store != nullptr) {
        theirs.store = c10::make_intrusive<c10d::PrefixStore>(device, options.store);
      }
      absl::StatusOr<std::shared_ptr<DataContext>> context = part->Open(theirs, deadline);
      if (!context.ok()) {
        for (const auto& [opened_device, opened] : contexts) opened->Abort();
        return absl::Status(context.status().code(),
                            absl::StrCat(part->name(), " for ", device, ": ", context.status().message()));
      }
      contexts.emplace(device, *std::move(context));
    }
    return std::make_shared<Contexts>(std::move(contexts));
  }

  absl::Status CheckDevice(c10::Device device) const override {
    const Backend* part = Find(device.type());
    if (part == nullptr) return Unserved(device.type());
    const DeviceTraits* traits = DeviceTraits::Of(*part);
    return traits == nullptr ? absl::OkStatus() : traits->CheckDevice(device);
  }
  // Host backends die of what an unchecked call lets through.
  bool NeedsChecks() const override {
    return std::ranges::any_of(parts_, [](const auto& part) {
      const DeviceTraits* traits = DeviceTraits::Of(*part.second);
      return traits == nullptr ? !part.second->MustEnqueueInCallerThread() : traits->NeedsChecks();
    });
  }

 private:
  const Backend* Find(c10::DeviceType device) const {
    const auto found = parts_.find(DeviceName(device));
    return found == parts_.end() ? nullptr : found->second.get();
  }
  absl::Status Unserved(c10::DeviceType device) const {
    return absl::UnimplementedError(
        absl::StrCat("none of the backends ", name_, " serves leaves on ", DeviceName(device)));
  }

  const ByDevice<std::unique_ptr<Backend>> parts_;
  const std::string name_;
};

absl::Status Bad(std::string_view name, std::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("backend '", name, "': ", why));
}

}  // namespace

bool NamesDevices(std::string_view name) { return name.find(':') != std::string_view::npos; }

absl::StatusOr<std::unique_ptr<Backend>> MakeDeviceBackends(std::string_view name) {
  ByDevice<std::unique_ptr<Backend>> parts;
  for (const std::string_view part : absl::StrSplit(name, ',')) {
    const std::vector<std::string_view> words = absl::StrSplit(part, ':');
    if (words.size() != 2 || words[0].empty() || words[1].empty()) {
      return Bad(name, absl::StrCat("'", part, "' is not of the form device:backend, as in "
                                    "\"cpu:gloo,cuda:nccl\""));
    }
    std::string device;
    try {
      device = c10::Device(std::string(words[0])).str();
    } catch (const std::exception&) {
      return Bad(name, absl::StrCat("'", words[0], "' is no kind of device"));
    }
    if (device != words[0] || device.find(':') != std::string::npos) {
      return Bad(name, absl::StrCat("'", words[0], "' is no kind of device"));
    }
    if (parts.contains(device)) return Bad(name, absl::StrCat("has '", device, "' twice"));
    absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend(words[1]);
    if (!backend.ok()) return backend.status();
    if (!(*backend)->PacksForItself()) {
      return Bad(name, absl::StrCat("'", words[1], "' does not pack for itself, so it cannot be one of several"));
    }
    parts.emplace(std::move(device), *std::move(backend));
  }
  return std::make_unique<DeviceBackends>(std::move(parts));
}

}  // namespace leafpack
