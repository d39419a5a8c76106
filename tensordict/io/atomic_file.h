// A file that takes the place of an old one only when it is whole and on the disk.
#ifndef LEAFPACK_TENSORDICT_IO_ATOMIC_FILE_H_
#define LEAFPACK_TENSORDICT_IO_ATOMIC_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace leafpack::internal {

// InvalidArgument, with the path escaped, if it has a zero byte: the system would take it for a shorter one.
absl::Status CheckPath(std::string_view path);

// An open descriptor of the temporary file or folder at `path`, locked for as long as it is open; -1 if that cannot
// be. Says to RemoveLeftovers on the machines that share the file system that its writer lives.
int LockTemporary(const std::string& path);

// A new empty folder beside `path`, called PATH.PID.N.tmp. Its lock is LockTemporary's.
absl::StatusOr<std::string> MakeTemporaryFolder(const std::string& path);

enum class TemporaryKind : uint8_t { kFile, kFolder };

// Takes away what writers of `path` that were killed left behind: files (or folders) PATH.PID.N.tmp that have not
// changed for ten minutes, whose process is not on this machine (or is this one, whose own are locked), and which
// nobody has locked. A folder stays if there is anything in it but meta.json, *.memmap and folders, or anything younger. Where the file system knows no locks nothing is taken away. Errors are of no account.
void RemoveLeftovers(const std::string& path, TemporaryKind kind);

// Written beside its final place under a name of its own. Destroyed without Commit it leaves no
// trace. Errors name the file and say what the system said.
class AtomicFile {
 public:
  // A symbolic link is followed: the file behind it is replaced, the link stays. FailedPrecondition if what is at
  // `path` is no regular file, or a link to nothing.
  static absl::StatusOr<AtomicFile> Create(const std::string& path);
  ~AtomicFile();
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&& other) = delete;

  // Where the file will be: behind the link, if it is one.
  const std::string& path() const { return path_; }

  absl::Status Write(std::string_view bytes);
  // Brings all to the disk, then puts the file in its place. Nothing else may follow.
  absl::Status Commit();

 private:
  AtomicFile(std::string path, std::string temporary, int fd);

  std::string path_;
  std::string temporary_;  // empty: nothing to take away
  int fd_;
};

// Puts the folder `made` in the place of `path`, in one step, and brings that to the disk. Where something is at
// `path` it takes the place of `made` (AlreadyExists, and nothing has changed, unless `overwrite`). Both must lie in
// one file system.
absl::Status PutFolder(const std::string& made, const std::string& path, bool overwrite);

}  // namespace leafpack::internal

#endif  // LEAFPACK_TENSORDICT_IO_ATOMIC_FILE_H_
