// The views of an operation as one sequence of elements, of which parts are copied out and in.
#ifndef LEAFPACK_DISTRIBUTED_MESSAGES_VIEW_SEQUENCE_H_
#define LEAFPACK_DISTRIBUTED_MESSAGES_VIEW_SEQUENCE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include <c10/core/ScalarType.h>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"

#include "distributed/core/backend.h"

namespace leafpack::messages {

int64_t ElementCount(const LeafView& view);
// Whether the elements lie in a row; for views that have elements.
bool IsContiguous(const LeafView& view);

// Elements of one dtype, of neighbouring views in row-major order of their indices. Segments depend on
// the dtypes and sizes of the views alone, so they are equal on all ranks, whatever the strides are.
struct Segment {
  at::ScalarType dtype = at::ScalarType::Undefined;
  int64_t element_bytes = 0;
  int64_t numel = 0;
  // One view of at least ViewSequence::kLargeBytes.
  bool large = false;
  size_t first_piece = 0;
  size_t end_piece = 0;
};

class ViewSequence {
 public:
  // A large view is a segment of its own: not worth a copy if it is contiguous.
  static constexpr int64_t kLargeBytes = int64_t{1} << 20;

  // Copies what it needs of the views, and keeps their memory alive.
  explicit ViewSequence(absl::Span<const LeafView> views);
  ViewSequence(const ViewSequence&) = delete;
  ViewSequence& operator=(const ViewSequence&) = delete;

  const std::vector<Segment>& segments() const { return segments_; }

  // Below, a range is elements [begin, begin + count) of a segment, count > 0.

  // Where the range lies, if its elements lie in a row; else null.
  char* Run(const Segment& segment, int64_t begin, int64_t count) const;
  // Copies the range to `row`, which has room for it, or back. Writes no other byte.
  void Gather(const Segment& segment, int64_t begin, int64_t count, char* row) const;
  void Scatter(const Segment& segment, int64_t begin, int64_t count, const char* row) const;
  // Calls f(where they lie, bytes from the begin of the range, number) for neighbouring elements that lie
  // in a row, and with null in place of the address for those that do not.
  void ForEachRun(const Segment& segment, int64_t begin, int64_t count,
                  absl::FunctionRef<void(char*, int64_t, int64_t)> f) const;

 private:
  struct Dim {
    int64_t size;
    int64_t step;  // bytes
  };
  // A view, or contiguous ones that lie back to back.
  struct Piece {
    char* data;
    int64_t begin;  // its first element in the segment
    int64_t numel;
    uint32_t first_dim;  // of a strided view in `dims_`
    uint32_t dim_count;  // 0 if contiguous
  };

  // Calls f(piece, first element within it, number) for the pieces of a range.
  template <typename F>
  void ForEachPiece(const Segment& segment, int64_t begin, int64_t count, F f) const;

  template <bool kGather>
  void CopyPiece(const Piece& piece, int64_t element_bytes, int64_t first, int64_t count,
                 char* row) const;

  std::vector<std::shared_ptr<const void>> owners_;
  std::vector<Dim> dims_;  // without those of size 1, merged where one goes on in another
  std::vector<Piece> pieces_;
  std::vector<Segment> segments_;
};

}  // namespace leafpack::messages

#endif  // LEAFPACK_DISTRIBUTED_MESSAGES_VIEW_SEQUENCE_H_
