// The arguments that collectives share, from Python to C++. What is wrong with one is thrown as
// Python's TypeError or ValueError, which names it.
//
// Everything here needs the GIL.
#ifndef LEAFPACK_BINDINGS_PYTHON_CALL_ARGUMENTS_H_
#define LEAFPACK_BINDINGS_PYTHON_CALL_ARGUMENTS_H_

#include <pybind11/pybind11.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/python/tree_reader.h"
#include "distributed/core/reduce_op.h"
#include "distributed/tree/all_reduce.h"
#include "distributed/tree/call_options.h"
#include "distributed/tree/trees.h"
#include "tensordict/bucket/bucket_plan.h"

namespace leafpack::python {

namespace py = pybind11;

// Throws a TypeError: "argument must be expected, not got".
[[noreturn]] void ThrowTypeError(const char* argument, const char* expected, py::handle got);
// The text of a str. Throws a ValueError for one that has no UTF-8 form (a lone surrogate).
std::string_view TextFromPython(py::handle text, const char* argument);
// One of `names`; its index.
int ChoiceFromPython(py::handle value, const char* argument,
                     std::initializer_list<const char*> names);
bool BoolFromPython(py::handle value);
// A whole number, no bool.
int64_t IntFromPython(py::handle value, const char* argument);
// One of 32 bits.
int Int32FromPython(py::handle value, const char* argument);

// What every collective takes by keyword, as Python gave it.
struct __attribute__((visibility("hidden"))) CallArguments {
  py::object timeout, name, check;
  py::object async_op = py::bool_(false);

  CallOptions Parse() const;
};

// What reductions take beside that.
struct __attribute__((visibility("hidden"))) ReductionArguments {
  py::object op, bucket_bytes, leaves, on_failure, stats;

  // Fills all but what CallArguments hold. `choice` says how the tree is to be read; it borrows
  // from this.
  void Parse(AllReduceOptions* options, LeafChoice* choice) const;
};

ReduceOp OpFromPython(py::handle op);
Bucketing BucketingFromPython(py::handle bucket_bytes);

// The rank at the root of a call: `global` (src, dst) is its rank in the job, `in_group`
// (group_src, group_dst) in the group. ValueError if both are given. Nullopt if neither is.
std::optional<Root> RootFromPython(py::handle global, py::handle in_group, const char* argument);
// The same, which must be given.
Root RequiredRoot(py::handle global, py::handle in_group, const char* argument);

// A tree to be sent: leaves, plain values, and what its nodes are. RaiseIfError's exceptions.
TreeArg SentTree(py::handle tree);
// A tree that is written in place; nullopt for None.
std::optional<TreeArg> WrittenTree(py::handle tree);
// A list or tuple of trees.
std::vector<TreeArg> SentTrees(py::handle trees, const char* argument);
// The tree that a collective gave this rank: `given`, if it was written in place, else a new one
// of the kind that was sent. `lifted`: a dimension was put before those of the batches; `times`: the first
// dimensions are so many times as long.
py::object ReceivedToPython(const ReceivedTree& tree, py::handle given, bool lifted = false,
                            int times = 1);

// Bytes of a bytes-like object, valid as long as it.
class __attribute__((visibility("hidden"))) BytesView {
 public:
  BytesView(py::handle data, const char* argument);
  ~BytesView() { PyBuffer_Release(&buffer_); }
  BytesView(const BytesView&) = delete;
  BytesView& operator=(const BytesView&) = delete;
  std::string_view view() const {
    return {static_cast<const char*>(buffer_.buf), static_cast<size_t>(buffer_.len)};
  }

 private:
  Py_buffer buffer_;
};

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_CALL_ARGUMENTS_H_
