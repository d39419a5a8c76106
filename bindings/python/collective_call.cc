#include "bindings/python/collective_call.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "bindings/python/errors.h"
#include "bindings/python/signals.h"
#include "bindings/python/status_exception.h"

namespace leafpack::python {
namespace {

void Refuse(const Group& group, std::optional<CollectiveKind> kind, const absl::Status& reason) {
  if (!kind.has_value()) return;
  py::gil_scoped_release release;
  // The caller raises its own error, which is better than one about telling the others.
  RefuseCall(group, *kind, reason).IgnoreError();
}

class CollectiveHandle : public WorkHandle {
 public:
  CollectiveHandle(TreeWork work, std::function<py::object(const TreeResult&)> finish)
      : work_(std::move(work)), finish_(std::move(finish)) {}
  ~CollectiveHandle() override {
    py::gil_scoped_release release;
    work_.reset();
  }

  absl::Status Wait(absl::Duration timeout, const InterruptCheck& interrupt) const override {
    return work_->Wait(timeout, interrupt);
  }
  bool IsDone() const override { return work_->IsDone(); }
  void Cancel() const override { work_->Cancel(); }
  py::object Result() const override { return finish_(work_->result()); }
  const TreeWork* collective() const override { return &*work_; }

 private:
  std::optional<TreeWork> work_;
  const std::function<py::object(const TreeResult&)> finish_;
};

// What Python holds: the handle, and what the call works on.
class WorkObject {
 public:
  WorkObject(std::shared_ptr<WorkHandle> handle, py::object keep_alive)
      : handle_(std::move(handle)), keep_alive_(std::move(keep_alive)) {}

  const WorkHandle& get() const { return *handle_; }
  // Empty of a transfer.
  size_t num_messages() const {
    return handle_->collective() == nullptr ? 0 : handle_->collective()->size();
  }
  leafpack::BucketWork message(size_t i) const { return handle_->collective()->bucket(i); }
  // After the end. Made once: every call of result() returns the same object.
  py::object Result() {
    if (!result_) result_ = handle_->Result();
    return result_;
  }
  bool IsDone() const {
    py::gil_scoped_release release;
    return handle_->IsDone();
  }

 private:
  std::shared_ptr<WorkHandle> handle_;
  py::object keep_alive_;
  py::object result_;
};

template <typename W>
void WaitWithSignals(const W& work, absl::Duration timeout) {
  SignalCheck signals;
  absl::Status status;
  {
    py::gil_scoped_release release;
    status = work.Wait(timeout, signals.check());
  }
  signals.RaiseIfInterrupted();
  RaiseIfError(status);
}

// One message of a call, or, when the tree travelled with its digest, the whole of it. The last one
// waits for the whole call, so that waiting for each of them is waiting for the call.
class BucketObject {
 public:
  BucketObject(std::shared_ptr<WorkObject> work, size_t index)
      : work_(std::move(work)), index_(index) {}

  void Wait(absl::Duration timeout) const {
    const size_t size = work_->num_messages();
    if (index_ < size) WaitWithSignals(work_->message(index_), timeout);
    if (index_ + 1 >= size) WaitWithSignals(work_->get(), timeout);
  }
  bool IsDone() const {
    if (index_ + 1 >= work_->num_messages()) return work_->IsDone();
    py::gil_scoped_release release;
    return work_->message(index_).IsDone();
  }
  int64_t bytes() const {
    return index_ < work_->num_messages() ? work_->message(index_).bytes() : 0;
  }
  std::vector<std::string> paths() const {
    if (index_ < work_->num_messages()) return work_->message(index_).paths();
    return {};
  }

 private:
  std::shared_ptr<WorkObject> work_;
  size_t index_;
};

size_t WorkCount(const WorkObject& work) { return std::max<size_t>(1, work.num_messages()); }

py::dict StatsToPython(const CollectiveStats& stats) {
  py::dict result;
  result["prepare"] = stats.prepare;
  result["agree"] = stats.agree;
  result["pack"] = stats.pack;
  result["communicate"] = stats.communicate;
  result["unpack"] = stats.unpack;
  result["total"] = stats.total;
  result["leaves"] = stats.leaves;
  result["skipped"] = stats.skipped;
  result["bytes"] = stats.bytes;
  result["buckets"] = stats.buckets;
  return result;
}

py::list TextsToPython(const std::vector<std::string>& texts) {
  py::list result;
  for (const std::string& text : texts) {
    result.append(py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
        text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace")));
  }
  return result;
}

// Nobody is told of a refusal where there is no `kind`.
py::object Call(const Group& group, std::optional<CollectiveKind> kind, std::string_view name,
                const CallArguments& arguments, absl::FunctionRef<PreparedCall()> prepare,
                const SyncArguments& sync) {
  CallOptions options;
  PreparedCall call;
  bool async = false;
  RefuseWhatThrows(group, kind, WhereOf(name, arguments.name, group), [&] {
    async = BoolFromPython(arguments.async_op);
    options = arguments.Parse();
    call = prepare();
  });

  if (async) {
    std::shared_ptr<WorkHandle> handle;
    if (call.start_other) {
      absl::StatusOr<std::shared_ptr<WorkHandle>> started = [&] {
        py::gil_scoped_release release;
        return call.start_other(options);
      }();
      handle = ValueOrRaise(std::move(started));
    } else {
      absl::StatusOr<TreeWork> work = [&] {
        py::gil_scoped_release release;
        return call.start(options);
      }();
      handle = std::make_shared<CollectiveHandle>(ValueOrRaise(std::move(work)),
                                                  std::move(call.finish));
    }
    return WorkToPython(std::move(handle), std::move(call.keep_alive));
  }

  SignalCheck signals;
  CollectiveStats stats;
  options.interrupt = signals.check();
  if (!sync.stats.is_none()) options.stats = &stats;
  absl::StatusOr<TreeResult> result = [&] {
    py::gil_scoped_release release;
    return call.run(options);
  }();
  // A call that was granted before Ctrl-C has written its result.
  signals.RaiseIfInterrupted();
  if (!result.ok()) Raise(result.status());
  if (!sync.stats.is_none()) sync.stats.attr("update")(StatsToPython(stats));
  py::object finished = call.finish(*result);
  return call.returns_none ? py::none() : finished;
}

}  // namespace

std::string WhereOf(std::string_view call, py::handle name, const Group& group) {
  std::string text(call);
  Py_ssize_t size = 0;
  const char* bytes =
      PyUnicode_Check(name.ptr()) ? PyUnicode_AsUTF8AndSize(name.ptr(), &size) : nullptr;
  if (bytes == nullptr) {
    PyErr_Clear();
  } else if (size > 0) {
    const std::string_view given(bytes, static_cast<size_t>(size));
    absl::StrAppend(&text, " '", absl::Utf8SafeCEscape(given), "'");
  }
  return absl::StrCat(text, " on rank ", group.global_rank().value());
}

void RefuseWhatThrows(const Group& group, std::optional<CollectiveKind> kind,
                      std::string_view where, absl::FunctionRef<void()> prepare) {
  try {
    prepare();
  } catch (const StatusException& error) {
    const absl::Status status = AnnotateStatus(error.status(), where);
    Refuse(group, kind, status);
    Raise(status);
  } catch (const py::error_already_set& error) {  // the user's own
    Refuse(group, kind, AnnotateStatus(StatusFromException(error), where));
    throw;
  } catch (const py::value_error& error) {
    const absl::Status status =
        AnnotateStatus(absl::InvalidArgumentError(error.what()), where);
    Refuse(group, kind, status);
    Raise(status);
  } catch (const py::type_error& error) {
    const std::string text = absl::StrCat(where, ": ", error.what());
    Refuse(group, kind, absl::InvalidArgumentError(text));
    throw py::type_error(text);
  } catch (const py::builtin_exception& error) {
    Refuse(group, kind, AnnotateStatus(absl::InvalidArgumentError(error.what()), where));
    throw;
  } catch (const std::exception& error) {  // libtorch's errors, no memory
    Refuse(group, kind, AnnotateStatus(absl::InternalError(error.what()), where));
    throw;
  }
}

py::object CallCollective(const GroupObject& group, CollectiveKind kind, std::string_view call,
                          const CallArguments& arguments,
                          absl::FunctionRef<PreparedCall()> prepare, const SyncArguments& sync) {
  return Call(group.get(), kind, call, arguments, prepare, sync);
}

py::object CallAlone(const GroupObject& group, std::string_view call,
                     const CallArguments& arguments, absl::FunctionRef<PreparedCall()> prepare) {
  return Call(group.get(), std::nullopt, call, arguments, prepare, {});
}

py::object WorkToPython(std::shared_ptr<WorkHandle> handle, py::object keep_alive) {
  return py::cast(std::make_shared<WorkObject>(std::move(handle), std::move(keep_alive)));
}

void BindWork(py::module_& module) {
  py::class_<BucketObject, std::shared_ptr<BucketObject>>(module, "BucketWork",
                                                          "One message of a TreeWork.")
      .def(
          "wait",
          [](const BucketObject& self, py::object timeout) {
            self.Wait(TimeoutFromPython(timeout));
          },
          py::arg("timeout") = py::none())
      .def("is_completed", &BucketObject::IsDone)
      .def_property_readonly("bytes", &BucketObject::bytes)
      .def_property_readonly(
          "paths", [](const BucketObject& self) { return TextsToPython(self.paths()); });

  py::class_<WorkObject, std::shared_ptr<WorkObject>>(
      module, "TreeWork", "The handle of a collective on a tree that was started.")
      .def(
          "wait",
          [](const WorkObject& self, py::object timeout) {
            WaitWithSignals(self.get(), TimeoutFromPython(timeout));
          },
          py::arg("timeout") = py::none(),
          "Waits until all leaves hold their result. `timeout` bounds this wait, not the call.")
      .def("is_completed", &WorkObject::IsDone)
      .def(
          "result",
          [](WorkObject& self) {
            WaitWithSignals(self.get(), absl::InfiniteDuration());
            return self.Result();
          },
          "Waits, then returns what the synchronous call returns; of all_reduce and reduce, the\n"
          "tree.")
      .def("cancel",
           [](const WorkObject& self) {
             py::gil_scoped_release release;
             self.get().Cancel();
           })
      .def("stats",
           [](const WorkObject& self) {
             const TreeWork* work = self.get().collective();
             return StatsToPython(work != nullptr ? work->stats() : CollectiveStats());
           })
      .def_property_readonly(
          "skipped_paths",
          [](const WorkObject& self) {
            const TreeWork* work = self.get().collective();
            return TextsToPython(work != nullptr ? work->skipped_paths()
                                                 : std::vector<std::string>());
          },
          "Printable paths of the leaves that are no tensors and were compared only.")
      .def("__len__", &WorkCount)
      .def("__iter__",
           [](const std::shared_ptr<WorkObject>& self) {
             py::list works;
             for (size_t i = 0; i < WorkCount(*self); ++i) {
               works.append(std::make_shared<BucketObject>(self, i));
             }
             return py::iter(works);
           })
      .def("__getitem__", [](const std::shared_ptr<WorkObject>& self, py::ssize_t index) {
        const auto size = static_cast<py::ssize_t>(WorkCount(*self));
        if (index < 0) index += size;
        if (index < 0 || index >= size) throw py::index_error("no such message");
        return std::make_shared<BucketObject>(self, static_cast<size_t>(index));
      });
}

}  // namespace leafpack::python
