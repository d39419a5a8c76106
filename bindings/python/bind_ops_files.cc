// One storage for a whole tree, and trees in files.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Device.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "bindings/python/bind_ops.h"
#include "bindings/python/errors.h"
#include "bindings/python/python_values.h"
#include "tensordict/io/atomic_file.h"
#include "tensordict/io/memmap.h"
#include "tensordict/io/memmap_target.h"
#include "tensordict/io/safetensors.h"
#include "tensordict/ops/cast.h"
#include "tensordict/ops/consolidate.h"
#include "tensordict/tensor_dict.h"

namespace leafpack::python {
namespace {

TensorDict Snapshot(const TensorDict& tree) {
  return ValueOrRaise(Clone(tree, /*recurse=*/false));
}

// Calls Python's progress function, which may return False or raise to give the work up.
class Progress {
 public:
  explicit Progress(const py::object& function) : function_(function) {}

  std::function<bool(int64_t, int64_t)> Function() {
    if (function_.is_none()) return {};
    return [this](int64_t done, int64_t total) {
      py::gil_scoped_acquire gil;
      try {
        const py::object result = function_(done, total);
        return result.is_none() || result.cast<bool>();
      } catch (py::error_already_set& error) {
        error_.emplace(std::move(error));
      }
      return false;
    };
  }
  void Rethrow() {
    if (error_.has_value()) throw py::error_already_set(*std::move(error_));
  }

 private:
  const py::object& function_;
  std::optional<py::error_already_set> error_;
};

// Without the GIL.
template <typename F>
auto Unlocked(F&& call) {
  py::gil_scoped_release release;
  return call();
}

void RaiseIfFileError(const absl::Status& status) {
  if (!status.ok()) RaiseFileError(status);
}

template <typename T>
T ValueOrRaiseFileError(absl::StatusOr<T> value) {
  if (!value.ok()) RaiseFileError(value.status());
  return *std::move(value);
}

}  // namespace

void BindFileOps(py::module_& ops) {
  ops.def("consolidate", [](const TensorDict& tree, int64_t alignment, const py::object& device) {
    ConsolidateOptions options;
    options.alignment = alignment;
    if (!device.is_none()) {
      if (!THPDevice_Check(device.ptr())) throw py::type_error("device must be a torch.device");
      options.device = reinterpret_cast<THPDevice*>(device.ptr())->device;
    }
    const TensorDict source = Snapshot(tree);
    return ValueOrRaise(Unlocked([&] { return Consolidate(source, options); }));
  });
  ops.def("consolidated_storage", [](const TensorDict& tree) -> py::object {
    std::optional<at::Tensor> storage = ConsolidatedStorage(tree);
    if (!storage.has_value()) return py::none();
    return py::reinterpret_steal<py::object>(TensorToPython(*storage));
  });
  ops.def("save_safetensors",
          [](const TensorDict& tree, const std::string& path, const std::string& separator,
             std::map<std::string, std::string> metadata, const py::object& progress) {
            Progress call(progress);
            SaveSafetensorsOptions options;
            options.separator = separator;
            options.metadata = std::move(metadata);
            options.progress = call.Function();
            const TensorDict source = Snapshot(tree);
            const absl::Status status =
                Unlocked([&] { return SaveSafetensors(source, path, options); });
            call.Rethrow();
            RaiseIfFileError(status);
          });
  ops.def("load_safetensors", [](const std::string& path, const std::string& separator,
                                 bool memory_map, const py::object& progress) {
    Progress call(progress);
    LoadSafetensorsOptions options;
    options.separator = separator;
    options.memory_map = memory_map;
    options.progress = call.Function();
    absl::StatusOr<TensorDict> tree = Unlocked([&] { return LoadSafetensors(path, options); });
    call.Rethrow();
    return ValueOrRaiseFileError(std::move(tree));
  });
  ops.def("safetensors_metadata", [](const std::string& path) {
    return ValueOrRaiseFileError(Unlocked([&] { return LoadSafetensorsMetadata(path); }));
  });
  ops.def("save_memmap", [](const TensorDict& tree, const std::string& path, bool overwrite,
                            const py::object& progress) {
    Progress call(progress);
    SaveMemmapOptions options;
    options.overwrite = overwrite;
    options.progress = call.Function();
    const TensorDict source = Snapshot(tree);
    const absl::Status status = Unlocked([&] { return SaveMemmap(source, path, options); });
    call.Rethrow();
    RaiseIfFileError(status);
  });
  ops.def("memmap_target", [](const std::string& path) {
    return ValueOrRaiseFileError(Unlocked([&] { return internal::MemmapTarget(path); }));
  });
  ops.def("put_memmap", [](const std::string& made, const std::string& path) {
    RaiseIfFileError(Unlocked([&]() -> absl::Status {
      const absl::StatusOr<std::string> target = internal::MemmapTarget(path);
      if (!target.ok()) return target.status();
      return internal::PutFolder(made, *target, /*overwrite=*/true);
    }));
  });
  // A folder to be written beside `path`, and the descriptor that keeps it locked; what the dead left is taken away.
  ops.def("make_temporary_folder", [](const std::string& path) {
    internal::RemoveLeftovers(path, internal::TemporaryKind::kFolder);
    std::string folder = ValueOrRaiseFileError(internal::MakeTemporaryFolder(path));
    const int lock = internal::LockTemporary(folder);
    return std::pair(std::move(folder), lock);
  });
  // A path as the system takes it: Python's own functions read one with a zero byte as one of a file that is missing.
  ops.def("check_path", [](const std::string& path) { RaiseIfFileError(internal::CheckPath(path)); });
  ops.def("memmap_file", [](const py::object& tensor) {
    if (!IsTensor(tensor.ptr())) throw py::type_error("memmap_file takes a tensor");
    return MemmapFileOf(TensorOf(tensor.ptr()));
  });
  ops.def("load_memmap", [](const std::string& path, bool shared) {
    return ValueOrRaiseFileError(Unlocked(
        [&] { return LoadMemmap(path, shared ? MapMode::kShared : MapMode::kPrivate); }));
  });
}

}  // namespace leafpack::python
