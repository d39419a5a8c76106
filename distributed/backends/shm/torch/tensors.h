// Tensors of torch's calls as leafpack's engines take them, and what calls demand of them. Internal.
//
// What is wrong with a tensor is thrown as c10::ValueError, which torch turns into Python's; `what` is the
// collective, for the text.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_SHM_TORCH_TENSORS_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_SHM_TORCH_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <exception>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

#include "absl/status/status.h"

#include "distributed/core/backend.h"

namespace leafpack::shm {

using Tensors = std::vector<at::Tensor>;

LeafView ViewOf(const at::Tensor& tensor);
std::vector<LeafView> ViewsOf(const Tensors& tensors);

uint64_t BytesOf(const Tensors& tensors);
// A hash of the dtypes and numbers of elements, so that each element meets its like; and of the dtypes.
uint64_t LayoutOf(const Tensors& tensors);
uint64_t LayoutOfDtypes(const Tensors& tensors);

// Defined, dense, on the CPU, and what its memory says.
void Check(const at::Tensor& tensor, const char* what);
void Check(const Tensors& tensors, const char* what);
// And with memory of its own for each element.
void CheckWritten(const Tensors& tensors, const char* what);
void CheckDtype(const Tensors& tensors, at::ScalarType dtype, const char* what);
void CheckContiguous(const at::Tensor& tensor, const char* what);
void CheckOne(size_t count, const char* what);

// tensor *= factor, with the arithmetic of every leafpack engine where it can be had. Throws.
void Scale(const at::Tensor& tensor, double factor);

// What libtorch throws in `body`, as a Status. Below autograd, whose state belongs to the caller's thread.
template <typename Body>
absl::Status Caught(Body body) {
  try {
    const at::AutoDispatchBelowADInplaceOrView guard;
    body();
    return absl::OkStatus();
  } catch (const std::exception& e) {
    return absl::InternalError(e.what());
  }
}

}  // namespace leafpack::shm

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_SHM_TORCH_TENSORS_H_
