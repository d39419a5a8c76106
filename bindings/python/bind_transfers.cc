// leafpack._C.send and recv, in both forms, and batches of them.
#include <pybind11/pybind11.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "bindings/python/bind.h"
#include "bindings/python/call_arguments.h"
#include "bindings/python/collective_call.h"
#include "bindings/python/errors.h"
#include "distributed/core/group.h"
#include "distributed/core/rank.h"
#include "distributed/p2p/transfer.h"
#include "distributed/tree/call_options.h"
#include "distributed/tree/trees.h"

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

// A transfer whose arguments are read: `item` has all options but those of the call.
struct __attribute__((visibility("hidden"))) ReadTransfer {
  BatchItem item;
  Finish finish;
  py::object keep_alive;
};

// `argument` is what the function calls the other rank, here and below.
ReadTransfer ReadSend(const Group& group, const py::object& tree, const py::object& dst,
                      const py::object& group_dst, const py::object& tag, const char* argument) {
  const GroupRank to = ValueOrRaise(RequiredRoot(dst, group_dst, argument).In(group));
  TransferOptions options;
  options.tag = IntFromPython(tag, "tag");
  return {.item = SendItem{.tree = SentTree(tree), .to = to, .options = std::move(options)},
          .finish = MakeFinish([](const TransferWork&) -> py::object { return py::none(); }),
          .keep_alive = tree};
}

ReadTransfer ReadRecv(const Group& group, const py::object& tree, const py::object& src,
                      const py::object& group_src, const py::object& tag, const char* argument) {
  RecvItem item;
  if (const std::optional<Root> root = RootFromPython(src, group_src, argument)) {
    item.from = ValueOrRaise(root->In(group));
  }
  item.options.tag = IntFromPython(tag, "tag");
  item.tree = WrittenTree(tree);
  const bool tell_source = !item.from.has_value();
  // The handle outlives the call; it holds the group on its own.
  auto finish =
      MakeFinish([tree, tell_source, the_group = group](const TransferWork& work) -> py::object {
        py::object result = tree;
        if (tree.is_none()) {
          result = ReceivedToPython(ValueOrRaise(work.received()), py::handle());
        }
        if (!tell_source) return result;
        const GroupRank source = ValueOrRaise(work.source());
        return py::make_tuple(result, ValueOrRaise(the_group.ToGlobal(source)).value());
      });
  return {.item = std::move(item), .finish = std::move(finish), .keep_alive = tree};
}

absl::StatusOr<TransferWork> Start(const BatchItem& item, const CallOptions& common,
                                   const Group& group) {
  if (const auto* send = std::get_if<SendItem>(&item)) {
    return Isend(send->tree, send->to, group, OptionsOf(common, send->options.tag));
  }
  const auto& recv = std::get<RecvItem>(item);
  const TransferOptions options = OptionsOf(common, recv.options.tag);
  if (!recv.tree.has_value()) return IrecvNew(recv.from, group, options);
  return Irecv(*recv.tree, recv.from, group, options);
}

// Both forms of a transfer: the synchronous one is the other and its Wait.
PreparedCall Prepared(ReadTransfer transfer, const Group& group) {
  PreparedCall call;
  const auto start = [item = std::move(transfer.item), &group](const CallOptions& options) {
    return Start(item, options, group);
  };
  auto started = std::make_shared<std::optional<TransferWork>>();
  call.run = [start, started](const CallOptions& options) -> absl::StatusOr<TreeResult> {
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
  call.start_other = [start, finish = std::move(transfer.finish)](
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
    return Prepared(ReadSend(group.get(), tree, dst, group_dst, tag, "dst"), group.get());
  });
}

py::object RecvPython(const GroupObject& group, const py::object& tree, const py::object& src,
                      const py::object& group_src, const py::object& tag,
                      const CallArguments& arguments) {
  return CallAlone(group, "recv", arguments, [&] {
    return Prepared(ReadRecv(group.get(), tree, src, group_src, tag, "src"), group.get());
  });
}

// `rows`: (is_send, tree, peer, group_peer, tag, timeout) of each op.
py::list BatchPython(const GroupObject& object, const py::list& rows) {
  constexpr std::string_view kName = "batch_isend_irecv";
  const Group& group = object.get();
  std::vector<BatchItem> items;
  std::vector<Finish> finishes;
  std::vector<py::object> keep_alive;
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string where = WhereOf(absl::StrCat(kName, "[", i, "]"), py::none(), group);
    RefuseWhatThrows(group, std::nullopt, where, [&] {
      const auto row = rows[i].cast<py::tuple>();
      const py::object tree = row[1], peer = row[2], group_peer = row[3], tag = row[4];
      ReadTransfer transfer = row[0].cast<bool>()
                                  ? ReadSend(group, tree, peer, group_peer, tag, "peer")
                                  : ReadRecv(group, tree, peer, group_peer, tag, "peer");
      std::visit([&](auto& item) { item.options.timeout = TimeoutFromPython(row[5]); },
                 transfer.item);
      items.push_back(std::move(transfer.item));
      finishes.push_back(std::move(transfer.finish));
      keep_alive.push_back(std::move(transfer.keep_alive));
    });
  }
  std::vector<TransferWork> works = [&] {
    absl::StatusOr<std::vector<TransferWork>> posted;
    {
      py::gil_scoped_release release;
      posted = PostBatch(items, group, kName);
    }
    return ValueOrRaise(std::move(posted));
  }();
  py::list result;
  for (size_t i = 0; i < works.size(); ++i) {
    result.append(WorkToPython(
        std::make_shared<TransferObject>(std::move(works[i]), std::move(finishes[i])),
        std::move(keep_alive[i])));
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
