// Copies between a strided tensor in host memory and its elements in a row. For this folder only.
#ifndef LEAFPACK_TENSORDICT_BUCKET_STRIDED_COPY_H_
#define LEAFPACK_TENSORDICT_BUCKET_STRIDED_COPY_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace leafpack {

// Copies the elements of the strided tensor at `src` to `dst`, in row-major order of the indices.
// `sizes` and `strides` are in elements of `element_bytes` (1, 2, 4, 8 or 16); strides are not
// negative. At most 64 dimensions. The two memories do not overlap. Nothing is allocated.
void GatherStrided(const void* src, absl::Span<const int64_t> sizes,
                   absl::Span<const int64_t> strides, size_t element_bytes, void* dst);

// The way back: writes the elements of the tensor at `dst` and no other byte.
void ScatterStrided(const void* src, absl::Span<const int64_t> sizes,
                    absl::Span<const int64_t> strides, size_t element_bytes, void* dst);

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_BUCKET_STRIDED_COPY_H_
