// send, recv and their likes.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/status/status.h"

#include "bindings/c/call.h"
#include "bindings/c/guard.h"
#include "bindings/c/handles.h"
#include "bindings/c/leafpack.h"
#include "bindings/c/options.h"
#include "bindings/c/work.h"
#include "distributed/core/error.h"
#include "distributed/p2p/transfer.h"

namespace leafpack::c {
namespace {

using Transfer = leafpack_work::Transfer;

PeerRank ReadPeer(int32_t rank) { return PeerRank(GlobalRank(rank)); }

std::optional<PeerRank> ReadSource(int32_t rank) {
  if (rank == LEAFPACK_ANY_RANK) return std::nullopt;
  return ReadPeer(rank);
}

Transfer StartSend(const TensorDict& tree, int32_t to, const Group& in,
                   const TransferOptions& options) {
  return {.work = ValueOf(Isend(tree, ReadPeer(to), in, options)),
          .kind = Transfer::Kind::kSend,
          .group = in};
}

Transfer StartRecv(const std::optional<TensorDict>& into, int32_t from, const Group& in,
                   const TransferOptions& options) {
  if (!into.has_value()) {
    return {.work = ValueOf(IrecvNew(ReadSource(from), in, options)),
            .kind = Transfer::Kind::kReceiveTree,
            .group = in};
  }
  return {.work = ValueOf(Irecv(*into, ReadSource(from), in, options)),
          .kind = Transfer::Kind::kReceiveInto,
          .group = in,
          .tree = into};
}

Transfer StartRecvBytes(int32_t from, const Group& in, const TransferOptions& options) {
  return {.work = ValueOf(IrecvBytes(ReadSource(from), in, options)),
          .kind = Transfer::Kind::kReceiveBytes,
          .group = in};
}

std::optional<TensorDict> ReadInto(const leafpack_tree* tree) {
  if (tree == nullptr) return std::nullopt;
  return Need(tree, "tree")->tree;
}

// What `read`, which reads arguments, returns, and the options. Errors begin as those of the transfer do.
template <typename Read>
auto ReadTransfer(std::string_view verb, const Group& in, const leafpack_transfer_options* options,
                  Read&& read) {
  absl::Status status;
  try {
    auto given = std::forward<Read>(read)();
    return std::make_pair(std::move(given), ReadTransferOptions(options));
  } catch (...) {
    status = StatusOfException();
  }
  Fail(AnnotateStatus(status, Where(verb, in)));
}

// The synchronous transfer is the other one and its wait.
template <typename Read, typename Start>
leafpack_error* Transact(std::string_view verb, const leafpack_group* group,
                         const leafpack_transfer_options* options, leafpack_result** result,
                         Read&& read, Start&& start) noexcept {
  return Guard([&] {
    const Group in = Need(group, "group")->group;
    const auto arguments = ReadTransfer(verb, in, options, std::forward<Read>(read));
    const Transfer transfer = start(arguments.first, in, arguments.second);
    CheckOk(transfer.work.Wait(absl::InfiniteDuration(), arguments.second.interrupt));
    if (result != nullptr) *result = MakeHandle(ResultOf(transfer));
  });
}

template <typename Read, typename Start>
leafpack_error* Post(std::string_view verb, const leafpack_group* group,
                     const leafpack_transfer_options* options, leafpack_work** work, Read&& read,
                     Start&& start) noexcept {
  return Guard([&] {
    const Group in = Need(group, "group")->group;
    const auto arguments = ReadTransfer(verb, in, options, [&] {
      NeedPointer(work, "work");
      return read();
    });
    *work = MakeHandle(leafpack_work{start(arguments.first, in, arguments.second)});
  });
}

}  // namespace
}  // namespace leafpack::c

using namespace leafpack::c;  // NOLINT(google-build-using-namespace): the functions of leafpack.h

leafpack_error* leafpack_send(const leafpack_tree* tree, int32_t to, const leafpack_group* group,
                              const leafpack_transfer_options* options) {
  return Transact(
      "send", group, options, nullptr, [&] { return Need(tree, "tree")->tree; },
      [&](const auto& dict, const auto& in, const auto& how) {
        return StartSend(dict, to, in, how);
      });
}

leafpack_error* leafpack_isend(const leafpack_tree* tree, int32_t to, const leafpack_group* group,
                               const leafpack_transfer_options* options, leafpack_work** work) {
  return Post(
      "send", group, options, work, [&] { return Need(tree, "tree")->tree; },
      [&](const auto& dict, const auto& in, const auto& how) {
        return StartSend(dict, to, in, how);
      });
}

leafpack_error* leafpack_recv(const leafpack_tree* tree, int32_t from, const leafpack_group* group,
                              const leafpack_transfer_options* options, leafpack_result** result) {
  return Transact(
      "recv", group, options, result,
      [&] {
        if (tree == nullptr) NeedPointer(result, "result");
        return ReadInto(tree);
      },
      [&](const auto& into, const auto& in, const auto& how) {
        return StartRecv(into, from, in, how);
      });
}

leafpack_error* leafpack_irecv(const leafpack_tree* tree, int32_t from,
                               const leafpack_group* group,
                               const leafpack_transfer_options* options, leafpack_work** work) {
  return Post(
      "recv", group, options, work, [&] { return ReadInto(tree); },
      [&](const auto& into, const auto& in, const auto& how) {
        return StartRecv(into, from, in, how);
      });
}

leafpack_error* leafpack_send_bytes(const void* data, size_t size, int32_t to,
                                    const leafpack_group* group,
                                    const leafpack_transfer_options* options) {
  return Guard([&] {
    const leafpack::Group in = Need(group, "group")->group;
    const auto arguments =
        ReadTransfer("send", in, options, [&] { return ReadBytes(data, size); });
    CheckOk(leafpack::SendBytes(arguments.first, ReadPeer(to), in, arguments.second));
  });
}

leafpack_error* leafpack_isend_bytes(const void* data, size_t size, int32_t to,
                                     const leafpack_group* group,
                                     const leafpack_transfer_options* options,
                                     leafpack_work** work) {
  return Post(
      "send", group, options, work, [&] { return std::string(ReadBytes(data, size)); },
      [&](const std::string& bytes, const auto& in, const auto& how) -> Transfer {
        return {.work = ValueOf(leafpack::IsendBytes(bytes, ReadPeer(to), in, how)),
                .kind = Transfer::Kind::kSend,
                .group = in};
      });
}

leafpack_error* leafpack_recv_bytes(int32_t from, const leafpack_group* group,
                                    const leafpack_transfer_options* options,
                                    leafpack_result** result) {
  return Transact(
      "recv", group, options, result, [&] { return NeedPointer(result, "result"); },
      [&](const auto&, const auto& in, const auto& how) { return StartRecvBytes(from, in, how); });
}

leafpack_error* leafpack_irecv_bytes(int32_t from, const leafpack_group* group,
                                     const leafpack_transfer_options* options,
                                     leafpack_work** work) {
  return Post(
      "recv", group, options, work, [] { return std::monostate(); },
      [&](const auto&, const auto& in, const auto& how) { return StartRecvBytes(from, in, how); });
}
