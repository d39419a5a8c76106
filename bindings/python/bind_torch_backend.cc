#include "bindings/python/bind_torch_backend.h"

#include <pybind11/pybind11.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "bindings/python/errors.h"
#include "distributed/backends/shm/torch/process_group_shm.h"

// As torch holds its own classes.
PYBIND11_DECLARE_HOLDER_TYPE(T, c10::intrusive_ptr<T>, true)

namespace leafpack::python {
namespace {

// None when some ranks do not share memory, with the reason; every rank gets that answer then.
py::tuple MakeShmBackend(py::handle store, int rank, int size, double seconds) {
  c10::intrusive_ptr<c10d::Store> taken;
  try {
    taken = c10::intrusive_ptr<c10d::Store>::reclaim_copy(store.cast<c10d::Store*>());
  } catch (const py::cast_error&) {
    throw py::type_error(absl::StrCat("store must be a store of torch.distributed, not ",
                                      py::repr(store).cast<std::string>()));
  }
  absl::StatusOr<c10::intrusive_ptr<c10d::Backend>> backend = [&] {
    py::gil_scoped_release release;
    return MakeShmProcessGroup(taken, rank, size, absl::Seconds(seconds));
  }();
  if (absl::IsFailedPrecondition(backend.status())) {
    return py::make_tuple(py::none(), std::string(backend.status().message()));
  }
  return py::make_tuple(py::cast(ValueOrRaise(std::move(backend))), py::none());
}

}  // namespace

void BindTorchBackend(py::module_& module) {
  module.def("make_shm_backend", &MakeShmBackend);
}

}  // namespace leafpack::python
