// The header of a safetensors file, apart from any file: text to entries and back. Pure.
#ifndef LEAFPACK_TENSORDICT_IO_SAFETENSORS_HEADER_H_
#define LEAFPACK_TENSORDICT_IO_SAFETENSORS_HEADER_H_

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace leafpack::internal {

struct SafetensorsEntry {
  std::string name;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // bytes from the end of the header
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // by their place in the file
  std::map<std::string, std::string> metadata;
};

// "F32" for float32; nullopt for a dtype that the format lacks.
std::optional<std::string_view> SafetensorsDtypeName(c10::ScalarType dtype);

// `data_bytes`: what follows the header in the file. InvalidArgument, naming the tensor and the
// offset, if the text is not of the format's form, or ranges do not cover the data exactly, each
// once.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view text, int64_t data_bytes);

// The text, filled up with spaces to a multiple of 8 bytes.
std::string WriteSafetensorsHeader(const SafetensorsHeader& header);

// One JSON text with its quotes, to what it says and back. InvalidArgument for anything else.
absl::StatusOr<std::string> ParseJsonText(std::string_view quoted);
std::string WriteJsonText(std::string_view text);

// Whether `text` is valid UTF-8.
bool IsUtf8(std::string_view text);

}  // namespace leafpack::internal

#endif  // LEAFPACK_TENSORDICT_IO_SAFETENSORS_HEADER_H_
