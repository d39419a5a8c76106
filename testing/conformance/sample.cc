#include "testing/conformance/sample.h"

#include <algorithm>
#include <complex>
#include <cstddef>
#include <map>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <c10/core/ScalarType.h>
#include <c10/util/complex.h>

#include "absl/base/no_destructor.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gtest/gtest.h"

#include "distributed/tree/all_reduce_testutil.h"
#include "tensordict/flat_tree.h"
#include "tensordict/non_tensor.h"
#include "testing/matchers.h"

namespace leafpack::conformance {
namespace {

// More than rides in a frame.
constexpr int64_t kBallastBytes = 80 << 10;
constexpr int64_t kLargeBytes = 100'000;  // for each dtype

at::Tensor Ones(std::vector<int64_t> sizes, at::ScalarType dtype) {
  return at::ones(sizes, at::TensorOptions().dtype(at::kByte)).to(dtype);
}

// A leaf of ones, and the memory around it.
std::pair<at::Tensor, at::Tensor> Place(const std::vector<int64_t>& sizes, at::ScalarType dtype,
                                        Form form, int rank) {
  if (form == Form::kByRank) form = rank % 2 == 0 ? Form::kContiguous : Form::kStrided;
  const auto dims = static_cast<int64_t>(sizes.size());
  switch (form) {
    case Form::kStrided: {
      if (dims == 0) {
        const at::Tensor pair = Ones({2}, dtype);
        return {pair.select(0, 1), pair.select(0, 0)};
      }
      std::vector<int64_t> twice = sizes;
      twice.back() *= 2;
      const at::Tensor all = Ones(twice, dtype);
      return {all.slice(dims - 1, 0, twice.back(), 2), all.slice(dims - 1, 1, twice.back(), 2)};
    }
    case Form::kPermuted: {
      std::vector<int64_t> order;
      for (int64_t i = dims - 1; i >= 0; --i) order.push_back(i);
      return {Ones({sizes.rbegin(), sizes.rend()}, dtype).permute(order), {}};
    }
    case Form::kChannelsLast:
      return {Ones({sizes[0], sizes[2], sizes[3], sizes[1]}, dtype).permute({0, 3, 1, 2}), {}};
    case Form::kOffset: {
      int64_t numel = 1;
      for (const int64_t size : sizes) numel *= size;
      const at::Tensor all = Ones({numel + 2}, dtype);
      return {all.slice(0, 1, numel + 1).view(sizes), all.slice(0, 0, numel + 2, numel + 1)};
    }
    case Form::kContiguous:
    case Form::kByRank:
      break;
  }
  return {Ones(sizes, dtype), {}};
}

// What an op makes of the ranks' values, from its definition, not by the kernels of the library.
template <typename T>
T Reference(ReduceOpKind op, const std::vector<T>& values) {
  const size_t n = values.size();
  if constexpr (c10::is_complex<T>::value) {
    using Part = typename T::value_type;
    std::complex<double> sum = 0, product = 1, weighted = 0;
    for (size_t r = 0; r < n; ++r) {
      const std::complex<double> value(values[r].real(), values[r].imag());
      sum += value;
      product *= value;
      weighted += value * static_cast<double>(r + 1);
    }
    std::complex<double> result = sum;
    if (op == ReduceOpKind::kProduct) result = product;
    if (op == ReduceOpKind::kPremulSum) result = weighted;
    if (op == ReduceOpKind::kAvg) result = sum / static_cast<double>(n);
    return T(static_cast<Part>(result.real()), static_cast<Part>(result.imag()));
  } else if constexpr (std::is_integral_v<T>) {
    // Whole numbers modulo 2^64; of bool, sum and product come out as OR and AND.
    uint64_t result = static_cast<uint64_t>(values[0]);
    for (size_t r = 1; r < n; ++r) {
      const auto value = static_cast<uint64_t>(values[r]);
      switch (op) {
        case ReduceOpKind::kProduct: result *= value; break;
        case ReduceOpKind::kMin: result = std::min(static_cast<T>(result), values[r]); break;
        case ReduceOpKind::kMax: result = std::max(static_cast<T>(result), values[r]); break;
        case ReduceOpKind::kBand: result &= value; break;
        case ReduceOpKind::kBor: result |= value; break;
        case ReduceOpKind::kBxor: result ^= value; break;
        default: result += value;
      }
    }
    return static_cast<T>(result);
  } else {
    double result = static_cast<double>(values[0]);
    for (size_t r = 1; r < n; ++r) {
      const auto value = static_cast<double>(values[r]);
      switch (op) {
        case ReduceOpKind::kProduct: result *= value; break;
        case ReduceOpKind::kMin: result = std::min(result, value); break;
        case ReduceOpKind::kMax: result = std::max(result, value); break;
        case ReduceOpKind::kPremulSum: result += value * static_cast<double>(r + 1); break;
        default: result += value;
      }
    }
    if (op == ReduceOpKind::kAvg) result /= static_cast<double>(n);
    if constexpr (std::is_same_v<T, double>) {
      return result;
    } else {
      return static_cast<T>(static_cast<float>(result));
    }
  }
}

template <typename T>
void ReduceLeaf(ReduceOpKind op, const std::vector<const at::Tensor*>& inputs, at::Tensor& out) {
  T* data = static_cast<T*>(out.data_ptr());
  std::vector<T> values(inputs.size());
  for (int64_t j = 0; j < out.numel(); ++j) {
    for (size_t r = 0; r < inputs.size(); ++r) {
      values[r] = static_cast<const T*>(inputs[r]->const_data_ptr())[j];
    }
    data[j] = Reference<T>(op, values);
  }
}

void ReduceLeafOf(at::ScalarType dtype, ReduceOpKind op,
                  const std::vector<const at::Tensor*>& inputs, at::Tensor& out) {
  switch (dtype) {
#define LEAFPACK_REDUCE(T, NAME) \
  case at::ScalarType::NAME: return ReduceLeaf<T>(op, inputs, out);
    LEAFPACK_REDUCE(bool, Bool)
    LEAFPACK_REDUCE(uint8_t, Byte)
    LEAFPACK_REDUCE(int8_t, Char)
    LEAFPACK_REDUCE(int16_t, Short)
    LEAFPACK_REDUCE(int32_t, Int)
    LEAFPACK_REDUCE(int64_t, Long)
    LEAFPACK_REDUCE(at::Half, Half)
    LEAFPACK_REDUCE(at::BFloat16, BFloat16)
    LEAFPACK_REDUCE(float, Float)
    LEAFPACK_REDUCE(double, Double)
    LEAFPACK_REDUCE(c10::complex<float>, ComplexFloat)
    LEAFPACK_REDUCE(c10::complex<double>, ComplexDouble)
    LEAFPACK_REDUCE(at::Float8_e4m3fn, Float8_e4m3fn)
    LEAFPACK_REDUCE(at::Float8_e5m2, Float8_e5m2)
    LEAFPACK_REDUCE(uint16_t, UInt16)
    LEAFPACK_REDUCE(uint32_t, UInt32)
    LEAFPACK_REDUCE(uint64_t, UInt64)
#undef LEAFPACK_REDUCE
    default: ADD_FAILURE() << "no such dtype in the suite: " << c10::toString(dtype);
  }
}

}  // namespace

std::vector<LayoutSpec> Layouts() {
  std::vector<LayoutSpec> layouts = {
      {"contiguous", {{{"w"}, {6, 4}}, {{"b"}, {5}}}},
      {"strided", {{{"w"}, {4, 3}, Form::kStrided}, {{"s"}, {}, Form::kStrided}, {{"x"}, {7}}}},
      {"permuted", {{{"w"}, {2, 3, 5}, Form::kPermuted}, {{"m"}, {4, 6}, Form::kPermuted}}},
      {"channels_last", {{{"image"}, {2, 3, 4, 2}, Form::kChannelsLast}, {{"b"}, {3}}}},
      {"offset", {{{"a"}, {9}, Form::kOffset}, {{"b"}, {3, 3}, Form::kOffset}}},
      {"other_strides", {{{"w"}, {4, 5}, Form::kByRank}, {{"b"}, {3}, Form::kByRank}}},
      {"empty", {{{"rows"}, {0, 3}}, {{"columns"}, {2, 0}, Form::kPermuted}, {{"x"}, {3}}}},
      {"only_empty", {{{"rows"}, {0, 3}}}},
      {"scalars", {{{"a"}, {}}, {{"b"}, {}}, {{"c"}, {1}}}},
      {"tied",
       {{{"a"}, {4, 5}}, {{"b"}, {5, 4}, Form::kContiguous, 0},
        {{"p"}, {3, 4}, Form::kStrided}, {{"q"}, {4, 3}, Form::kContiguous, 2}}},
      {"nested",
       {{{"net", "layers", 0, "w"}, {3, 2}}, {{"net", "layers", 1, "w"}, {2, 2}, Form::kPermuted},
        {{"net", "a.b", ""}, {4}}, {{"0"}, {2}}},
       true},
      {"many", {}},
      {"large", {}},
  };
  return layouts;
}

const char* Name(Carrier carrier) { return carrier == Carrier::kFrame ? "frame" : "messages"; }

std::vector<Carrier> CarriersOf(const LayoutSpec& layout) {
  if (layout.name == "many" || layout.name == "large") return {Carrier::kMessages};
  return {Carrier::kFrame, Carrier::kMessages};
}

Sample::Sample(const LayoutSpec& layout, Carrier carrier, const std::vector<at::ScalarType>& dtypes,
               int ranks, int salt)
    : name_(absl::StrCat(layout.name, ", ", Name(carrier))), non_tensors_(layout.non_tensors) {
  // One leaf is enough to make all of the tree move in messages.
  at::ScalarType widest = at::kByte;
  for (const at::ScalarType dtype : dtypes) {
    if (widest == at::kByte || c10::elementSize(dtype) > c10::elementSize(widest)) widest = dtype;
  }
  for (const at::ScalarType dtype : dtypes) {
    const std::string top = c10::toString(dtype);
    const auto element = static_cast<int64_t>(c10::elementSize(dtype));
    std::vector<LeafSpec> specs = layout.leaves;
    if (layout.name == "many") {
      for (int i = 0; i < 60; ++i) specs.push_back({{"many", i}, {1 + i % 7}});
    } else if (layout.name == "large") {
      specs = {{{"large"}, {kLargeBytes / element + 1}}, {{"x"}, {3}}};
    }
    if (carrier == Carrier::kMessages && dtype == widest) {
      specs.push_back({{"zz_ballast"}, {kBallastBytes / element}});
    }
    if (salt > 0) specs.push_back({{"zzz_salt"}, {1 + salt}});
    const auto first = static_cast<int>(leaves_.size());
    for (const LeafSpec& spec : specs) {
      NestedKey path{top};
      for (const KeyComponent& key : spec.path) path.push_back(key);
      leaves_.push_back({path, dtype, spec.sizes, spec.form,
                         spec.tied_to < 0 ? -1 : first + spec.tied_to});
    }
  }
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<at::Tensor>& values = values_.emplace_back();
    for (const Leaf& leaf : leaves_) {
      values.push_back(leaf.tied_to >= 0
                           ? values[static_cast<size_t>(leaf.tied_to)].t().contiguous()
                           : testing::MakeLeaf(absl::StrCat(leaf.path.ToString(), salt), leaf.dtype,
                                               leaf.sizes, rank));
    }
  }
}

SampleTree Sample::Make(int rank, int form_of) const {
  SampleTree made;
  std::vector<at::Tensor> leaves;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    const Leaf& leaf = leaves_[i];
    at::Tensor tensor;
    if (leaf.tied_to >= 0) {
      tensor = leaves[static_cast<size_t>(leaf.tied_to)].t();
    } else {
      at::Tensor gap;
      std::tie(tensor, gap) = Place(leaf.sizes, leaf.dtype, leaf.form, form_of);
      if (gap.defined()) made.gaps.push_back(gap);
      tensor.copy_(Values(rank)[i]);
    }
    leaves.push_back(tensor);
    EXPECT_THAT(made.tree.Set(leaf.path, tensor), IsOk());
  }
  if (non_tensors_) {
    EXPECT_THAT(made.tree.Set({"meta", "name"}, NonTensor("net")), IsOk());
    EXPECT_THAT(made.tree.Set({"meta", "step"}, NonTensor(7)), IsOk());
    EXPECT_THAT(made.tree.Set({"meta", "hollow"}, TensorDict()), IsOk());
  }
  return made;
}

const std::vector<at::Tensor>& Sample::Reduced(ReduceOpKind op) const {
  absl::MutexLock lock(&reduced_->mu);
  const auto [found, is_new] = reduced_->by_op.try_emplace(op);
  std::vector<at::Tensor>& reduced = found->second;
  if (!is_new) return reduced;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    std::vector<const at::Tensor*> inputs;
    for (const std::vector<at::Tensor>& values : values_) inputs.push_back(&values[i]);
    at::Tensor& out = reduced.emplace_back(at::empty_like(values_[0][i]));
    ReduceLeafOf(leaves_[i].dtype, op, inputs, out);
  }
  return reduced;
}

const Sample& SharedSample(const LayoutSpec& layout, Carrier carrier,
                           const std::vector<at::ScalarType>& dtypes, int ranks, int salt) {
  using Key = std::tuple<std::string, Carrier, std::vector<at::ScalarType>, int, int>;
  static absl::NoDestructor<absl::Mutex> mu;
  static absl::NoDestructor<std::map<Key, std::unique_ptr<const Sample>>> samples;
  absl::MutexLock lock(mu.get());
  std::unique_ptr<const Sample>& sample = (*samples)[{layout.name, carrier, dtypes, ranks, salt}];
  if (sample == nullptr) {
    sample = std::make_unique<const Sample>(layout, carrier, dtypes, ranks, salt);
  }
  return *sample;
}

void Sample::Expect(const TensorDict& tree, const std::vector<at::Tensor>& values) const {
  SCOPED_TRACE(name_);
  for (size_t i = 0; i < leaves_.size(); ++i) {
    const absl::StatusOr<at::Tensor> leaf = tree.Get(leaves_[i].path);
    ASSERT_THAT(leaf, IsOk());
    ASSERT_THAT(*leaf, BitEq(values[i])) << leaves_[i].path.ToString();
  }
  EXPECT_EQ(tree.num_leaves(), leaves_.size() + (non_tensors_ ? 2 : 0));
  if (!non_tensors_) return;
  EXPECT_THAT(tree.GetNonTensor({"meta", "name"}), IsOkAndHolds(NonTensor("net")));
  EXPECT_THAT(tree.GetNonTensor({"meta", "step"}), IsOkAndHolds(NonTensor(7)));
}

void Sample::Expect(const SampleTree& sample, const std::vector<at::Tensor>& values) const {
  Expect(sample.tree, values);
  for (const at::Tensor& gap : sample.gaps) {
    ASSERT_THAT(gap, BitEq(Ones(gap.sizes().vec(), gap.scalar_type())))
        << name_ << ": memory beside a leaf was written";
  }
}

ReduceOp OpOfRank(ReduceOpKind kind, int rank) {
  return kind == ReduceOpKind::kPremulSum ? ReduceOp::PremulSum(rank + 1) : ReduceOp{kind};
}

}  // namespace leafpack::conformance
