#include "distributed/tree/all_reduce_testutil.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <c10/util/complex.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

#include "distributed/core/reduce/reduce.h"

namespace leafpack::testing {
namespace {

template <typename T>
void Fill(at::Tensor& leaf, std::string_view path, int rank) {
  T* data = static_cast<T*>(leaf.data_ptr());
  for (int64_t j = 0; j < leaf.numel(); ++j) {
    const double value = Element(path, rank, j);
    if constexpr (std::is_same_v<T, bool>) {
      data[j] = (static_cast<int64_t>(value) & 1) != 0;
    } else if constexpr (c10::is_complex<T>::value) {
      data[j] = T(static_cast<typename T::value_type>(value),
                  static_cast<typename T::value_type>(Element(path, rank, j + 1) - 1));
    } else if constexpr (std::is_integral_v<T> || std::is_same_v<T, double>) {
      data[j] = static_cast<T>(value);
    } else {
      data[j] = static_cast<T>(static_cast<float>(value));
    }
  }
}

}  // namespace

void WithGroups(int ranks, int groups, const std::function<void(const std::vector<Group>&)>& body,
                GroupOptions options) {
  const char* backend = std::getenv("LEAFPACK_TEST_BACKEND");
  if (backend != nullptr && options.backend == GroupOptions().backend) options.backend = backend;
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const std::string where = absl::StrCat("rank ", rank, " of ", ranks);
      SCOPED_TRACE(where);
      std::vector<Group> mine;
      for (int i = 0; i < groups; ++i) {
        absl::StatusOr<Group> group =
            Group::Create(store, absl::StrCat("test", i), GroupRank(rank), ranks, {}, options);
        ASSERT_TRUE(group.ok()) << group.status();
        mine.push_back(*std::move(group));
      }
      body(mine);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void WithGroup(int ranks, const std::function<void(const Group&)>& body, GroupOptions options) {
  WithGroups(ranks, 1, [&](const std::vector<Group>& groups) { body(groups[0]); },
             std::move(options));
}

double Element(std::string_view path, int rank, int64_t j) {
  uint64_t x = static_cast<uint64_t>(j) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(rank) * 31;
  for (const char c : path) x = (x ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return static_cast<double>(1 + (x >> 40) % 2);
}

at::Tensor MakeLeaf(std::string_view path, at::ScalarType dtype, at::IntArrayRef sizes, int rank) {
  at::Tensor leaf = at::empty(sizes, at::TensorOptions().dtype(dtype));
  switch (dtype) {
#define LEAFPACK_FILL(T, NAME) \
  case at::ScalarType::NAME: Fill<T>(leaf, path, rank); break;
    LEAFPACK_FILL(bool, Bool)
    LEAFPACK_FILL(uint8_t, Byte)
    LEAFPACK_FILL(int8_t, Char)
    LEAFPACK_FILL(int16_t, Short)
    LEAFPACK_FILL(int32_t, Int)
    LEAFPACK_FILL(int64_t, Long)
    LEAFPACK_FILL(at::Half, Half)
    LEAFPACK_FILL(at::BFloat16, BFloat16)
    LEAFPACK_FILL(float, Float)
    LEAFPACK_FILL(double, Double)
    LEAFPACK_FILL(c10::complex<float>, ComplexFloat)
    LEAFPACK_FILL(c10::complex<double>, ComplexDouble)
    LEAFPACK_FILL(at::Float8_e4m3fn, Float8_e4m3fn)
    LEAFPACK_FILL(at::Float8_e5m2, Float8_e5m2)
    LEAFPACK_FILL(uint16_t, UInt16)
    LEAFPACK_FILL(uint32_t, UInt32)
    LEAFPACK_FILL(uint64_t, UInt64)
#undef LEAFPACK_FILL
    default: ADD_FAILURE() << "no such dtype in tests: " << c10::toString(dtype);
  }
  return leaf;
}

at::Tensor Expected(std::string_view path, at::ScalarType dtype, at::IntArrayRef sizes, int ranks,
                    ReduceOpKind op) {
  std::vector<at::Tensor> inputs;
  std::vector<const void*> pointers;
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.push_back(MakeLeaf(path, dtype, sizes, rank));
    if (op == ReduceOpKind::kPremulSum) {
      EXPECT_TRUE(
          ApplyFactor(dtype, rank + 1, inputs.back().data_ptr(), inputs.back().numel()).ok());
    }
    pointers.push_back(inputs.back().data_ptr());
  }
  at::Tensor out = at::empty(sizes, at::TensorOptions().dtype(dtype));
  const absl::Status status = ReduceInto(op, dtype, pointers, out.data_ptr(), out.numel());
  EXPECT_TRUE(status.ok()) << status;
  return out;
}

const std::vector<at::ScalarType>& AllDtypes() {
  using enum at::ScalarType;
  static const auto* dtypes = new std::vector<at::ScalarType>{
      Bool,  Byte,     UInt16, UInt32, UInt64,        Char,          Short,       Int,          Long,
      Half,  BFloat16, Float,  Double, ComplexFloat, ComplexDouble, Float8_e4m3fn, Float8_e5m2};
  return *dtypes;
}

const std::vector<ReduceOpKind>& AllOps() {
  using enum ReduceOpKind;
  static const auto* ops =
      new std::vector<ReduceOpKind>{kSum, kAvg,  kProduct, kMin,      kMax,
                                    kBand, kBor, kBxor,    kPremulSum};
  return *ops;
}

bool BitEqual(const at::Tensor& a, const at::Tensor& b) {
  if (a.scalar_type() != b.scalar_type() || a.sizes() != b.sizes()) return false;
  const at::Tensor x = a.contiguous();
  const at::Tensor y = b.contiguous();
  return x.nbytes() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0;
}

}  // namespace leafpack::testing
