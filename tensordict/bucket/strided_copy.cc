#include "tensordict/bucket/strided_copy.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/types/span.h"

namespace leafpack {
namespace {

constexpr size_t kMaxDims = 64;
// Edge of the square tiles in which two dimensions are swapped, in elements.
constexpr int64_t kTile = 16;

// One dimension after merging: steps in bytes on the strided and on the row-major side.
struct Dim {
  int64_t count;
  int64_t strided;
  int64_t row;
};

struct Dims {
  std::array<Dim, kMaxDims> dim;
  size_t n = 0;
};

// Dimensions in row-major order without those of one index, neighbours merged where both sides go
// on in one step.
Dims Merge(absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides,
           size_t element_bytes) {
  Dims dims;
  for (size_t k = 0; k < sizes.size(); ++k) {
    if (sizes[k] == 1) continue;
    const int64_t step = strides[k] * static_cast<int64_t>(element_bytes);
    if (dims.n > 0 && dims.dim[dims.n - 1].strided == step * sizes[k]) {
      Dim& last = dims.dim[dims.n - 1];
      last.count *= sizes[k];
      last.strided = step;
    } else {
      dims.dim[dims.n++] = {sizes[k], step, 0};
    }
  }
  auto row = static_cast<int64_t>(element_bytes);
  for (size_t k = dims.n; k-- > 0;) {
    dims.dim[k].row = row;
    row *= dims.dim[k].count;
  }
  return dims;
}

// Calls `inner(strided offset, row offset)` for all indices of the first `n` dimensions.
template <typename Inner>
void Odometer(const Dims& dims, size_t n, Inner inner) {
  std::array<int64_t, kMaxDims> index;
  std::fill_n(index.begin(), n, int64_t{0});
  int64_t strided = 0;
  int64_t row = 0;
  while (true) {
    inner(strided, row);
    size_t k = n;
    for (; k > 0; --k) {
      const Dim& dim = dims.dim[k - 1];
      strided += dim.strided;
      row += dim.row;
      if (++index[k - 1] < dim.count) break;
      strided -= dim.strided * dim.count;
      row -= dim.row * dim.count;
      index[k - 1] = 0;
    }
    if (k == 0) return;
  }
}

// `kGather`: from the strided side to the row-major side, else back.
template <bool kGather, size_t kBytes>
inline void CopyElement(char* strided, char* row) {
  if constexpr (kGather) {
    std::memcpy(row, strided, kBytes);
  } else {
    std::memcpy(strided, row, kBytes);
  }
}

template <bool kGather, size_t kBytes>
void CopyLine(char* strided, char* row, const Dim& dim) {
  for (int64_t i = 0; i < dim.count; ++i) {
    CopyElement<kGather, kBytes>(strided + i * dim.strided, row + i * static_cast<int64_t>(kBytes));
  }
}

// `across` steps finely on the strided side, `along` on the row-major side: tiles keep both in
// cache.
template <bool kGather, size_t kBytes>
void CopyTiles(char* strided, char* row, const Dim& across, const Dim& along) {
  for (int64_t a = 0; a < across.count; a += kTile) {
    const int64_t a_end = std::min(a + kTile, across.count);
    for (int64_t b = 0; b < along.count; b += kTile) {
      const int64_t b_end = std::min(b + kTile, along.count);
      for (int64_t i = a; i < a_end; ++i) {
        char* s = strided + i * across.strided;
        char* r = row + i * across.row;
        for (int64_t j = b; j < b_end; ++j) {
          CopyElement<kGather, kBytes>(s + j * along.strided, r + j * static_cast<int64_t>(kBytes));
        }
      }
    }
  }
}

template <bool kGather, size_t kBytes>
void Copy(Dims dims, char* strided, char* row) {
  if (dims.n == 0) {
    CopyElement<kGather, kBytes>(strided, row);
    return;
  }
  const Dim last = dims.dim[dims.n - 1];
  if (last.strided == static_cast<int64_t>(kBytes)) {
    const size_t run = static_cast<size_t>(last.count) * kBytes;
    Odometer(dims, dims.n - 1, [&](int64_t s, int64_t r) {
      if constexpr (kGather) {
        std::memcpy(row + r, strided + s, run);
      } else {
        std::memcpy(strided + s, row + r, run);
      }
    });
    return;
  }
  // The dimension with the finest step on the strided side.
  size_t fine = 0;
  for (size_t k = 1; k < dims.n; ++k) {
    if (dims.dim[k].strided < dims.dim[fine].strided) fine = k;
  }
  if (fine == dims.n - 1) {
    Odometer(dims, dims.n - 1,
             [&](int64_t s, int64_t r) { CopyLine<kGather, kBytes>(strided + s, row + r, last); });
    return;
  }
  const Dim across = dims.dim[fine];
  for (size_t k = fine; k + 2 < dims.n; ++k) dims.dim[k] = dims.dim[k + 1];
  Odometer(dims, dims.n - 2, [&](int64_t s, int64_t r) {
    CopyTiles<kGather, kBytes>(strided + s, row + r, across, last);
  });
}

template <bool kGather>
void Dispatch(char* strided, absl::Span<const int64_t> sizes, absl::Span<const int64_t> strides,
              size_t element_bytes, char* row) {
  for (const int64_t size : sizes) {
    if (size == 0) return;
  }
  const Dims dims = Merge(sizes, strides, element_bytes);
  switch (element_bytes) {
    case 1:
      return Copy<kGather, 1>(dims, strided, row);
    case 2:
      return Copy<kGather, 2>(dims, strided, row);
    case 4:
      return Copy<kGather, 4>(dims, strided, row);
    case 8:
      return Copy<kGather, 8>(dims, strided, row);
    default:
      return Copy<kGather, 16>(dims, strided, row);
  }
}

}  // namespace

// Each side is only read or only written, so the casts that share one implementation are safe.
void GatherStrided(const void* src, absl::Span<const int64_t> sizes,
                   absl::Span<const int64_t> strides, size_t element_bytes, void* dst) {
  Dispatch<true>(static_cast<char*>(const_cast<void*>(src)), sizes, strides, element_bytes,
                 static_cast<char*>(dst));
}

void ScatterStrided(const void* src, absl::Span<const int64_t> sizes,
                    absl::Span<const int64_t> strides, size_t element_bytes, void* dst) {
  Dispatch<false>(static_cast<char*>(dst), sizes, strides, element_bytes,
                  static_cast<char*>(const_cast<void*>(src)));
}

}  // namespace leafpack
