// leafpack_tensor: at::Tensor from and to plain buffers and DLPack.
#include <ATen/DLConvertor.h>
#include <ATen/dlpack.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>
#include <c10/core/TensorOptions.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "bindings/c/guard.h"
#include "bindings/c/handles.h"
#include "bindings/c/leafpack.h"
#include "bindings/c/options.h"
#include "tensordict/dtype.h"

namespace leafpack::c {
namespace {

constexpr size_t kMaxDims = 64;

static_assert(static_cast<int>(c10::ScalarType::Byte) == LEAFPACK_UINT8);
static_assert(static_cast<int>(c10::ScalarType::Char) == LEAFPACK_INT8);
static_assert(static_cast<int>(c10::ScalarType::Short) == LEAFPACK_INT16);
static_assert(static_cast<int>(c10::ScalarType::Int) == LEAFPACK_INT32);
static_assert(static_cast<int>(c10::ScalarType::Long) == LEAFPACK_INT64);
static_assert(static_cast<int>(c10::ScalarType::Half) == LEAFPACK_FLOAT16);
static_assert(static_cast<int>(c10::ScalarType::Float) == LEAFPACK_FLOAT32);
static_assert(static_cast<int>(c10::ScalarType::Double) == LEAFPACK_FLOAT64);
static_assert(static_cast<int>(c10::ScalarType::ComplexHalf) == LEAFPACK_COMPLEX32);
static_assert(static_cast<int>(c10::ScalarType::ComplexFloat) == LEAFPACK_COMPLEX64);
static_assert(static_cast<int>(c10::ScalarType::ComplexDouble) == LEAFPACK_COMPLEX128);
static_assert(static_cast<int>(c10::ScalarType::Bool) == LEAFPACK_BOOL);
static_assert(static_cast<int>(c10::ScalarType::BFloat16) == LEAFPACK_BFLOAT16);
static_assert(static_cast<int>(c10::ScalarType::Float8_e5m2) == LEAFPACK_FLOAT8_E5M2);
static_assert(static_cast<int>(c10::ScalarType::Float8_e4m3fn) == LEAFPACK_FLOAT8_E4M3FN);
static_assert(static_cast<int>(c10::ScalarType::Float8_e5m2fnuz) == LEAFPACK_FLOAT8_E5M2FNUZ);
static_assert(static_cast<int>(c10::ScalarType::Float8_e4m3fnuz) == LEAFPACK_FLOAT8_E4M3FNUZ);
static_assert(static_cast<int>(c10::ScalarType::UInt16) == LEAFPACK_UINT16);
static_assert(static_cast<int>(c10::ScalarType::UInt32) == LEAFPACK_UINT32);
static_assert(static_cast<int>(c10::ScalarType::UInt64) == LEAFPACK_UINT64);
static_assert(static_cast<int>(c10::ScalarType::Float8_e8m0fnu) == LEAFPACK_FLOAT8_E8M0FNU);

// Undefined for a number that is none.
c10::ScalarType DtypeOfNumber(int32_t number) {
  if (number < 0 || number > 255) return c10::ScalarType::Undefined;
  return DtypeOfCode(static_cast<uint8_t>(number));
}

c10::ScalarType ReadDtype(int32_t number, const char* argument) {
  const c10::ScalarType dtype = DtypeOfNumber(number);
  if (dtype == c10::ScalarType::Undefined) {
    FailArgument(argument, absl::StrCat("is ", number, ", which is the number of no dtype"));
  }
  return dtype;
}

// A view of somebody's memory, and whom to tell when it is not used any more.
struct Foreign {
  const char* argument;  // for messages
  void* data = nullptr;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  at::IntArrayRef sizes = {};
  std::optional<at::IntArrayRef> strides = std::nullopt;
  std::function<void()> release = nullptr;
};

at::IntArrayRef ReadSizes(const int64_t* sizes, size_t num_dims, const char* argument) {
  if (num_dims > kMaxDims) {
    FailArgument(argument, absl::StrCat("has ", num_dims, " dimensions; at most ", kMaxDims));
  }
  NeedArray(sizes, num_dims, absl::StrCat(argument, ": the array of sizes").c_str());
  int64_t numel = 1;
  bool overflow = false;
  for (size_t i = 0; i < num_dims; ++i) {
    if (sizes[i] < 0) FailArgument(argument, absl::StrCat("has the size ", sizes[i]));
    // Sizes beside a 0 must not overflow either: libtorch multiplies them in any order.
    overflow |= __builtin_mul_overflow(numel, sizes[i] == 0 ? 1 : sizes[i], &numel);
  }
  if (overflow || numel > INT64_MAX / 16) FailArgument(argument, "has too many elements");
  return at::IntArrayRef(sizes, num_dims);
}

// What libtorch does not look at: it would read and write whatever this says.
void CheckMemory(const Foreign& memory) {
  const auto element = static_cast<int64_t>(c10::elementSize(memory.dtype));
  int64_t last = 0;  // index of the last element in memory
  bool empty = false;
  bool overflow = false;
  for (size_t i = 0; i < memory.sizes.size(); ++i) {
    empty |= memory.sizes[i] == 0;
    if (!memory.strides.has_value()) continue;
    const int64_t stride = (*memory.strides)[i];
    if (stride < 0) FailArgument(memory.argument, absl::StrCat("has the stride ", stride));
    int64_t span = 0;
    overflow |= __builtin_mul_overflow(stride, memory.sizes[i] > 0 ? memory.sizes[i] - 1 : 0, &span);
    overflow |= __builtin_add_overflow(last, span, &last);
  }
  if (overflow || last > INT64_MAX / 16) FailArgument(memory.argument, "has strides beyond memory");
  if (empty) return;
  if (memory.data == nullptr) FailArgument(memory.argument, "has elements, but its data is NULL");
  if (reinterpret_cast<uintptr_t>(memory.data) % static_cast<uintptr_t>(element) != 0) {
    FailArgument(memory.argument, absl::StrCat("has data that is not aligned to its elements of ",
                                               element, " bytes"));
  }
}

leafpack_tensor* TensorOver(Foreign memory) {
  CheckMemory(memory);
  // On an error the memory stays the caller's.
  auto taken = std::make_shared<bool>(false);
  auto release = [taken, call = std::move(memory.release)](void*) {
    if (*taken && call) call();
  };
  at::TensorMaker maker = at::for_blob(memory.data, memory.sizes);
  if (memory.strides.has_value()) maker.strides(*memory.strides);
  at::Tensor tensor = maker.deleter(std::move(release))
                          .options(at::TensorOptions(memory.dtype).device(at::kCPU))
                          .target_device(at::Device(at::kCPU))
                          .make_tensor();
  leafpack_tensor* const handle = MakeHandle(leafpack_tensor{std::move(tensor)});
  *taken = true;
  return handle;
}

// The dtype of DLPack that torch knows, by number here.
leafpack_tensor* TensorOfDlpack(const DLTensor& given, std::function<void()> release) {
  if (given.device.device_type != kDLCPU) {
    Fail(absl::UnimplementedError(
        absl::StrCat("managed lies on DLPack's device type ", static_cast<int>(given.device.device_type),
                     "; tensors of this interface lie in CPU memory")));
  }
  if (given.ndim < 0) FailArgument("managed", absl::StrCat("has ", given.ndim, " dimensions"));
  Foreign memory{.argument = "managed"};
  const auto num_dims = static_cast<size_t>(given.ndim);
  memory.sizes = ReadSizes(given.shape, num_dims, "managed");
  if (given.strides != nullptr) memory.strides = at::IntArrayRef(given.strides, num_dims);
  memory.dtype = at::toScalarType(given.dtype);
  if (given.data != nullptr) memory.data = static_cast<char*>(given.data) + given.byte_offset;
  memory.release = std::move(release);
  return TensorOver(std::move(memory));
}

void CheckForDlpack(const at::Tensor& tensor) {
  if (!tensor.defined()) FailArgument("tensor", "is undefined, which DLPack cannot describe");
  if (tensor.layout() != at::kStrided || tensor.is_conj() || tensor.is_neg()) {
    Fail(absl::UnimplementedError(
        "tensor is sparse, or its memory holds not its values, which DLPack cannot describe"));
  }
}

leafpack_tensor_info InfoOf(const at::Tensor& tensor) {
  leafpack_tensor_info info = LEAFPACK_TENSOR_INFO_INIT;
  info.dtype = LEAFPACK_NO_DTYPE;
  info.kind = LEAFPACK_UNDEFINED;
  if (!tensor.defined()) return info;
  const uint8_t code = DtypeCode(tensor.scalar_type());
  if (DtypeOfCode(code) != c10::ScalarType::Undefined) info.dtype = code;
  const DLDevice device = at::torchDeviceToDLDevice(tensor.device());
  info.device_type = static_cast<int32_t>(device.device_type);
  info.device_index = device.device_id;
  info.num_dims = static_cast<size_t>(tensor.dim());
  info.sizes = tensor.sizes().data();
  info.num_elements = tensor.numel();
  info.element_size = static_cast<int64_t>(tensor.element_size());
  info.kind = tensor.layout() == at::kStrided ? LEAFPACK_DENSE : LEAFPACK_SPARSE;
  if (info.kind == LEAFPACK_SPARSE) return info;
  info.strides = tensor.strides().data();
  const bool plain = tensor.device().is_cpu() && !tensor.is_conj() && !tensor.is_neg();
  if (plain && info.num_elements > 0) info.data = tensor.mutable_data_ptr();
  return info;
}

}  // namespace
}  // namespace leafpack::c

using namespace leafpack::c;  // NOLINT(google-build-using-namespace): the functions of leafpack.h

const char* leafpack_dtype_name(int32_t dtype) {
  const c10::ScalarType type = DtypeOfNumber(dtype);
  return type == c10::ScalarType::Undefined ? "undefined" : leafpack::DtypeName(type).data();
}

size_t leafpack_dtype_size(int32_t dtype) {
  const c10::ScalarType type = DtypeOfNumber(dtype);
  return type == c10::ScalarType::Undefined ? 0 : c10::elementSize(type);
}

leafpack_error* leafpack_tensor_from_buffer(const leafpack_buffer* buffer,
                                            leafpack_tensor** tensor) {
  return Guard([&] {
    NeedPointer(tensor, "tensor");
    const leafpack_buffer given = CopyStruct(NeedPointer(buffer, "buffer"), "buffer");
    if (given.reserved != 0) FailArgument("buffer.reserved", "must be 0");
    Foreign memory{.argument = "buffer", .data = given.data};
    memory.dtype = ReadDtype(given.dtype, "buffer.dtype");
    memory.sizes = ReadSizes(given.sizes, given.num_dims, "buffer");
    if (given.strides != nullptr) memory.strides = at::IntArrayRef(given.strides, given.num_dims);
    if (given.release != nullptr) {
      memory.release = [release = given.release, context = given.context] { release(context); };
    }
    *tensor = TensorOver(std::move(memory));
  });
}

leafpack_error* leafpack_tensor_zeros(int32_t dtype, size_t num_dims, const int64_t* sizes,
                                      leafpack_tensor** tensor) {
  return Guard([&] {
    NeedPointer(tensor, "tensor");
    const c10::ScalarType type = ReadDtype(dtype, "dtype");
    const at::IntArrayRef dims = ReadSizes(sizes, num_dims, "sizes");
    *tensor = MakeHandle(leafpack_tensor{at::zeros(dims, at::TensorOptions(type))});
  });
}

leafpack_error* leafpack_tensor_undefined(leafpack_tensor** tensor) {
  return Guard([&] {
    NeedPointer(tensor, "tensor");
    *tensor = MakeHandle(leafpack_tensor{});
  });
}

leafpack_error* leafpack_tensor_from_dlpack(DLManagedTensor* managed, leafpack_tensor** tensor) {
  return Guard([&] {
    NeedPointer(managed, "managed");
    NeedPointer(tensor, "tensor");
    *tensor = TensorOfDlpack(managed->dl_tensor, [managed] {
      if (managed->deleter != nullptr) managed->deleter(managed);
    });
  });
}

leafpack_error* leafpack_tensor_from_dlpack_versioned(DLManagedTensorVersioned* managed,
                                                      leafpack_tensor** tensor) {
  return Guard([&] {
    NeedPointer(tensor, "tensor");
    if (NeedPointer(managed, "managed")->version.major != DLPACK_MAJOR_VERSION) {
      FailArgument("managed", absl::StrCat("is of DLPack ", managed->version.major,
                                           "; this version knows DLPack ", DLPACK_MAJOR_VERSION));
    }
    if ((managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0) {
      FailArgument("managed", "may only be read, but collectives write into leaves");
    }
    *tensor = TensorOfDlpack(managed->dl_tensor, [managed] {
      if (managed->deleter != nullptr) managed->deleter(managed);
    });
  });
}

leafpack_error* leafpack_tensor_to_dlpack(const leafpack_tensor* tensor,
                                          DLManagedTensor** managed) {
  return Guard([&] {
    NeedPointer(managed, "managed");
    const auto object = Need(tensor, "tensor");
    CheckForDlpack(object->tensor);
    *managed = at::toDLPack(object->tensor);
  });
}

leafpack_error* leafpack_tensor_to_dlpack_versioned(const leafpack_tensor* tensor,
                                                    DLManagedTensorVersioned** managed) {
  return Guard([&] {
    NeedPointer(managed, "managed");
    const auto object = Need(tensor, "tensor");
    CheckForDlpack(object->tensor);
    *managed = at::toDLPackVersioned(object->tensor);
  });
}

leafpack_error* leafpack_tensor_get_info(const leafpack_tensor* tensor,
                                         leafpack_tensor_info* info) {
  return Guard([&] {
    SizeToFill(info, kFirstSize<leafpack_tensor_info>, "info");
    FillStruct(InfoOf(Need(tensor, "tensor")->tensor), info, "info");
  });
}

void leafpack_tensor_free(leafpack_tensor* tensor) { FreeHandle(tensor); }
