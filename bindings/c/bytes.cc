// The collectives that move plain bytes.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"

#include "bindings/c/call.h"
#include "bindings/c/guard.h"
#include "bindings/c/handles.h"
#include "bindings/c/leafpack.h"
#include "distributed/tree/collectives.h"

namespace leafpack::c {
namespace {

bool IsRoot(int32_t root, const leafpack_group* group) {
  return root == Need(group, "group")->group.global_rank().value();
}

// What the other ranks give is not looked at.
std::string_view ReadBytesOfRoot(const void* data, size_t size, int32_t root,
                                 const leafpack_group* group) {
  return IsRoot(root, group) ? ReadBytes(data, size) : std::string_view();
}

std::vector<std::string> ReadPartsOfRoot(const void* const* data, const size_t* sizes, size_t count,
                                         int32_t root, const leafpack_group* group) {
  std::vector<std::string> parts;
  if (!IsRoot(root, group)) return parts;
  const int members = Need(group, "group")->group.size();
  if (count > static_cast<size_t>(members)) {
    FailArgument("count", absl::StrCat("is ", count, " in a group of ", members));
  }
  NeedArray(data, count, "data");
  NeedArray(sizes, count, "sizes");
  for (size_t i = 0; i < count; ++i) parts.emplace_back(ReadBytes(data[i], sizes[i]));
  return parts;
}

}  // namespace
}  // namespace leafpack::c

using namespace leafpack::c;  // NOLINT(google-build-using-namespace): the functions of leafpack.h
using leafpack::CollectiveKind;

leafpack_error* leafpack_broadcast_bytes(const void* data, size_t size, int32_t root,
                                         const leafpack_group* group,
                                         const leafpack_call_options* options,
                                         leafpack_result** result) {
  return Move(
      group, CollectiveKind::kBroadcast, options, nullptr, result,
      [&] { return ReadBytesOfRoot(data, size, root, group); },
      [&](std::string_view bytes, const auto& in, const auto& how) {
        return leafpack::BroadcastBytes(bytes, ReadRoot(root), in, how);
      });
}

leafpack_error* leafpack_broadcast_bytes_async(const void* data, size_t size, int32_t root,
                                               const leafpack_group* group,
                                               const leafpack_call_options* options,
                                               leafpack_work** work) {
  return StartMove(
      group, CollectiveKind::kBroadcast, options, work,
      [&] { return ReadBytesOfRoot(data, size, root, group); },
      [&](std::string_view bytes, const auto& in, const auto& how) {
        return leafpack::BroadcastBytesAsync(bytes, ReadRoot(root), in, how);
      });
}

leafpack_error* leafpack_all_gather_bytes(const void* data, size_t size,
                                          const leafpack_group* group,
                                          const leafpack_call_options* options,
                                          leafpack_result** result) {
  return Move(
      group, CollectiveKind::kAllGather, options, nullptr, result,
      [&] { return ReadBytes(data, size); },
      [](std::string_view bytes, const auto& in, const auto& how) {
        return leafpack::AllGatherBytes(bytes, in, how);
      });
}

leafpack_error* leafpack_all_gather_bytes_async(const void* data, size_t size,
                                                const leafpack_group* group,
                                                const leafpack_call_options* options,
                                                leafpack_work** work) {
  return StartMove(
      group, CollectiveKind::kAllGather, options, work, [&] { return ReadBytes(data, size); },
      [](std::string_view bytes, const auto& in, const auto& how) {
        return leafpack::AllGatherBytesAsync(bytes, in, how);
      });
}

leafpack_error* leafpack_gather_bytes(const void* data, size_t size, int32_t root,
                                      const leafpack_group* group,
                                      const leafpack_call_options* options,
                                      leafpack_result** result) {
  return Move(
      group, CollectiveKind::kGather, options, nullptr, result,
      [&] { return ReadBytes(data, size); },
      [&](std::string_view bytes, const auto& in, const auto& how) {
        return leafpack::GatherBytes(bytes, ReadRoot(root), in, how);
      });
}

leafpack_error* leafpack_gather_bytes_async(const void* data, size_t size, int32_t root,
                                            const leafpack_group* group,
                                            const leafpack_call_options* options,
                                            leafpack_work** work) {
  return StartMove(
      group, CollectiveKind::kGather, options, work, [&] { return ReadBytes(data, size); },
      [&](std::string_view bytes, const auto& in, const auto& how) {
        return leafpack::GatherBytesAsync(bytes, ReadRoot(root), in, how);
      });
}

leafpack_error* leafpack_scatter_bytes(const void* const* data, const size_t* sizes, size_t count,
                                       int32_t root, const leafpack_group* group,
                                       const leafpack_call_options* options,
                                       leafpack_result** result) {
  return Move(
      group, CollectiveKind::kScatter, options, nullptr, result,
      [&] { return ReadPartsOfRoot(data, sizes, count, root, group); },
      [&](const std::vector<std::string>& parts, const auto& in, const auto& how) {
        return leafpack::ScatterBytes(parts, ReadRoot(root), in, how);
      });
}

leafpack_error* leafpack_scatter_bytes_async(const void* const* data, const size_t* sizes,
                                             size_t count, int32_t root,
                                             const leafpack_group* group,
                                             const leafpack_call_options* options,
                                             leafpack_work** work) {
  return StartMove(
      group, CollectiveKind::kScatter, options, work,
      [&] { return ReadPartsOfRoot(data, sizes, count, root, group); },
      [&](const std::vector<std::string>& parts, const auto& in, const auto& how) {
        return leafpack::ScatterBytesAsync(parts, ReadRoot(root), in, how);
      });
}
