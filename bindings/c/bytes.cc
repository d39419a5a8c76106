// The collectives that move plain bytes.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "bindings/c/call.h"
#include "bindings/c/guard.h"
#include "bindings/c/handles.h"
#include "bindings/c/leafpack.h"
#include "bindings/c/options.h"
#include "distributed/tree/collectives.h"

namespace leafpack::c {
namespace {

template <typename Read, typename Run>
leafpack_error* MoveBytes(const leafpack_group* group, CollectiveKind kind,
                          const leafpack_call_options* options, leafpack_result** result,
                          Read&& read, Run&& run) noexcept {
  return Guard([&] {
    const auto held = Need(group, "group");
    auto arguments = Prepare(held->group, kind, [&] {
      NeedPointer(result, "result");
      auto bytes = read(held->group);
      return std::make_pair(std::move(bytes), ReadCallOptions(options));
    });
    GiveResult(ValueOf(run(arguments.first, held->group, arguments.second.ForCall())), result);
    arguments.second.FillStats();
  });
}

}  // namespace
}  // namespace leafpack::c

using namespace leafpack::c;  // NOLINT(google-build-using-namespace): the functions of leafpack.h
using leafpack::CollectiveKind;
using leafpack::Group;

leafpack_error* leafpack_broadcast_bytes(const void* data, size_t size, int32_t root,
                                         const leafpack_group* group,
                                         const leafpack_call_options* options,
                                         leafpack_result** result) {
  return MoveBytes(
      group, CollectiveKind::kBroadcast, options, result,
      [&](const Group& in) {
        return root == in.global_rank().value() ? ReadBytes(data, size) : std::string_view();
      },
      [&](std::string_view bytes, const auto& in, const auto& how) {
        return leafpack::BroadcastBytes(bytes, ReadRoot(root), in, how);
      });
}

leafpack_error* leafpack_all_gather_bytes(const void* data, size_t size,
                                          const leafpack_group* group,
                                          const leafpack_call_options* options,
                                          leafpack_result** result) {
  return MoveBytes(
      group, CollectiveKind::kAllGather, options, result,
      [&](const Group&) { return ReadBytes(data, size); },
      [](std::string_view bytes, const auto& in, const auto& how) {
        return leafpack::AllGatherBytes(bytes, in, how);
      });
}

leafpack_error* leafpack_gather_bytes(const void* data, size_t size, int32_t root,
                                      const leafpack_group* group,
                                      const leafpack_call_options* options,
                                      leafpack_result** result) {
  return MoveBytes(
      group, CollectiveKind::kGather, options, result,
      [&](const Group&) { return ReadBytes(data, size); },
      [&](std::string_view bytes, const auto& in, const auto& how) {
        return leafpack::GatherBytes(bytes, ReadRoot(root), in, how);
      });
}

leafpack_error* leafpack_scatter_bytes(const void* const* data, const size_t* sizes, size_t count,
                                       int32_t root, const leafpack_group* group,
                                       const leafpack_call_options* options,
                                       leafpack_result** result) {
  return MoveBytes(
      group, CollectiveKind::kScatter, options, result,
      [&](const Group& in) {
        std::vector<std::string> bytes;
        if (root != in.global_rank().value()) return bytes;
        if (count > static_cast<size_t>(in.size())) {
          FailArgument("count", absl::StrCat("is ", count, " in a group of ", in.size()));
        }
        NeedArray(data, count, "data");
        NeedArray(sizes, count, "sizes");
        for (size_t i = 0; i < count; ++i) bytes.emplace_back(ReadBytes(data[i], sizes[i]));
        return bytes;
      },
      [&](const std::vector<std::string>& bytes, const auto& in, const auto& how) {
        return leafpack::ScatterBytes(bytes, ReadRoot(root), in, how);
      });
}
