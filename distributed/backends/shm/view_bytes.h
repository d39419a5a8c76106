// A list of leaf views as one run of bytes: the elements of each in row-major order of the indices,
// one view after the other. Copies any part of it to or from memory.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_SHM_VIEW_BYTES_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_SHM_VIEW_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "distributed/core/backend.h"

namespace leafpack::shm {

// Immutable. Refers to the memory of the views and does not own it. Any thread, if the parts that are
// written do not overlap.
class ViewBytes {
 public:
  ViewBytes() = default;

  // Unimplemented for memory that is not the CPU's; Internal for a view whose sizes and strides do not
  // match or with a negative one.
  static absl::StatusOr<ViewBytes> Of(absl::Span<const LeafView> views);

  int64_t size() const { return items_.empty() ? 0 : items_.back().end; }

  // Copies the bytes [begin, begin + count) to `to`, or from `from` into the views: their own elements
  // only. The part may begin and end within an element.
  void Gather(int64_t begin, int64_t count, char* to) const;
  void Scatter(const char* from, int64_t begin, int64_t count) const;

  // The piece of one view at `begin`, at most `most` > 0 bytes, begin < size(). `data` is where it
  // stands if it is one block in memory, else null.
  struct Piece {
    char* data;
    int64_t bytes;
  };
  Piece PieceAt(int64_t begin, int64_t most) const;

 private:
  // A dimension that is walked; bytes.
  struct Dim {
    int64_t size;
    int64_t stride;
  };
  struct Item {
    char* data;
    int64_t end;    // in the run, of the last byte
    int64_t block;  // bytes that stand together
    int64_t bytes;
    uint32_t first_dim;
    uint32_t dims;  // 0: one block
  };

  size_t ItemAt(int64_t begin) const;
  template <bool kGather>
  void Copy(int64_t begin, int64_t count, char* memory) const;
  template <bool kGather>
  void CopyStrided(const Item& item, int64_t begin, int64_t count, char* memory) const;

  std::vector<Item> items_;  // without empty views
  std::vector<Dim> dims_;
};

}  // namespace leafpack::shm

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_SHM_VIEW_BYTES_H_
