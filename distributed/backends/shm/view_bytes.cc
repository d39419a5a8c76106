#include "distributed/backends/shm/view_bytes.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <c10/core/ScalarType.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace leafpack::shm {
namespace {

constexpr size_t kMaxDims = 64;

// `n` elements of kBytes, `stride` bytes apart in the leaf.
template <bool kGather, size_t kBytes>
void CopyElements(char* leaf, int64_t stride, int64_t n, char* memory) {
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (kGather) {
      std::memcpy(memory + i * static_cast<int64_t>(kBytes), leaf + i * stride, kBytes);
    } else {
      std::memcpy(leaf + i * stride, memory + i * static_cast<int64_t>(kBytes), kBytes);
    }
  }
}

template <bool kGather>
void CopyBlocks(char* leaf, int64_t stride, int64_t n, int64_t block, char* memory) {
  switch (block) {
    case 1: return CopyElements<kGather, 1>(leaf, stride, n, memory);
    case 2: return CopyElements<kGather, 2>(leaf, stride, n, memory);
    case 4: return CopyElements<kGather, 4>(leaf, stride, n, memory);
    case 8: return CopyElements<kGather, 8>(leaf, stride, n, memory);
    case 16: return CopyElements<kGather, 16>(leaf, stride, n, memory);
    default: break;
  }
  for (int64_t i = 0; i < n; ++i) {
    char* at = leaf + i * stride;
    if (kGather) {
      std::memcpy(memory + i * block, at, static_cast<size_t>(block));
    } else {
      std::memcpy(at, memory + i * block, static_cast<size_t>(block));
    }
  }
}

}  // namespace

absl::StatusOr<ViewBytes> ViewBytes::Of(absl::Span<const LeafView> views) {
  ViewBytes result;
  result.items_.reserve(views.size());
  int64_t end = 0;
  for (const LeafView& view : views) {
    if (!view.device.is_cpu()) {
      return absl::UnimplementedError(
          absl::StrCat("shared memory moves CPU memory, not ", view.device.str()));
    }
    if (view.sizes.size() != view.strides.size() || view.sizes.size() > kMaxDims) {
      return absl::InternalError(absl::StrCat("a view has ", view.sizes.size(), " sizes and ",
                                              view.strides.size(), " strides"));
    }
    int64_t block = static_cast<int64_t>(c10::elementSize(view.dtype));
    int64_t bytes = block;
    const int64_t element = block;
    for (size_t d = 0; d < view.sizes.size(); ++d) {
      if (view.sizes[d] < 0 || view.strides[d] < 0) {
        return absl::InternalError("a view with a negative size or stride");
      }
      bytes *= view.sizes[d];
    }
    if (bytes == 0) continue;
    // From the innermost dimension outwards: grow the block, then join dimensions that can be walked as
    // one.
    const uint32_t first = static_cast<uint32_t>(result.dims_.size());
    for (size_t d = view.sizes.size(); d-- > 0;) {
      const Dim dim{view.sizes[d], view.strides[d] * element};
      if (dim.size == 1) continue;
      if (result.dims_.size() == first && dim.stride == block) {
        block *= dim.size;
      } else if (result.dims_.size() > first &&
                 dim.stride == result.dims_.back().stride * result.dims_.back().size) {
        result.dims_.back().size *= dim.size;
      } else {
        result.dims_.push_back(dim);
      }
    }
    end += bytes;
    result.items_.push_back({static_cast<char*>(view.data), end, block, bytes, first,
                             static_cast<uint32_t>(result.dims_.size()) - first});
  }
  return result;
}

size_t ViewBytes::ItemAt(int64_t begin) const {
  return static_cast<size_t>(
      std::upper_bound(items_.begin(), items_.end(), begin,
                       [](int64_t at, const Item& item) { return at < item.end; }) -
      items_.begin());
}

void ViewBytes::Gather(int64_t begin, int64_t count, char* to) const {
  Copy<true>(begin, count, to);
}

void ViewBytes::Scatter(const char* from, int64_t begin, int64_t count) const {
  // Copy reads only; one body serves both ways.
  Copy<false>(begin, count, const_cast<char*>(from));
}

ViewBytes::Piece ViewBytes::PieceAt(int64_t begin, int64_t most) const {
  const Item& item = items_[ItemAt(begin)];
  const int64_t bytes = std::min(most, item.end - begin);
  return {item.dims == 0 ? item.data + (begin - (item.end - item.bytes)) : nullptr, bytes};
}

template <bool kGather>
void ViewBytes::Copy(int64_t begin, int64_t count, char* memory) const {
  if (count == 0) return;
  for (size_t i = ItemAt(begin); count > 0; ++i) {
    const Item& item = items_[i];
    const int64_t offset = begin - (item.end - item.bytes);
    const int64_t n = std::min(count, item.end - begin);
    if (item.dims > 0) {
      CopyStrided<kGather>(item, offset, n, memory);
    } else if (kGather) {
      std::memcpy(memory, item.data + offset, static_cast<size_t>(n));
    } else {
      std::memcpy(item.data + offset, memory, static_cast<size_t>(n));
    }
    begin += n;
    memory += n;
    count -= n;
  }
}

template <bool kGather>
void ViewBytes::CopyStrided(const Item& item, int64_t begin, int64_t count, char* memory) const {
  const Dim* dims = dims_.data() + item.first_dim;  // innermost first
  std::array<int64_t, kMaxDims> index;
  int64_t rest = begin / item.block;
  int64_t within = begin % item.block;
  int64_t outer = 0;  // bytes from the begin of the leaf, by all dimensions but the innermost
  for (uint32_t d = 0; d < item.dims; ++d) {
    index[d] = rest % dims[d].size;
    rest /= dims[d].size;
    if (d > 0) outer += index[d] * dims[d].stride;
  }
  while (count > 0) {
    char* at = item.data + outer + index[0] * dims[0].stride;
    int64_t copied;
    if (within > 0 || count < item.block) {
      copied = std::min(count, item.block - within);
      if (kGather) {
        std::memcpy(memory, at + within, static_cast<size_t>(copied));
      } else {
        std::memcpy(at + within, memory, static_cast<size_t>(copied));
      }
      within = 0;
      ++index[0];
    } else {
      const int64_t blocks = std::min(dims[0].size - index[0], count / item.block);
      CopyBlocks<kGather>(at, dims[0].stride, blocks, item.block, memory);
      copied = blocks * item.block;
      index[0] += blocks;
    }
    memory += copied;
    count -= copied;
    if (index[0] < dims[0].size || count == 0) continue;
    index[0] = 0;
    for (uint32_t d = 1; d < item.dims; ++d) {
      outer += dims[d].stride;
      if (++index[d] < dims[d].size) break;
      outer -= dims[d].size * dims[d].stride;
      index[d] = 0;
    }
  }
}

}  // namespace leafpack::shm
