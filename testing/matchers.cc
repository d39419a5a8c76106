#include "testing/matchers.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ostream>
#include <sstream>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/isclose.h>
#include <ATen/ops/nonzero.h>

namespace leafpack::internal {
namespace {

// Says why two tensors cannot even be compared element by element.
bool SameShape(const at::Tensor& actual, const at::Tensor& expected, std::ostream* os) {
  if (!actual.defined() || !expected.defined()) {
    if (actual.defined() == expected.defined()) return true;
    *os << (actual.defined() ? "which is defined" : "which is undefined");
    return false;
  }
  if (actual.dtype() != expected.dtype()) {
    *os << "which has dtype " << actual.dtype() << ", not " << expected.dtype();
    return false;
  }
  if (actual.device().type() != expected.device().type()) {
    *os << "which is on " << actual.device() << ", not " << expected.device();
    return false;
  }
  if (actual.sizes() != expected.sizes()) {
    *os << "which has sizes " << actual.sizes() << ", not " << expected.sizes();
    return false;
  }
  return true;
}

void PrintIndex(int64_t flat, at::IntArrayRef sizes, std::ostream* os) {
  std::vector<int64_t> index(sizes.size());
  for (size_t d = sizes.size(); d-- > 0;) {
    index[d] = flat % sizes[d];
    flat /= sizes[d];
  }
  *os << '[';
  for (size_t d = 0; d < index.size(); ++d) *os << (d == 0 ? "" : ", ") << index[d];
  *os << ']';
}

void PrintElement(const at::Tensor& contiguous, int64_t flat, std::ostream* os) {
  const at::Tensor one = contiguous.reshape({-1})[flat];
  if (one.is_complex()) {
    const auto value = one.item().toComplexDouble();
    *os << value.real() << '+' << value.imag() << 'i';
  } else if (one.is_floating_point()) {
    char text[40];
    std::snprintf(text, sizeof(text), "%.9g", one.item().toDouble());
    *os << text;
  } else {
    *os << one.item().toLong();
  }
  // Bits tell apart what prints alike.
  const size_t bytes = contiguous.element_size();
  const auto* begin = static_cast<const unsigned char*>(contiguous.const_data_ptr()) +
                      static_cast<size_t>(flat) * bytes;
  *os << " (0x";
  for (size_t i = bytes; i-- > 0;) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", begin[i]);
    *os << digits;
  }
  *os << ')';
}

void PrintDifference(int64_t first, int64_t count, const at::Tensor& actual,
                     const at::Tensor& expected, std::ostream* os) {
  *os << "which differs in " << count << " of " << actual.numel() << " elements, first at ";
  PrintIndex(first, actual.sizes(), os);
  *os << ": ";
  PrintElement(actual, first, os);
  *os << ", not ";
  PrintElement(expected, first, os);
}

}  // namespace

bool ExplainBitEq(const at::Tensor& actual, const at::Tensor& expected, std::ostream* os) {
  std::ostringstream nowhere;
  if (os == nullptr) os = &nowhere;
  if (!SameShape(actual, expected, os)) return false;
  if (!actual.defined()) return true;
  const at::Tensor a = actual.detach().cpu().contiguous().resolve_conj().resolve_neg();
  const at::Tensor e = expected.detach().cpu().contiguous().resolve_conj().resolve_neg();
  const size_t bytes = a.element_size();
  const auto* x = static_cast<const unsigned char*>(a.const_data_ptr());
  const auto* y = static_cast<const unsigned char*>(e.const_data_ptr());
  int64_t first = -1, count = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    const size_t at = static_cast<size_t>(i) * bytes;
    if (std::memcmp(x + at, y + at, bytes) == 0) continue;
    if (first < 0) first = i;
    ++count;
  }
  if (count > 0) PrintDifference(first, count, a, e, os);
  return count == 0;
}

bool ExplainAllClose(const at::Tensor& actual, const at::Tensor& expected, double rtol, double atol,
                     std::ostream* os) {
  std::ostringstream nowhere;
  if (os == nullptr) os = &nowhere;
  if (!SameShape(actual, expected, os)) return false;
  if (!actual.defined()) return true;
  const at::Tensor a = actual.detach().cpu().contiguous();
  const at::Tensor e = expected.detach().cpu().contiguous();
  const at::Tensor bad =
      at::isclose(a, e, rtol, atol, /*equal_nan=*/true).logical_not().reshape({-1}).nonzero();
  if (bad.size(0) == 0) return true;
  PrintDifference(bad[0][0].item().toLong(), bad.size(0), a, e, os);
  if (!a.is_complex()) {
    *os << "; the largest difference is "
        << (a.to(at::kDouble) - e.to(at::kDouble)).abs().max().item().toDouble();
  }
  return false;
}

void DescribeTensor(const at::Tensor& tensor, std::ostream* os) {
  if (!tensor.defined()) {
    *os << "an undefined tensor";
    return;
  }
  *os << "a tensor of dtype " << tensor.dtype() << " and sizes " << tensor.sizes() << ": ";
  const at::Tensor contiguous = tensor.detach().cpu().contiguous();
  constexpr int64_t kShown = 8;
  for (int64_t i = 0; i < std::min(contiguous.numel(), kShown); ++i) {
    if (i > 0) *os << ", ";
    PrintElement(contiguous, i, os);
  }
  if (contiguous.numel() > kShown) *os << ", ...";
}

}  // namespace leafpack::internal
