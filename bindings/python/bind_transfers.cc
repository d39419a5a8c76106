// leafpack._C.send, recv, isend and irecv.
#include <pybind11/pybind11.h>

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "bindings/python/bind.h"
#include "bindings/python/call_arguments.h"
#include "bindings/python/collective_call.h"
#include "bindings/python/errors.h"
#include "distributed/p2p/transfer.h"

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

// Both forms of a transfer: the synchronous one is the other and its Wait.
PreparedCall Prepared(std::function<absl::StatusOr<TransferWork>(const CallOptions&)> start,
                      Finish finish) {
  PreparedCall call;
  auto started = std::make_shared<std::optional<TransferWork>>();
  call.run = [start, started](const CallOptions& options) -> absl::StatusOr<TreeResult> {
    absl::StatusOr<TransferWork> work = start(options);
    if (!work.ok()) return work.status();
    *started = *work;
    absl::Status status = work->Wait(absl::InfiniteDuration(), options.interrupt);
    if (!status.ok()) return status;
    return TreeResult();
  };
  call.finish = [started, finish](const TreeResult&) { return (*finish)(**started); };
  call.start_other =
      [start, finish](
          const CallOptions& options) -> absl::StatusOr<std::shared_ptr<WorkHandle>> {
    absl::StatusOr<TransferWork> work = start(options);
    if (!work.ok()) return work.status();
    return std::make_shared<TransferObject>(*std::move(work), finish);
  };
  return call;
}

py::object SendPython(const GroupObject& group, const py::object& tree, const py::object& dst,
                      const py::object& group_dst, const py::object& tag,
                      const CallArguments& arguments) {
  return CallAlone(group, "send", arguments, [&] {
    const GroupRank to = ValueOrRaise(RequiredRoot(dst, group_dst, "dst").In(group.get()));
    const int64_t number = IntFromPython(tag, "tag");
    const TreeArg argument = SentTree(tree);
    PreparedCall call = Prepared(
        [argument, to, number, &group](const CallOptions& common) {
          TransferOptions options = OptionsOf(common, number);
          options.spec = argument.spec();
          if (argument.dict().has_value()) return Isend(*argument.dict(), to, group.get(), options);
          return Isend(argument.flat(), to, group.get(), options);
        },
        MakeFinish([](const TransferWork&) -> py::object { return py::none(); }));
    call.keep_alive = tree;
    return call;
  });
}

py::object RecvPython(const GroupObject& group, const py::object& tree, const py::object& src,
                      const py::object& group_src, const py::object& tag,
                      const CallArguments& arguments) {
  return CallAlone(group, "recv", arguments, [&] {
    std::optional<PeerRank> from;
    if (const std::optional<Root> root = RootFromPython(src, group_src, "src")) {
      from = PeerRank(ValueOrRaise(root->In(group.get())));
    }
    const int64_t number = IntFromPython(tag, "tag");
    const std::optional<TreeArg> written = WrittenTree(tree);
    const bool tell_source = !from.has_value();
    // The handle outlives the call; it holds the group on its own.
    const Group the_group = group.get();
    PreparedCall call = Prepared(
        [written, from, number, the_group](const CallOptions& common) {
          const TransferOptions options = OptionsOf(common, number);
          if (!written.has_value()) return IrecvNew(from, the_group, options);
          return Irecv(written->flat(), from, the_group, options);
        },
        MakeFinish([tree, tell_source, the_group](const TransferWork& work) -> py::object {
          py::object result = tree;
          if (tree.is_none()) {
            result = ReceivedToPython(ValueOrRaise(work.received()), py::handle());
          }
          if (!tell_source) return result;
          const GroupRank source = ValueOrRaise(work.source());
          return py::make_tuple(result, ValueOrRaise(the_group.ToGlobal(source)).value());
        }));
    call.keep_alive = tree;
    return call;
  });
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
}

}  // namespace leafpack::python
