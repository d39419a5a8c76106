// Trees in files of the public safetensors format, read by memory map.
//
//   RETURN_IF_ERROR(SaveSafetensors(tree, "model.safetensors"));
//   ASSIGN_OR_RETURN(TensorDict tree, LoadSafetensors("model.safetensors"));
//
// A file is an eight-byte length, a header of names, dtypes, shapes and offsets, and the values.
// All of the header is checked against the file before a value is believed.
#ifndef LEAFPACK_TENSORDICT_IO_SAFETENSORS_H_
#define LEAFPACK_TENSORDICT_IO_SAFETENSORS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {

// Called now and then with the bytes of values done and to do; false gives the work up (Cancelled).
using FileProgress = std::function<bool(int64_t done, int64_t total)>;

struct SaveSafetensorsOptions {
  // Between the components of a path; positions are written as decimal numbers. With the empty
  // separator, trees of one level only can be saved.
  std::string separator = ".";
  // Kept in the file under these names.
  std::map<std::string, std::string> metadata{};
  FileProgress progress{};
};

// Writes all tensors of `tree`. The new file takes the place of an old one when it is whole and on
// the disk; at an error the old one is as it was. It is written as PATH.PID.N.tmp; what a writer that was killed left
// under such a name is taken away by a later save to the same path, ten minutes after its last change, if no process
// has it locked. A symbolic link stays, and the file behind it is replaced.
// FailedPrecondition if what is at `path` is no regular file, or a link to nothing. Aliases are written as often as they stand in the
// tree, strided leaves without their gaps, tensors on devices from a copy. What the format cannot
// hold is refused by name before anything is written (InvalidArgument): two paths that become one
// name, the name "__metadata__", names that are not UTF-8, undefined tensors, values that are no
// tensors, sparse tensors, complex128. Nodes without leaves, batch sizes and names of dimensions
// are not kept.
absl::Status SaveSafetensors(const TensorDict& tree, const std::string& path,
                             const SaveSafetensorsOptions& options = {});

struct LoadSafetensorsOptions {
  // Names are split here into the components of a path, all of them names. Empty: a tree of one
  // level with the names as they are.
  std::string separator = ".";
  // Leaves are views of a private memory map: values are read when they are touched, writes to them
  // do not reach the file. The file must not be cut short while a leaf lives. False reads all
  // values now. (A leaf whose place in the file is not aligned for its dtype is always read.)
  bool memory_map = true;
  FileProgress progress{};
};

// NotFound if there is no such file; InvalidArgument if the path has a zero byte (also of SaveSafetensors), and, naming the file, the name and the offset, for
// anything that is not a whole and valid file: a truncated one, a header that is no JSON of the
// format's form, a dtype that is unknown, a range outside of the file, overlaps, gaps, a range
// whose length is not what shape and dtype say, names that collide when they are split. A header
// may have at most 100 MB.
absl::StatusOr<TensorDict> LoadSafetensors(const std::string& path,
                                           const LoadSafetensorsOptions& options = {});

// The metadata of a file. Errors as of LoadSafetensors.
absl::StatusOr<std::map<std::string, std::string>> LoadSafetensorsMetadata(
    const std::string& path);

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_IO_SAFETENSORS_H_
