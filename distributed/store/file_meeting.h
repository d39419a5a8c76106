// Where the ranks of a run meet in a file: proof against files that dead runs left behind. Internal.
//
// The file at `path` is a card. It names the run (a random token), its size, and the ranks that are in,
// with their hosts and processes. Each of them holds a lock on a byte of the card as long as it lives,
// so that who is dead shows at once, whatever killed it. The values of the run lie in a second file,
// path.TOKEN, a c10d::FileStore.
//
// Who comes and finds a card without a living rank, or one of whose ranks is dead, puts a new card with
// a new token in its place, in one step; those who come after it join that. Who finds a card of a
// living run joins it. Nobody ever waits for a dead run. Everything happens under a lock on the card,
// so the order in which ranks come does not matter.
//
// The locks are the kernel's (F_OFD_SETLK), so the file system must have them: local ones, NFS 4.
#ifndef LEAFPACK_DISTRIBUTED_STORE_FILE_MEETING_H_
#define LEAFPACK_DISTRIBUTED_STORE_FILE_MEETING_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/types.h>

#include <c10/util/intrusive_ptr.h>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "distributed/core/channel/fork.h"

namespace c10d {
class Store;
}

namespace leafpack::store_internal {

// The text of a card. Plain data.
struct MeetingCard {
  struct Member {
    int rank = 0;
    bool present = false;  // it has joined and has not left
    int groups = 0;        // that it has made over this card
    int64_t pid = 0;
    std::string host;
  };
  std::string token;
  int size = 0;
  std::vector<Member> members;  // those that have ever joined

  std::string ToText() const;
  // InvalidArgument if `text` is no card; an empty one or the beginning of a card gives an empty card.
  static absl::StatusOr<MeetingCard> Parse(std::string_view text);
  Member* Find(int rank);
};

// One rank's place in a run. Leaves when it is destroyed; the last one removes both files.
class FileMeeting {
 public:
  // Joins the run of `size` ranks that meets at `path`, or begins it. A place of this process that is
  // still held is given again. By `deadline`: DeadlineExceeded if the card's lock cannot be had.
  // FailedPrecondition if a living process has this rank, or a living run there has another size:
  // the text names it. InvalidArgument if the file is something else; Unavailable with the path if
  // the file system fails or has no locks.
  static absl::StatusOr<std::shared_ptr<FileMeeting>> Join(const std::string& path, int rank,
                                                           int size, absl::Time deadline);
  ~FileMeeting();
  FileMeeting(const FileMeeting&) = delete;
  FileMeeting& operator=(const FileMeeting&) = delete;

  const std::string& token() const { return token_; }
  // The values of the run. The store, and each clone of it, keeps `meeting` alive.
  static c10::intrusive_ptr<c10d::Store> OpenStore(std::shared_ptr<FileMeeting> meeting);

  // Calls `make` with the number of groups that this rank has made over the run, and counts one more
  // when it succeeds.
  absl::Status CountGroup(absl::FunctionRef<absl::Status(int earlier)> make, absl::Time deadline);

  // Gives the place up early. Idempotent, does nothing in a forked child.
  void Leave();

 private:
  FileMeeting(std::string path, int rank, int size) : path_(std::move(path)), rank_(rank), size_(size) {}
  std::string DataPath(const std::string& token) const;
  absl::Status Enter(absl::Time deadline);
  absl::StatusOr<bool> TryEnter(absl::Time deadline, absl::Time patience);
  absl::Status Begin();
  // True if the run is still the one at the path, and none of its ranks is dead.
  bool IsSound(absl::Time deadline);
  void StrikeOut();

  const std::string path_;
  const int rank_;
  const int size_;
  std::string token_;
  absl::Mutex count_mutex_;
  TrackedFd fd_;  // of the card; holds this rank's lock
};

}  // namespace leafpack::store_internal

#endif  // LEAFPACK_DISTRIBUTED_STORE_FILE_MEETING_H_
