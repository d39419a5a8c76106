#include "distributed/launch/output.h"

#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace leafpack {

void LineSplitter::Add(absl::string_view bytes, absl::FunctionRef<void(absl::string_view)> line) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    if (end == absl::string_view::npos) {
      absl::StrAppend(&rest_, bytes);
      bytes = {};
    } else if (rest_.empty()) {
      line(bytes.substr(0, end));
      bytes.remove_prefix(end + 1);
    } else {
      absl::StrAppend(&rest_, bytes.substr(0, end));
      bytes.remove_prefix(end + 1);
      line(rest_);
      rest_.clear();
    }
    while (rest_.size() >= kMaxLine) {
      line(absl::string_view(rest_).substr(0, kMaxLine));
      rest_.erase(0, kMaxLine);
    }
  }
}

void LineSplitter::Finish(absl::FunctionRef<void(absl::string_view)> line) {
  if (!rest_.empty()) line(rest_);
  rest_.clear();
}

void OutputQueue::Line(int fd, absl::string_view prefix, absl::string_view line) {
  if (broken_) return;
  const size_t size = prefix.size() + line.size() + 1;
  bytes_ += size;
  // Lines are gathered into pieces, so that a chatty rank costs few system calls.
  if (pieces_.size() > 1 && pieces_.back().fd == fd &&
      pieces_.back().text.size() + size <= PIPE_BUF) {
    absl::StrAppend(&pieces_.back().text, prefix, line, "\n");
  } else {
    pieces_.push_back({fd, absl::StrCat(prefix, line, "\n")});
  }
}

bool OutputQueue::Write() {
  while (!pieces_.empty()) {
    pollfd ready = {pieces_.front().fd, POLLOUT, 0};
    if (poll(&ready, 1, 0) <= 0) return true;
    const std::string& text = pieces_.front().text;
    const ssize_t n = write(pieces_.front().fd, text.data() + written_,
                            std::min<size_t>(text.size() - written_, PIPE_BUF));
    if (n < 0) {
      if (errno == EINTR || errno == EAGAIN) return true;
      broken_ = true;
      pieces_.clear();
      bytes_ = 0;
      return false;
    }
    written_ += static_cast<size_t>(n);
    bytes_ -= static_cast<size_t>(n);
    if (written_ == text.size()) {
      pieces_.pop_front();
      written_ = 0;
    }
  }
  return true;
}

void Tail::Add(absl::string_view line) {
  constexpr size_t kMaxShown = 500;
  lines_.emplace_back(line.substr(0, kMaxShown));
  if (lines_.size() > limit_) lines_.pop_front();
}

bool SameFile(int a, int b) {
  struct stat x, y;
  return fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino &&
         x.st_rdev == y.st_rdev;
}

}  // namespace leafpack
