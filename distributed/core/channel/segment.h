// Memory that the ranks of one host share: a memfd of fixed size whose pages are there from the start.
//
// Nothing has a name, so nothing is left behind when a process is killed: the memory goes with the
// last mapping. The size is sealed and every page reserved at creation, so that a lack of memory is an
// error there and never a SIGBUS later.
#ifndef LEAFPACK_DISTRIBUTED_CORE_CHANNEL_SEGMENT_H_
#define LEAFPACK_DISTRIBUTED_CORE_CHANNEL_SEGMENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

#include "distributed/core/channel/fork.h"

namespace leafpack {

// A handle of a mapping; copies share it. Empty if default constructed.
class Segment {
 public:
  // A new segment of `bytes` > 0, zero at first, and the descriptor to hand to the other ranks.
  // ResourceExhausted when the memory cannot be had (the text has size and cause), Unimplemented when
  // this system gives no sealed memfd.
  struct Created;
  static absl::StatusOr<Created> Create(size_t bytes);

  // Maps what another rank created. InvalidArgument unless `fd` is a segment of exactly `bytes` that
  // can not shrink any more; ResourceExhausted when it cannot be mapped.
  static absl::StatusOr<Segment> Map(int fd, size_t bytes);

  // Bytes that can be reserved now without making the system kill somebody.
  static uint64_t Available();

  // Memory of this process, for ranks that are threads of one process and share addresses too.
  static absl::StatusOr<Segment> InProcess(size_t bytes);

  // Parts this process from the others in the pages [offset, offset + bytes): they keep their addresses and
  // what they hold, but from then on nobody sees what is written on the other side. `fd`: what Create gave
  // with this segment. Other threads may read and write the memory meanwhile; no write is lost. An
  // error when the memory for it cannot be had: nothing or some pages only are parted then. Not for InProcess.
  absl::Status Part(int fd, size_t offset, size_t bytes) const;

  char* data() const { return memory_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<char> memory_;
  size_t bytes_ = 0;
};

struct Segment::Created {
  Segment segment;
  TrackedFd fd;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_CHANNEL_SEGMENT_H_
