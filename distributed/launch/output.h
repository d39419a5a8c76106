// Lines of several processes on one output, each whole and with a prefix, without ever blocking.
#ifndef LEAFPACK_DISTRIBUTED_LAUNCH_OUTPUT_H_
#define LEAFPACK_DISTRIBUTED_LAUNCH_OUTPUT_H_

#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace leafpack {

// Cuts a stream into lines. A line longer than kMaxLine is given out in pieces of that size.
class LineSplitter {
 public:
  static constexpr size_t kMaxLine = 64 << 10;  // bytes

  // Calls `line` for each line that `bytes` completes, without its newline.
  void Add(absl::string_view bytes, absl::FunctionRef<void(absl::string_view)> line);
  // End of the stream: gives out an unfinished last line.
  void Finish(absl::FunctionRef<void(absl::string_view)> line);

 private:
  std::string rest_;
};

// What waits to be written to one or two descriptors that may be the same file (a terminal, one
// pipe): one queue, so that a line is never cut by one of the other descriptor. Writes happen only
// when the descriptor is ready, at most PIPE_BUF bytes at a time: a reader that stands still (a
// paused terminal) stops nobody from seeing signals and deadlines.
class OutputQueue {
 public:
  static constexpr size_t kFull = 1 << 20;  // bytes; above it stop reading from the ranks

  // Takes a whole line, and adds its newline.
  void Line(int fd, absl::string_view prefix, absl::string_view line);

  bool empty() const { return pieces_.empty(); }
  bool full() const { return bytes_ >= kFull; }
  // The descriptor to wait for; only when not empty.
  int fd() const { return pieces_.front().fd; }
  // Writes what can be written without blocking. False when nobody reads any more (EPIPE and other
  // errors): the queue is then emptied and ignores further lines.
  bool Write();
  bool broken() const { return broken_; }

 private:
  struct Piece {
    int fd;
    std::string text;
  };
  std::deque<Piece> pieces_;
  size_t bytes_ = 0;
  size_t written_ = 0;  // of the first piece
  bool broken_ = false;
};

// The last few lines of a stream.
class Tail {
 public:
  explicit Tail(size_t lines) : limit_(lines) {}
  void Add(absl::string_view line);
  const std::deque<std::string>& lines() const { return lines_; }

 private:
  size_t limit_;
  std::deque<std::string> lines_;
};

// True when both descriptors lead to the same file, pipe or terminal.
bool SameFile(int a, int b);

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_LAUNCH_OUTPUT_H_
