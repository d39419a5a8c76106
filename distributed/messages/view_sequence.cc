#include "distributed/messages/view_sequence.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"

namespace leafpack::messages {

int64_t ElementCount(const LeafView& view) {
  int64_t count = 1;
  for (const int64_t size : view.sizes) count *= size;
  return count;
}

bool IsContiguous(const LeafView& view) {
  int64_t expected = 1;
  for (size_t d = view.sizes.size(); d-- > 0;) {
    if (view.sizes[d] != 1 && view.strides[d] != expected) return false;
    expected *= view.sizes[d];
  }
  return true;
}

namespace {

// `kGather`: from the strided side to the row, else back.
template <bool kGather, size_t kBytes>
void CopyLine(char* strided, int64_t step, int64_t count, char* row) {
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (kGather) {
      std::memcpy(row + i * static_cast<int64_t>(kBytes), strided + i * step, kBytes);
    } else {
      std::memcpy(strided + i * step, row + i * static_cast<int64_t>(kBytes), kBytes);
    }
  }
}

template <bool kGather>
void CopyLine(char* strided, int64_t step, int64_t count, int64_t element_bytes, char* row) {
  if (step == element_bytes) {
    const auto bytes = static_cast<size_t>(count * element_bytes);
    std::memcpy(kGather ? row : strided, kGather ? strided : row, bytes);
    return;
  }
  switch (element_bytes) {
    case 1: return CopyLine<kGather, 1>(strided, step, count, row);
    case 2: return CopyLine<kGather, 2>(strided, step, count, row);
    case 4: return CopyLine<kGather, 4>(strided, step, count, row);
    case 8: return CopyLine<kGather, 8>(strided, step, count, row);
    default: return CopyLine<kGather, 16>(strided, step, count, row);
  }
}

}  // namespace

ViewSequence::ViewSequence(absl::Span<const LeafView> views) {
  pieces_.reserve(views.size());
  for (const LeafView& view : views) {
    const int64_t numel = ElementCount(view);
    if (numel == 0) continue;
    if (owners_.empty() || owners_.back() != view.keep_alive) owners_.push_back(view.keep_alive);
    const auto element_bytes = static_cast<int64_t>(c10::elementSize(view.dtype));
    const bool large = numel >= kLargeBytes / element_bytes;
    if (segments_.empty() || large || segments_.back().large ||
        segments_.back().dtype != view.dtype) {
      segments_.push_back({view.dtype, element_bytes, 0, large, pieces_.size(), pieces_.size()});
    }
    Segment& segment = segments_.back();
    char* const data = static_cast<char*>(view.data);
    const bool contiguous = IsContiguous(view);
    if (contiguous && segment.numel > 0 && pieces_.back().dim_count == 0 &&
        pieces_.back().data + pieces_.back().numel * element_bytes == data) {
      pieces_.back().numel += numel;
    } else {
      Piece piece = {data, segment.numel, numel, static_cast<uint32_t>(dims_.size()), 0};
      for (size_t d = 0; !contiguous && d < view.sizes.size(); ++d) {
        if (view.sizes[d] == 1) continue;
        const Dim dim = {view.sizes[d], view.strides[d] * element_bytes};
        if (piece.dim_count > 0 && dims_.back().step == dim.step * dim.size) {
          dims_.back() = {dims_.back().size * dim.size, dim.step};
        } else {
          dims_.push_back(dim);
          ++piece.dim_count;
        }
      }
      pieces_.push_back(piece);
      segment.end_piece = pieces_.size();
    }
    segment.numel += numel;
  }
}

// Elements [first, first + count) of a piece, in row-major order of its indices.
template <bool kGather>
void ViewSequence::CopyPiece(const Piece& piece, int64_t element_bytes, int64_t first,
                             int64_t count, char* row) const {
  if (piece.dim_count == 0) {
    char* const run = piece.data + first * element_bytes;
    return CopyLine<kGather>(run, element_bytes, count, element_bytes, row);
  }
  const absl::Span<const Dim> dims(&dims_[piece.first_dim], piece.dim_count);
  absl::InlinedVector<int64_t, 8> index(dims.size());
  char* at = piece.data;
  for (size_t d = dims.size(); d-- > 0;) {
    index[d] = first % dims[d].size;
    at += index[d] * dims[d].step;
    first /= dims[d].size;
  }
  const size_t last = dims.size() - 1;
  while (true) {
    const int64_t n = std::min(count, dims[last].size - index[last]);
    CopyLine<kGather>(at, dims[last].step, n, element_bytes, row);
    count -= n;
    if (count == 0) return;
    row += n * element_bytes;
    at -= index[last] * dims[last].step;
    index[last] = 0;
    for (size_t d = last; d-- > 0;) {
      at += dims[d].step;
      if (++index[d] < dims[d].size) break;
      at -= dims[d].step * dims[d].size;
      index[d] = 0;
    }
  }
}

template <typename F>
void ViewSequence::ForEachPiece(const Segment& segment, int64_t begin, int64_t count, F f) const {
  auto piece = std::upper_bound(
      pieces_.begin() + static_cast<std::ptrdiff_t>(segment.first_piece),
      pieces_.begin() + static_cast<std::ptrdiff_t>(segment.end_piece), begin,
      [](int64_t element, const Piece& other) { return element < other.begin; });
  for (--piece; count > 0; ++piece) {
    const int64_t first = begin - piece->begin;
    const int64_t n = std::min(count, piece->numel - first);
    f(*piece, first, n);
    begin += n;
    count -= n;
  }
}

char* ViewSequence::Run(const Segment& segment, int64_t begin, int64_t count) const {
  char* run = nullptr;
  ForEachPiece(segment, begin, count, [&](const Piece& piece, int64_t first, int64_t n) {
    run = n == count && piece.dim_count == 0 ? piece.data + first * segment.element_bytes
                                             : nullptr;
  });
  return run;
}

void ViewSequence::Gather(const Segment& segment, int64_t begin, int64_t count, char* row) const {
  ForEachPiece(segment, begin, count, [&](const Piece& piece, int64_t first, int64_t n) {
    CopyPiece<true>(piece, segment.element_bytes, first, n, row);
    row += n * segment.element_bytes;
  });
}

void ViewSequence::Scatter(const Segment& segment, int64_t begin, int64_t count,
                           const char* row) const {
  // The row is only read: one implementation serves both ways.
  char* next = const_cast<char*>(row);
  ForEachPiece(segment, begin, count, [&](const Piece& piece, int64_t first, int64_t n) {
    CopyPiece<false>(piece, segment.element_bytes, first, n, next);
    next += n * segment.element_bytes;
  });
}

void ViewSequence::ForEachRun(const Segment& segment, int64_t begin, int64_t count,
                              absl::FunctionRef<void(char*, int64_t, int64_t)> f) const {
  int64_t at = 0;
  ForEachPiece(segment, begin, count, [&](const Piece& piece, int64_t first, int64_t n) {
    f(piece.dim_count == 0 ? piece.data + first * segment.element_bytes : nullptr, at, n);
    at += n * segment.element_bytes;
  });
}

}  // namespace leafpack::messages
