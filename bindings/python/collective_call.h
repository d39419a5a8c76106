// One way for every collective from Python to C++ and back: a wrong argument or a tree that cannot
// be read is refused to the other ranks, waits run without the GIL and can be interrupted, and an
// asynchronous call gives a TreeWork.
#ifndef LEAFPACK_BINDINGS_PYTHON_COLLECTIVE_CALL_H_
#define LEAFPACK_BINDINGS_PYTHON_COLLECTIVE_CALL_H_

#include <pybind11/pybind11.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "bindings/python/bind.h"
#include "bindings/python/call_arguments.h"
#include "distributed/core/engine.h"
#include "distributed/tree/call_options.h"
#include "distributed/tree/tree_work.h"
#include "distributed/tree/trees.h"

namespace leafpack::python {

// A call or a transfer in flight, as a Python TreeWork holds it. Wait, IsDone and Cancel go without
// the GIL; it is destroyed with it, and lets go of it where that may wait.
class WorkHandle {
 public:
  virtual ~WorkHandle() = default;
  virtual absl::Status Wait(absl::Duration timeout, const InterruptCheck& interrupt) const = 0;
  virtual bool IsDone() const = 0;
  virtual void Cancel() const = 0;
  // With the GIL, after Wait returned OK: what the synchronous call returns.
  virtual py::object Result() const = 0;
  // Its messages and figures; null if it has none to tell of.
  virtual const TreeWork* collective() const { return nullptr; }
};

// A call whose arguments are read. The functions run at most once, one of the two.
struct __attribute__((visibility("hidden"))) PreparedCall {
  // Without the GIL. `options` are those that every collective has.
  std::function<absl::StatusOr<TreeResult>(const CallOptions& options)> run;
  // Empty if there is no asynchronous form. `start` of collectives, `start_other` of what else has
  // handles of its own.
  std::function<absl::StatusOr<TreeWork>(const CallOptions& options)> start;
  std::function<absl::StatusOr<std::shared_ptr<WorkHandle>>(const CallOptions& options)>
      start_other;
  // With the GIL: what the call returns to Python, or TreeWork.result() of an asynchronous one.
  std::function<py::object(const TreeResult& result)> finish;
  // The synchronous call returns None all the same.
  bool returns_none = false;
  // What the call works on, kept as long as it may run.
  py::object keep_alive;
};

// What a synchronous call takes that an asynchronous one does not.
struct __attribute__((visibility("hidden"))) SyncArguments {
  py::object stats = py::none();  // a dict that is filled
};

// Runs `prepare`, which reads Python's arguments of the group's next call. What it throws is thrown on, and told
// to the other ranks where `kind` is given. Errors of leafpack's own begin as those of C++ do, with `where`:
// "all_reduce 'name' on rank 3". Needs the GIL.
void RefuseWhatThrows(const Group& group, std::optional<CollectiveKind> kind,
                      std::string_view where, absl::FunctionRef<void()> prepare);

// "split on rank 3"; `name` is what the user calls the call, if it is a str.
std::string WhereOf(std::string_view call, py::handle name, const Group& group);

// Makes the call that `prepare` reads, with the GIL, from Python's arguments; what it throws is
// told to the other ranks. `arguments` are parsed first. Returns what finish gives, or a TreeWork.
// `call` is the name of the Python function.
py::object CallCollective(const GroupObject& group, CollectiveKind kind, std::string_view call,
                          const CallArguments& arguments,
                          absl::FunctionRef<PreparedCall()> prepare,
                          const SyncArguments& sync = {});

// The same for calls that concern two ranks only, or none: nobody else is told of what `prepare`
// throws.
py::object CallAlone(const GroupObject& group, std::string_view call,
                     const CallArguments& arguments, absl::FunctionRef<PreparedCall()> prepare);

// The TreeWork of what was started; it keeps `keep_alive`, on which that works. Needs the GIL.
py::object WorkToPython(std::shared_ptr<WorkHandle> handle, py::object keep_alive);

// TreeWork and BucketWork.
void BindWork(py::module_& module);

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_COLLECTIVE_CALL_H_
