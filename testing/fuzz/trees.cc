#include "testing/fuzz/trees.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "testing/fuzz/files.h"

namespace leafpack::testing {
namespace {

size_t BytesOf(const at::Tensor& leaf) { return static_cast<size_t>(leaf.numel()) * leaf.element_size(); }

}  // namespace

void TouchAll(const TensorDict& tree) {
  for (const TensorDict::Child& child : tree.Children()) {
    if (child.is_dict()) {
      TouchAll(child.dict());
    } else if (!child.is_non_tensor()) {
      const at::Tensor& leaf = child.leaf();
      Require(leaf.defined() && leaf.is_contiguous());
      if (leaf.numel() == 0) continue;
      auto* bytes = static_cast<volatile char*>(leaf.mutable_data_ptr());
      for (size_t i = 0; i < BytesOf(leaf); ++i) bytes[i] = bytes[i];
    }
  }
}

bool SameBytes(const TensorDict& a, const TensorDict& b) {
  const std::vector<TensorDict::Child> x = a.Children();
  const std::vector<TensorDict::Child> y = b.Children();
  if (x.size() != y.size() || a.batch_size() != b.batch_size()) return false;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i].key != y[i].key || x[i].value.index() != y[i].value.index()) return false;
    if (x[i].is_dict()) {
      if (!SameBytes(x[i].dict(), y[i].dict())) return false;
    } else if (x[i].is_non_tensor()) {
      if (!(x[i].non_tensor() == y[i].non_tensor())) return false;
    } else {
      const at::Tensor& s = x[i].leaf();
      const at::Tensor& t = y[i].leaf();
      if (s.scalar_type() != t.scalar_type() || s.sizes() != t.sizes()) return false;
      if (s.numel() > 0 && std::memcmp(s.const_data_ptr(), t.const_data_ptr(), BytesOf(s)) != 0) return false;
    }
  }
  return true;
}

}  // namespace leafpack::testing
