// The reader of memory-mapped folders on any folder (an archive, see files.h), with libtorch. What it believes must lie
// in its memory and, saved, be read as the same.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "tensordict/io/memmap.h"
#include "tensordict/tensor_dict.h"
#include "testing/fuzz/files.h"
#include "testing/fuzz/trees.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using leafpack::MapMode;
  using leafpack::testing::Require;
  const std::string path = leafpack::testing::Folder() + "/input";
  const std::string copy = leafpack::testing::Folder() + "/copy";
  leafpack::testing::Remove(path);
  leafpack::testing::Remove(copy);
  leafpack::testing::Unpack(std::string_view(reinterpret_cast<const char*>(data), size), path);
  const auto tree = leafpack::LoadMemmap(path, MapMode::kPrivate);
  const auto shared = leafpack::LoadMemmap(path, MapMode::kShared);
  Require(tree.ok() == shared.ok());
  if (!tree.ok()) return 0;
  leafpack::testing::TouchAll(*tree);
  leafpack::testing::TouchAll(*shared);
  Require(leafpack::testing::SameBytes(*tree, *shared));
  // Names that only a leaf without a file could have are too long to be written.
  if (!leafpack::SaveMemmap(*tree, copy).ok()) return 0;
  const auto again = leafpack::LoadMemmap(copy);
  Require(again.ok() && leafpack::testing::SameBytes(*tree, *again) && again->names() == tree->names());
  return 0;
}
