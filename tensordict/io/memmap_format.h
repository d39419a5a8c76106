// What the writer and the reader of memory-mapped folders share: names and values of the format.
#ifndef LEAFPACK_TENSORDICT_IO_MEMMAP_FORMAT_H_
#define LEAFPACK_TENSORDICT_IO_MEMMAP_FORMAT_H_

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace leafpack::internal {

// Kinds of nodes: what the parent's meta.json says, and what the node's own does.
inline constexpr std::string_view kTreeType = "<class 'tensordict._td.TensorDict'>";
inline constexpr std::string_view kTreeClass = "tensordict:TensorDict";
inline constexpr std::string_view kStackKind = "LazyStackedTensorDict";
inline constexpr std::string_view kStackType = "<class 'tensordict._lazy.LazyStackedTensorDict'>";
inline constexpr std::string_view kStackClass = "tensordict:LazyStackedTensorDict";
inline constexpr std::string_view kValueType = "<class 'tensordict.tensorclass.NonTensorData'>";
inline constexpr std::string_view kValuesKind = "NonTensorStack";
inline constexpr std::string_view kValuesType = "<class 'tensordict.tensorclass.NonTensorStack'>";
inline constexpr std::string_view kValuesClass = "tensordict:NonTensorStack";

// The dtypes that a tensor in a folder may have.
inline constexpr at::ScalarType kMemmapDtypes[] = {
    at::kBool,   at::kByte,     at::kChar,         at::kShort,         at::kUInt16,
    at::kInt,    at::kUInt32,   at::kLong,         at::kUInt64,        at::kHalf,
    at::kFloat,  at::kBFloat16, at::kDouble,       at::kComplexFloat,  at::kComplexDouble,
    at::kFloat8_e4m3fn,         at::kFloat8_e5m2,
};

// The format that is written, and the newest that is read.
inline constexpr int64_t kMemmapVersion = 1;

// Whether meta.json of a tree keeps this name for itself.
bool IsMemmapName(std::string_view name);

// The file name of a key: bytes that a file system could take for something else as %XX; the empty
// key as %.
std::string MemmapFileName(std::string_view key);

// All of a meta.json, which must be a regular file and no link, of at most 100 MB.
absl::StatusOr<std::string> ReadMemmapText(const std::string& path);

// "file PATH: TEXT" and "file PATH: WHAT: ...".
absl::Status MemmapError(std::string_view path, std::string_view text);
absl::Status MemmapErrnoError(std::string_view path, std::string_view what, int error);

}  // namespace leafpack::internal

#endif  // LEAFPACK_TENSORDICT_IO_MEMMAP_FORMAT_H_
