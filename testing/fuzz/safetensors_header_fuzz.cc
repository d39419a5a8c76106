// The reader of safetensors headers on any bytes. What it believes must hold: ranges that lie in the data, one behind
// the other without a gap, of as many bytes as shape and dtype say; and written it must be read as the same.
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "tensordict/io/safetensors_header.h"

namespace {

void Require(bool holds) {
  if (!holds) std::abort();
}

void Check(const leafpack::internal::SafetensorsHeader& header, int64_t data_bytes) {
  int64_t at = 0;
  for (const leafpack::internal::SafetensorsEntry& entry : header.entries) {
    Require(entry.begin == at && entry.end >= entry.begin && entry.end <= data_bytes);
    at = entry.end;
    // In 128 bits: sizes whose product has no place in 64 must not have been believed.
    unsigned __int128 bytes = c10::elementSize(entry.dtype);
    bool empty = false;
    for (int64_t size : entry.shape) {
      Require(size >= 0);
      empty = empty || size == 0;
    }
    for (int64_t size : entry.shape) {
      if (empty) break;
      bytes *= static_cast<uint64_t>(size);
      Require(bytes <= static_cast<uint64_t>(data_bytes));
    }
    if (empty) bytes = 0;
    Require(bytes == static_cast<uint64_t>(entry.end - entry.begin));
  }
  Require(at == data_bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The first bytes say how much data is behind the header.
  uint32_t data_bytes = 0;
  if (size < sizeof(data_bytes)) return 0;
  std::memcpy(&data_bytes, data, sizeof(data_bytes));
  const std::string_view text(reinterpret_cast<const char*>(data) + sizeof(data_bytes),
                              size - sizeof(data_bytes));
  const auto header = leafpack::internal::ParseSafetensorsHeader(text, data_bytes);
  if (!header.ok()) return 0;
  Check(*header, data_bytes);
  const std::string written = leafpack::internal::WriteSafetensorsHeader(*header);
  const auto again = leafpack::internal::ParseSafetensorsHeader(written, data_bytes);
  Require(again.ok() && again->metadata == header->metadata &&
          again->entries.size() == header->entries.size());
  for (size_t i = 0; i < header->entries.size(); ++i) {
    const auto& a = header->entries[i];
    const auto& b = again->entries[i];
    Require(a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.begin == b.begin &&
            a.end == b.end);
  }
  return 0;
}
