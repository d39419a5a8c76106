// Trees in folders of memory-mapped files, as Python's tensordict keeps them: TensorDict.memmap and
// load_memmap of tensordict 0.15 (format version 1) read what is written here and the other way
// round.
//
//   RETURN_IF_ERROR(SaveMemmap(tree, "replay"));
//   ASSIGN_OR_RETURN(TensorDict tree, LoadMemmap("replay"));   // writes to leaves reach the files
//
// A node is a folder with meta.json; a tensor is a file of its bytes; a node below is a folder.
#ifndef LEAFPACK_TENSORDICT_IO_MEMMAP_H_
#define LEAFPACK_TENSORDICT_IO_MEMMAP_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tensordict/tensor_dict.h"

namespace leafpack {

struct SaveMemmapOptions {
  // Replace what is there: an empty folder, or one that holds a tree as leafpack and tensordict write it and
  // nothing more. It stays whole until the new one is, and then goes. A symbolic link to a folder stays; the
  // folder behind it is replaced.
  bool overwrite = false;
  // Called now and then with the bytes of values done and to do; false gives the work up
  // (Cancelled).
  std::function<bool(int64_t done, int64_t total)> progress{};
};

// Writes `tree` with its batch sizes, names of dimensions, and values that are no tensors. The
// folder appears whole or not at all. It is written as PATH.PID.N.tmp; what a writer that was killed left under such a
// name is taken away by a later save to the same path, ten minutes after its last change, if no process has it
// locked. AlreadyExists if there is something at `path` and `overwrite`
// is false; FailedPrecondition, naming the first foreign entry and before anything is written, for anything that
// `overwrite` does not replace: a folder with other files, a file, a link to nothing. InvalidArgument for a path with
// a zero byte (also of LoadMemmap). What the format cannot hold is refused by path before anything is written
// (InvalidArgument): other positions than those below, the names shape, device, _type, _format_version, _class and _names,
// a node called meta.json, or x.memmap beside a leaf x, names that are not UTF-8, undefined, sparse and meta tensors, and bytes among the values. Aliases
// are written as often as they stand in the tree. A node that has the positions 0, 1, ... is written
// - as a LazyStackedTensorDict if trees of one batch size stand there (LazyStack::AsTree), along the
//   dimension behind the node's own batch dimensions; names of dimensions are those of the trees;
// - as a NonTensorStack if values that are no tensors do, one for each element of the batch (with more
//   dimensions nodes of positions in nodes of positions).
absl::Status SaveMemmap(const TensorDict& tree, const std::string& path,
                        const SaveMemmapOptions& options = {});

enum class MapMode : uint8_t {
  kShared,   // writes to leaves reach the files, and other processes that map them
  kPrivate,  // writes to leaves reach nobody; files need not be writable
};

// A LazyStackedTensorDict becomes a node with its trees at the positions 0, 1, ..., a NonTensorStack one
// with values there; LazyStack::FromTree(tree, tree.batch_size().size()) makes the stack again. A stack
// along one of the batch dimensions of the tree that holds it becomes one tree, whose leaves are copies.
// NotFound if there is no such folder, or one of its files is missing. InvalidArgument, naming file and key, if
// meta.json is no JSON or lacks what it must have, a dtype is unknown, a device does not exist, tensordict lost the
// entry of a leaf called shape, device or _type when it wrote the folder, a file has another length than its shape
// says, is no regular file, or lies behind a link, or a leaf does not begin with the batch size.
// Unimplemented, naming file and value, for a _format_version above 1 and, naming the key, for kinds of nodes that are neither of these nor plain values:
// tensorclasses, pickled objects; and for a stack along one of the batch dimensions of the tree that
// holds it if its trees differ in keys or shapes. Nothing that a file says is executed. Files must not
// be cut short while a leaf lives.
absl::StatusOr<TensorDict> LoadMemmap(const std::string& path, MapMode mode = MapMode::kShared);

// The file that LoadMemmap mapped the tensor from, if it is that whole file and writes reach it; its path as
// it was given to LoadMemmap. nullopt for views of a part, for copies, and for kPrivate.
std::optional<std::string> MemmapFileOf(const at::Tensor& tensor);

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_IO_MEMMAP_H_
