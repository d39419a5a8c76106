// Whether a folder of memory-mapped files may take the place of what is at a path: nothing that is not of such a
// folder is ever thrown away.
#ifndef LEAFPACK_TENSORDICT_IO_MEMMAP_TARGET_H_
#define LEAFPACK_TENSORDICT_IO_MEMMAP_TARGET_H_

#include <string>

#include "absl/status/statusor.h"

namespace leafpack::internal {

// The folder that is to be made, or replaced: `path` without the slashes at its end, or what the symbolic link
// there leads to. FailedPrecondition, naming the path and the first foreign entry, if there is anything else than
// - nothing,
// - an empty folder,
// - a folder with a meta.json as leafpack and tensordict write it, the files and folders that it names, which are
//   such folders themselves, and nothing more.
// InvalidArgument if the path has a zero byte or its last component is no name. Touches nothing.
absl::StatusOr<std::string> MemmapTarget(const std::string& path);

}  // namespace leafpack::internal

#endif  // LEAFPACK_TENSORDICT_IO_MEMMAP_TARGET_H_
