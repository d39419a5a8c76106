// The reader of safetensors files on any bytes as a whole file, with libtorch. What it believes must lie in its memory,
// be the same when it is read without a memory map, and, saved, be read as the same.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"

#include "tensordict/io/safetensors.h"
#include "tensordict/tensor_dict.h"
#include "testing/fuzz/files.h"
#include "testing/fuzz/trees.h"

using leafpack::testing::Require;

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

// As libFuzzer mutates, but with the length of the header mostly right again: else few inputs come further than that.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  constexpr size_t kLength = 8;
  if (size < kLength || max_size <= kLength || seed % 8 == 0) return LLVMFuzzerMutate(data, size, max_size);
  uint64_t header = 0;
  std::memcpy(&header, data, kLength);
  const size_t rest = size - kLength;
  if (header > rest) header = rest;
  const size_t values = rest - header;
  if (seed % 8 == 1 && values > 0) {  // the values alone
    const size_t begin = kLength + header;
    return begin + LLVMFuzzerMutate(data + begin, values, max_size - begin);
  }
  std::string tail(reinterpret_cast<const char*>(data) + kLength + header, values);
  header = LLVMFuzzerMutate(data + kLength, header, max_size - kLength);
  std::memcpy(data, &header, kLength);
  if (tail.size() > max_size - kLength - header) tail.resize(max_size - kLength - header);
  if (!tail.empty()) std::memcpy(data + kLength + header, tail.data(), tail.size());
  return kLength + header + tail.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string path = leafpack::testing::Folder() + "/input.safetensors";
  const std::string copy = leafpack::testing::Folder() + "/copy.safetensors";
  leafpack::testing::WriteFile(path, std::string_view(reinterpret_cast<const char*>(data), size));
  const auto names = leafpack::LoadSafetensors(path, {.separator = ""});
  const auto tree = leafpack::LoadSafetensors(path);
  // Names that collide when they are split are the one thing that an empty separator takes more.
  Require(names.ok() || !tree.ok());
  if (!names.ok()) {
    Require(absl::StrContains(names.status().message(), path));
    return 0;
  }
  const auto read = leafpack::LoadSafetensors(path, {.separator = "", .memory_map = false});
  Require(read.ok() && leafpack::testing::SameBytes(*names, *read));
  leafpack::testing::TouchAll(*names);
  leafpack::testing::TouchAll(*read);
  if (tree.ok()) leafpack::testing::TouchAll(*tree);
  const absl::Status saved = leafpack::SaveSafetensors(tree.ok() ? *tree : *names, copy,
                                                       {.separator = tree.ok() ? "." : ""});
  Require(saved.ok());
  const auto again = leafpack::LoadSafetensors(copy, {.separator = tree.ok() ? "." : ""});
  Require(again.ok() && leafpack::testing::SameBytes(*again, tree.ok() ? *tree : *names));
  return 0;
}
