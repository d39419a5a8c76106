// An extension module with torch's pybind11, libtorch and a linked-in library.

#include "ATen/core/Tensor.h"
#include "absl/strings/str_join.h"
#include "torch/csrc/utils/pybind.h"

PYBIND11_MODULE(extension, module) {
  module.def("sizes",
             [](const at::Tensor& tensor) { return absl::StrJoin(tensor.sizes(), "x"); });
}
