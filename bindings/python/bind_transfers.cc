// leafpack._C.send and recv, in both forms, and batches of them.
#include <c10/core/GradMode.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "bindings/python/bind.h"
#include "bindings/python/call_arguments.h"
#include "bindings/python/collective_call.h"
#include "bindings/python/errors.h"
#include "distributed/core/error.h"
#include "distributed/core/group.h"
#include "distributed/core/rank.h"
#include "distributed/p2p/transfer.h"
#include "distributed/tree/call_options.h"
#include "distributed/tree/trees.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"

namespace leafpack::python {
namespace {

TransferOptions OptionsOf(const CallOptions& common, int64_t tag) {
  TransferOptions options;
  options.tag = tag;
  options.timeout = common.timeout;
  options.name = common.name;
  options.interrupt = common.interrupt;
  return options;
}

// What a transfer returns to Python, once it is over. Shared, since copies are made without the GIL.
using Finish = std::shared_ptr<const std::function<py::object(const TransferWork&)>>;

template <typename F>
Finish MakeFinish(F&& finish) {
  return std::make_shared<const std::function<py::object(const TransferWork&)>>(
      std::forward<F>(finish));
}

class TransferObject : public WorkHandle {
 public:
  TransferObject(TransferWork work, Finish finish)
      : work_(std::move(work)), finish_(std::move(finish)) {}
  ~TransferObject() override {
    py::gil_scoped_release release;
    work_.reset();
  }

  absl::Status Wait(absl::Duration timeout, const InterruptCheck& interrupt) const override {
    return work_->Wait(timeout, interrupt);
  }
  bool IsDone() const override { return work_->IsDone(); }
  void Cancel() const override { work_->Cancel(); }
  py::object Result() const override { return (*finish_)(*work_); }

 private:
  std::optional<TransferWork> work_;
  const Finish finish_;
};

// A transfer whose arguments are read.
struct __attribute__((visibility("hidden"))) ReadTransfer {
  // Posts it. Without the GIL.
  std::function<absl::StatusOr<TransferWork>(const CallOptions&)> start;
  Finish finish;
  // The leaves that it sends or writes; null of a receive into nothing.
  std::shared_ptr<const TreeArg> tree;
  std::optional<GroupRank> peer;
  py::object keep_alive;
};

// `argument` is what the function calls the other rank, here and below.
ReadTransfer ReadSend(const Group& group, const py::object& tree, const py::object& dst,
                      const py::object& group_dst, const py::object& tag, const char* argument) {
  ReadTransfer transfer;
  const GroupRank to = ValueOrRaise(RequiredRoot(dst, group_dst, argument).In(group));
  const int64_t number = IntFromPython(tag, "tag");
  auto sent = std::make_shared<const TreeArg>(SentTree(tree));
  transfer.start = [sent, to, number, &group](const CallOptions& common) {
    TransferOptions options = OptionsOf(common, number);
    options.spec = sent->spec();
    if (sent->dict().has_value()) return Isend(*sent->dict(), to, group, options);
    return Isend(sent->flat(), to, group, options);
  };
  transfer.finish = MakeFinish([](const TransferWork&) -> py::object { return py::none(); });
  transfer.tree = std::move(sent);
  transfer.peer = to;
  transfer.keep_alive = tree;
  return transfer;
}

ReadTransfer ReadRecv(const Group& group, const py::object& tree, const py::object& src,
                      const py::object& group_src, const py::object& tag, const char* argument) {
  ReadTransfer transfer;
  std::optional<PeerRank> from;
  if (const std::optional<Root> root = RootFromPython(src, group_src, argument)) {
    transfer.peer = ValueOrRaise(root->In(group));
    from = PeerRank(*transfer.peer);
  }
  const int64_t number = IntFromPython(tag, "tag");
  if (std::optional<TreeArg> written = WrittenTree(tree)) {
    transfer.tree = std::make_shared<const TreeArg>(*std::move(written));
  }
  // The handle outlives the call; it holds the group on its own.
  const Group the_group = group;
  transfer.start = [written = transfer.tree, from, number, the_group](const CallOptions& common) {
    const TransferOptions options = OptionsOf(common, number);
    if (written == nullptr) return IrecvNew(from, the_group, options);
    return Irecv(written->flat(), from, the_group, options);
  };
  const bool tell_source = !from.has_value();
  transfer.finish =
      MakeFinish([tree, tell_source, the_group](const TransferWork& work) -> py::object {
        py::object result = tree;
        if (tree.is_none()) {
          result = ReceivedToPython(ValueOrRaise(work.received()), py::handle());
        }
        if (!tell_source) return result;
        const GroupRank source = ValueOrRaise(work.source());
        return py::make_tuple(result, ValueOrRaise(the_group.ToGlobal(source)).value());
      });
  transfer.keep_alive = tree;
  return transfer;
}

// Both forms of a transfer: the synchronous one is the other and its Wait.
PreparedCall Prepared(ReadTransfer transfer) {
  PreparedCall call;
  auto started = std::make_shared<std::optional<TransferWork>>();
  call.run = [start = transfer.start,
              started](const CallOptions& options) -> absl::StatusOr<TreeResult> {
    absl::StatusOr<TransferWork> work = start(options);
    if (!work.ok()) return work.status();
    *started = *work;
    absl::Status status = work->Wait(absl::InfiniteDuration(), options.interrupt);
    if (!status.ok()) return status;
    return TreeResult();
  };
  call.finish = [started, finish = transfer.finish](const TreeResult&) {
    return (*finish)(**started);
  };
  call.start_other =
      [start = std::move(transfer.start), finish = std::move(transfer.finish)](
          const CallOptions& options) -> absl::StatusOr<std::shared_ptr<WorkHandle>> {
    absl::StatusOr<TransferWork> work = start(options);
    if (!work.ok()) return work.status();
    return std::make_shared<TransferObject>(*std::move(work), finish);
  };
  call.keep_alive = std::move(transfer.keep_alive);
  return call;
}

py::object SendPython(const GroupObject& group, const py::object& tree, const py::object& dst,
                      const py::object& group_dst, const py::object& tag,
                      const CallArguments& arguments) {
  return CallAlone(group, "send", arguments, [&] {
    return Prepared(ReadSend(group.get(), tree, dst, group_dst, tag, "dst"));
  });
}

py::object RecvPython(const GroupObject& group, const py::object& tree, const py::object& src,
                      const py::object& group_src, const py::object& tag,
                      const CallArguments& arguments) {
  return CallAlone(group, "recv", arguments, [&] {
    return Prepared(ReadRecv(group.get(), tree, src, group_src, tag, "src"));
  });
}

// What posting the transfer would refuse, whatever the other ranks do.
absl::Status CheckTransfer(const ReadTransfer& transfer, bool is_send, const Group& group) {
  if (group.size() == 1) {
    return absl::InvalidArgumentError("there is no other rank in the group");
  }
  if (transfer.peer == group.rank()) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", group.global_rank().value(), " cannot ",
                                                   is_send ? "send to" : "receive from",
                                                   " itself"));
  }
  if (transfer.tree == nullptr) return absl::OkStatus();
  const FlatTree& flat = transfer.tree->flat();
  // A tree that has a description has a layout.
  if (transfer.tree->spec() == nullptr) {
    if (const absl::StatusOr<Layout> layout = Layout::Of(flat); !layout.ok()) {
      return layout.status();
    }
  }
  for (size_t i = 0; i < flat.size(); ++i) {
    const at::Tensor& leaf = flat.leaves[i];
    if (!leaf.defined()) continue;
    if (!leaf.device().is_cpu()) {
      const std::string path = (*flat.paths)[i].ToString();
      return WithErrorDetails(
          absl::UnimplementedError(absl::StrCat("leaf ", path, " is on ", leaf.device().str(),
                                                "; only leaves in CPU memory can be sent")),
          {.kind = ErrorKind::kUnsupported, .path = path});
    }
    if (!is_send && c10::GradMode::is_enabled() && leaf.requires_grad() && !leaf.is_leaf()) {
      const std::string path = (*flat.paths)[i].ToString();
      return WithErrorDetails(
          absl::InvalidArgumentError(absl::StrCat(
              "leaf ", path, ": was computed by autograd (it has a grad_fn) and would be written in "
                             "place; receive with grad mode off, or detach it")),
          {.path = path});
    }
  }
  return absl::OkStatus();
}

// `rows`: (is_send, tree, peer, group_peer, tag, timeout) of each op. Nothing is posted before all are
// checked. What fails all the same (no memory to pack a leaf, a group that is shut down) gives up those
// that were posted before it.
py::list BatchPython(const GroupObject& object, const py::list& rows) {
  const Group& group = object.get();
  const auto where = [&group](size_t i) {
    return WhereOf(absl::StrCat("batch_isend_irecv[", i, "]"), py::none(), group);
  };
  std::vector<ReadTransfer> transfers;
  std::vector<CallOptions> options(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    RefuseWhatThrows(group, std::nullopt, where(i), [&] {
      const auto row = rows[i].cast<py::tuple>();
      const py::object tree = row[1], peer = row[2], group_peer = row[3], tag = row[4];
      const bool is_send = row[0].cast<bool>();
      options[i].timeout = TimeoutFromPython(row[5]);
      transfers.push_back(is_send ? ReadSend(group, tree, peer, group_peer, tag, "peer")
                                  : ReadRecv(group, tree, peer, group_peer, tag, "peer"));
      RaiseIfError(CheckTransfer(transfers.back(), is_send, group));
    });
  }
  std::vector<TransferWork> works;
  absl::Status failed;
  size_t posted = 0;
  {
    py::gil_scoped_release release;
    for (; posted < transfers.size(); ++posted) {
      absl::StatusOr<TransferWork> work = transfers[posted].start(options[posted]);
      if (!work.ok()) {
        failed = work.status();
        break;
      }
      works.push_back(*std::move(work));
    }
    if (!failed.ok()) {
      for (const TransferWork& work : works) work.Cancel();
      works.clear();
    }
  }
  RaiseIfError(AnnotateStatus(failed, where(posted)));
  py::list result;
  for (size_t i = 0; i < works.size(); ++i) {
    result.append(WorkToPython(
        std::make_shared<TransferObject>(std::move(works[i]), std::move(transfers[i].finish)),
        std::move(transfers[i].keep_alive)));
  }
  return result;
}

}  // namespace

void BindTransfers(py::module_& module) {
  module.def("send",
             [](const GroupObject& group, py::object tree, py::object dst, py::object group_dst,
                py::object tag, py::object async_op, py::object timeout, py::object name,
                py::object check) {
               return SendPython(group, tree, dst, group_dst, tag,
                                 {timeout, name, check, async_op});
             });
  module.def("recv",
             [](const GroupObject& group, py::object tree, py::object src, py::object group_src,
                py::object tag, py::object async_op, py::object timeout, py::object name,
                py::object check) {
               return RecvPython(group, tree, src, group_src, tag,
                                 {timeout, name, check, async_op});
             });
  module.def("batch_isend_irecv", &BatchPython);
}

}  // namespace leafpack::python
