#include "distributed/backends/shm/torch/tensors.h"

#include <memory>

#include <ATen/MemoryOverlap.h>

#include "distributed/core/reduce/reduce.h"

namespace leafpack::shm {

LeafView ViewOf(const at::Tensor& tensor) {
  LeafView view;
  view.data = tensor.data_ptr();
  view.dtype = tensor.scalar_type();
  view.sizes = tensor.sizes().vec();
  view.strides = tensor.strides().vec();
  view.keep_alive = std::make_shared<at::Tensor>(tensor);
  return view;
}

std::vector<LeafView> ViewsOf(const Tensors& tensors) {
  std::vector<LeafView> views;
  views.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) views.push_back(ViewOf(tensor));
  return views;
}

uint64_t BytesOf(const Tensors& tensors) {
  uint64_t bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += tensor.nbytes();
  return bytes;
}

uint64_t LayoutOf(const Tensors& tensors) {
  uint64_t hash = 14695981039346656037u;
  for (const at::Tensor& tensor : tensors) {
    for (const uint64_t word : {static_cast<uint64_t>(tensor.scalar_type()),
                                static_cast<uint64_t>(tensor.numel())}) {
      hash = (hash ^ word) * 1099511628211u;
    }
  }
  return hash;
}

uint64_t LayoutOfDtypes(const Tensors& tensors) {
  uint64_t hash = tensors.size();
  for (const at::Tensor& tensor : tensors) {
    hash = hash * 1099511628211u + static_cast<uint64_t>(tensor.scalar_type());
  }
  return hash;
}

void Check(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK_VALUE(tensor.defined(), "shm: ", what, " got an undefined tensor");
  TORCH_CHECK_VALUE(tensor.device().is_cpu(), "shm: ", what, " takes CPU tensors, not ",
                    tensor.device());
  TORCH_CHECK_VALUE(tensor.layout() == at::kStrided, "shm: ", what, " takes dense tensors, not ",
                    tensor.layout());
  TORCH_CHECK_VALUE(!tensor.is_conj() && !tensor.is_neg(), "shm: ", what,
                    " takes no lazily conjugated or negated tensor: call resolve_conj() or resolve_neg()");
}

void Check(const Tensors& tensors, const char* what) {
  for (const at::Tensor& tensor : tensors) Check(tensor, what);
}

void CheckWritten(const Tensors& tensors, const char* what) {
  Check(tensors, what);
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, "shm: ", what,
                      " cannot write a tensor whose elements share memory (expanded?)");
  }
}

void CheckDtype(const Tensors& tensors, at::ScalarType dtype, const char* what) {
  for (const at::Tensor& tensor : tensors) {
    TORCH_CHECK_VALUE(tensor.scalar_type() == dtype, "shm: ", what, " got tensors of ", dtype,
                      " and of ", tensor.scalar_type());
  }
}

void CheckContiguous(const at::Tensor& tensor, const char* what) {
  TORCH_CHECK_VALUE(tensor.is_contiguous(), "shm: ", what, " takes contiguous tensors");
}

void CheckOne(size_t count, const char* what) {
  TORCH_CHECK_VALUE(count == 1, "shm: ", what, " takes one tensor, not ", count);
}

void Scale(const at::Tensor& tensor, double factor) {
  if (tensor.is_contiguous()) {
    const absl::Status status = ApplyFactor(tensor.scalar_type(), factor, tensor.data_ptr(),
                                            tensor.numel());
    TORCH_CHECK(status.ok(), status.message());
  } else {
    tensor.mul_(factor);
  }
}

}  // namespace leafpack::shm
