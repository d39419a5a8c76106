// send, recv and their likes.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "bindings/c/call.h"
#include "bindings/c/guard.h"
#include "bindings/c/handles.h"
#include "bindings/c/leafpack.h"
#include "bindings/c/options.h"
#include "bindings/c/work.h"
#include "distributed/p2p/transfer.h"

namespace leafpack::c {
namespace {

using Transfer = leafpack_work::Transfer;

PeerRank ReadPeer(int32_t rank) { return PeerRank(GlobalRank(rank)); }

std::optional<PeerRank> ReadSource(int32_t rank) {
  if (rank == LEAFPACK_ANY_RANK) return std::nullopt;
  return ReadPeer(rank);
}

Transfer StartSend(const leafpack_tree* tree, int32_t to, const leafpack_group* group,
                   const TransferOptions& options) {
  const Group in = Need(group, "group")->group;
  return {.work = ValueOf(Isend(Need(tree, "tree")->tree, ReadPeer(to), in, options)),
          .kind = Transfer::Kind::kSend,
          .group = in};
}

Transfer StartRecv(const leafpack_tree* tree, int32_t from, const leafpack_group* group,
                   const TransferOptions& options) {
  const Group in = Need(group, "group")->group;
  if (tree == nullptr) {
    return {.work = ValueOf(IrecvNew(ReadSource(from), in, options)),
            .kind = Transfer::Kind::kReceiveTree,
            .group = in};
  }
  const TensorDict into = Need(tree, "tree")->tree;
  return {.work = ValueOf(Irecv(into, ReadSource(from), in, options)),
          .kind = Transfer::Kind::kReceiveInto,
          .group = in,
          .tree = into};
}

Transfer StartSendBytes(const void* data, size_t size, int32_t to, const leafpack_group* group,
                        const TransferOptions& options) {
  const Group in = Need(group, "group")->group;
  return {.work = ValueOf(
              IsendBytes(std::string(ReadBytes(data, size)), ReadPeer(to), in, options)),
          .kind = Transfer::Kind::kSend,
          .group = in};
}

Transfer StartRecvBytes(int32_t from, const leafpack_group* group,
                        const TransferOptions& options) {
  const Group in = Need(group, "group")->group;
  return {.work = ValueOf(IrecvBytes(ReadSource(from), in, options)),
          .kind = Transfer::Kind::kReceiveBytes,
          .group = in};
}

// The synchronous transfer is the other one and its wait.
template <typename Start>
leafpack_error* Transact(const leafpack_transfer_options* options, leafpack_result** result,
                         Start&& start) noexcept {
  return Guard([&] {
    const TransferOptions read = ReadTransferOptions(options);
    const Transfer transfer = start(read);
    CheckOk(transfer.work.Wait(absl::InfiniteDuration(), read.interrupt));
    if (result != nullptr) *result = MakeHandle(ResultOf(transfer));
  });
}

template <typename Start>
leafpack_error* Post(const leafpack_transfer_options* options, leafpack_work** work,
                     Start&& start) noexcept {
  return Guard([&] {
    NeedPointer(work, "work");
    *work = MakeHandle(leafpack_work{start(ReadTransferOptions(options))});
  });
}

}  // namespace
}  // namespace leafpack::c

using namespace leafpack::c;  // NOLINT(google-build-using-namespace): the functions of leafpack.h
using leafpack::TransferOptions;

leafpack_error* leafpack_send(const leafpack_tree* tree, int32_t to, const leafpack_group* group,
                              const leafpack_transfer_options* options) {
  return Transact(options, nullptr,
                  [&](const TransferOptions& how) { return StartSend(tree, to, group, how); });
}

leafpack_error* leafpack_isend(const leafpack_tree* tree, int32_t to, const leafpack_group* group,
                               const leafpack_transfer_options* options, leafpack_work** work) {
  return Post(options, work,
              [&](const TransferOptions& how) { return StartSend(tree, to, group, how); });
}

leafpack_error* leafpack_recv(const leafpack_tree* tree, int32_t from, const leafpack_group* group,
                              const leafpack_transfer_options* options, leafpack_result** result) {
  return Transact(options, result, [&](const TransferOptions& how) {
    if (tree == nullptr) NeedPointer(result, "result");
    return StartRecv(tree, from, group, how);
  });
}

leafpack_error* leafpack_irecv(const leafpack_tree* tree, int32_t from,
                               const leafpack_group* group,
                               const leafpack_transfer_options* options, leafpack_work** work) {
  return Post(options, work,
              [&](const TransferOptions& how) { return StartRecv(tree, from, group, how); });
}

leafpack_error* leafpack_send_bytes(const void* data, size_t size, int32_t to,
                                    const leafpack_group* group,
                                    const leafpack_transfer_options* options) {
  return Guard([&] {
    const TransferOptions read = ReadTransferOptions(options);
    CheckOk(leafpack::SendBytes(ReadBytes(data, size), ReadPeer(to), Need(group, "group")->group,
                                read));
  });
}

leafpack_error* leafpack_isend_bytes(const void* data, size_t size, int32_t to,
                                     const leafpack_group* group,
                                     const leafpack_transfer_options* options,
                                     leafpack_work** work) {
  return Post(options, work, [&](const TransferOptions& how) {
    return StartSendBytes(data, size, to, group, how);
  });
}

leafpack_error* leafpack_recv_bytes(int32_t from, const leafpack_group* group,
                                    const leafpack_transfer_options* options,
                                    leafpack_result** result) {
  return Transact(options, result, [&](const TransferOptions& how) {
    NeedPointer(result, "result");
    return StartRecvBytes(from, group, how);
  });
}

leafpack_error* leafpack_irecv_bytes(int32_t from, const leafpack_group* group,
                                     const leafpack_transfer_options* options,
                                     leafpack_work** work) {
  return Post(options, work,
              [&](const TransferOptions& how) { return StartRecvBytes(from, group, how); });
}
