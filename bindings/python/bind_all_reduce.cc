// leafpack._C.all_reduce and the handles of asynchronous calls.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "bindings/python/bind.h"
#include "bindings/python/errors.h"
#include "bindings/python/signals.h"
#include "bindings/python/tree_reader.h"
#include "distributed/tree/all_reduce.h"
#include "distributed/tree/tree_work.h"

namespace leafpack::python {
namespace {

[[noreturn]] void TypeErrorFor(const char* argument, const char* expected, py::handle got) {
  throw py::type_error(
      absl::StrCat(argument, " must be ", expected, ", not ", py::repr(got).cast<std::string>()));
}

// The text of a str. Throws what Python says of one that has no UTF-8 form (a lone surrogate).
std::string_view Text(py::handle text) {
  Py_ssize_t size = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes == nullptr) throw py::error_already_set();
  return {bytes, static_cast<size_t>(size)};
}

struct PremulSumOp {
  double factor;
};

ReduceOp OpFromName(std::string_view name) {
  for (const ReduceOp& op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin,
                             ReduceOp::kMax, ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor}) {
    if (ReduceOpName(op.kind) == name) return op;
  }
  if (name == ReduceOpName(ReduceOpKind::kPremulSum)) {
    throw py::value_error("op 'premul_sum' needs a factor: use leafpack.premul_sum(factor)");
  }
  throw py::value_error(absl::StrCat(
      "op must be one of sum, avg, product, min, max, band, bor, bxor, not '", name, "'"));
}

ReduceOp OpFromPython(py::handle op) {
  if (op.is_none()) return ReduceOp::kSum;
  if (PyUnicode_CheckExact(op.ptr())) return OpFromName(Text(op));
  if (py::isinstance<PremulSumOp>(op)) {
    return ReduceOp::PremulSum(op.cast<const PremulSumOp&>().factor);
  }
  if (std::optional<absl::StatusOr<ReduceOp>> torch_op = ReduceOpFromTorch(op)) {
    return ValueOrRaise(*std::move(torch_op));
  }
  TypeErrorFor("op", "a str, None, leafpack.premul_sum(factor) or a torch.distributed.ReduceOp",
               op);
}

Bucketing BucketingFromPython(py::handle bucket_bytes) {
  if (bucket_bytes.is_none()) return Bucketing::PerLeaf();
  if (PyUnicode_CheckExact(bucket_bytes.ptr())) {
    if (Text(bucket_bytes) == "auto") return Bucketing::Auto();
  } else if (PyIndex_Check(bucket_bytes.ptr()) && !PyBool_Check(bucket_bytes.ptr())) {
    py::int_ number = py::reinterpret_steal<py::int_>(PyNumber_Index(bucket_bytes.ptr()));
    if (!number) throw py::error_already_set();
    int overflow = 0;
    const long long bytes = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
    if (bytes <= 0 || overflow != 0) {
      throw py::value_error(
          absl::StrCat("bucket_bytes must be more than zero and fit in 64 bits, not ",
                       py::repr(number).cast<std::string>()));
    }
    return Bucketing::MaxBytes(bytes);
  }
  TypeErrorFor("bucket_bytes", "'auto', None (one message per leaf) or a number of bytes",
               bucket_bytes);
}

// One of `names`; its index.
int ChoiceFromPython(py::handle value, const char* argument,
                     std::initializer_list<const char*> names) {
  std::string all;
  int index = 0;
  for (const char* name : names) {
    if (PyUnicode_Check(value.ptr()) && Text(value) == name) return index;
    absl::StrAppend(&all, all.empty() ? "'" : ", '", name, "'");
    ++index;
  }
  throw py::value_error(absl::StrCat(argument, " must be one of ", all, ", not ",
                                     py::repr(value).cast<std::string>()));
}

// Arguments of a call as Python gave them.
struct Arguments {
  py::object op, async_op, bucket_bytes, timeout, leaves, name, on_failure, check, stats;
};

void ParseArguments(const Arguments& arguments, AllReduceOptions* options, LeafChoice* choice,
                    bool* async_op) {
  const int async = PyObject_IsTrue(arguments.async_op.ptr());
  if (async < 0) throw py::error_already_set();
  *async_op = async != 0;
  if (!arguments.stats.is_none() && !PyDict_Check(arguments.stats.ptr())) {
    TypeErrorFor("stats", "a dict or None", arguments.stats);
  }
  options->op = OpFromPython(arguments.op);
  options->bucketing = BucketingFromPython(arguments.bucket_bytes);
  options->timeout = TimeoutFromPython(arguments.timeout);
  if (!arguments.name.is_none()) {
    if (!PyUnicode_Check(arguments.name.ptr())) TypeErrorFor("name", "a str", arguments.name);
    options->name = std::string(Text(arguments.name));
  }
  options->on_failure =
      ChoiceFromPython(arguments.on_failure, "on_failure", {"report", "restore"}) == 0
          ? OnFailure::kReport
          : OnFailure::kRestore;
  constexpr CheckMode kModes[] = {CheckMode::kAlways, CheckMode::kFirst, CheckMode::kOff};
  options->check = kModes[ChoiceFromPython(arguments.check, "check", {"always", "first", "off"})];
  if (PyUnicode_Check(arguments.leaves.ptr())) {
    if (ChoiceFromPython(arguments.leaves, "leaves", {"all", "floating"}) == 1) {
      options->leaves = LeafFilter::Floating();
      choice->kind = LeafChoice::Kind::kTensors;
    }
  } else if (PyCallable_Check(arguments.leaves.ptr())) {
    // The choice is made here, with the GIL; the filter only tells the other ranks of one.
    options->leaves = LeafFilter::Where([](const NestedKey&, const at::Tensor&) { return true; });
    choice->kind = LeafChoice::Kind::kPredicate;
    choice->predicate = arguments.leaves.ptr();
  } else {
    TypeErrorFor("leaves", "'all', 'floating' or a function of a path and a leaf",
                 arguments.leaves);
  }
}

void Refuse(const Group& group, const absl::Status& reason) {
  py::gil_scoped_release release;
  // The caller raises its own error, which is better than one about telling the others.
  RefuseCall(group, CollectiveKind::kAllReduce, reason).IgnoreError();
}

// The handle of a call, with the tree that it works on.
class WorkObject {
 public:
  WorkObject(TreeWork work, py::object tree) : work_(std::move(work)), tree_(std::move(tree)) {}
  ~WorkObject() {
    py::gil_scoped_release release;
    work_.reset();
  }
  WorkObject(const WorkObject&) = delete;
  WorkObject& operator=(const WorkObject&) = delete;

  const TreeWork& get() const { return *work_; }
  const py::object& tree() const { return tree_; }
  bool IsDone() const {
    py::gil_scoped_release release;
    return work_->IsDone();
  }

 private:
  std::optional<TreeWork> work_;
  py::object tree_;
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
    const size_t size = work_->get().size();
    if (index_ < size) WaitWithSignals(work_->get().bucket(index_), timeout);
    if (index_ + 1 >= size) WaitWithSignals(work_->get(), timeout);
  }
  bool IsDone() const {
    if (index_ + 1 >= work_->get().size()) return work_->IsDone();
    py::gil_scoped_release release;
    return work_->get().bucket(index_).IsDone();
  }
  int64_t bytes() const {
    return index_ < work_->get().size() ? work_->get().bucket(index_).bytes() : 0;
  }
  std::vector<std::string> paths() const {
    if (index_ < work_->get().size()) return work_->get().bucket(index_).paths();
    return {};
  }

 private:
  std::shared_ptr<WorkObject> work_;
  size_t index_;
};

size_t WorkCount(const WorkObject& work) { return std::max<size_t>(1, work.get().size()); }

py::dict StatsToPython(const AllReduceStats& stats) {
  py::dict result;
  result["prepare"] = stats.prepare;
  result["agree"] = stats.agree;
  result["pack"] = stats.pack;
  result["communicate"] = stats.communicate;
  result["unpack"] = stats.unpack;
  result["total"] = stats.total;
  result["leaves"] = stats.leaves;
  result["bytes"] = stats.bytes;
  result["buckets"] = stats.buckets;
  return result;
}

py::object AllReducePython(const GroupObject& group, const py::object& tree,
                           const Arguments& arguments) {
  AllReduceOptions options;
  bool async_op = false;
  absl::StatusOr<FlatTree> read;
  try {
    LeafChoice choice;
    ParseArguments(arguments, &options, &choice, &async_op);
    read = ReadTree(tree.ptr(), choice);
  } catch (const py::error_already_set& error) {
    Refuse(group.get(), StatusFromException(error));
    throw;
  } catch (const py::builtin_exception& error) {
    Refuse(group.get(), absl::InvalidArgumentError(error.what()));
    throw;
  } catch (const std::exception& error) {  // libtorch's errors, no memory
    Refuse(group.get(), absl::InternalError(error.what()));
    throw;
  }
  if (!read.ok()) {
    Refuse(group.get(), read.status());
    Raise(read.status());
  }
  const FlatTree flat = *std::move(read);

  if (async_op) {
    absl::StatusOr<TreeWork> work = [&] {
      py::gil_scoped_release release;
      return AllReduceAsync(flat, group.get(), options);
    }();
    if (!work.ok()) Raise(work.status());
    return py::cast(std::make_shared<WorkObject>(*std::move(work), tree));
  }

  SignalCheck signals;
  AllReduceStats stats;
  options.interrupt = signals.check();
  if (!arguments.stats.is_none()) options.stats = &stats;
  absl::Status status;
  {
    py::gil_scoped_release release;
    status = AllReduce(flat, group.get(), options);
  }
  // A call that was granted before Ctrl-C has written its result.
  signals.RaiseIfInterrupted();
  RaiseIfError(status);
  if (!arguments.stats.is_none()) arguments.stats.attr("update")(StatsToPython(stats));
  return py::none();
}

}  // namespace

void BindAllReduce(py::module_& module) {
  py::class_<PremulSumOp>(module, "PremulSum", "A sum of values times a factor of each rank.")
      .def_readonly("factor", &PremulSumOp::factor)
      .def("__repr__", [](const PremulSumOp& op) {
        return absl::StrCat("leafpack.premul_sum(", op.factor, ")");
      });
  module.def(
      "premul_sum", [](double factor) { return PremulSumOp{factor}; }, py::arg("factor"),
      "The op that multiplies this rank's values with `factor` and adds them up over the ranks.");

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
      .def_property_readonly("paths", [](const BucketObject& self) {
        py::list paths;
        for (const std::string& path : self.paths()) paths.append(path);
        return paths;
      });

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
          [](const WorkObject& self) {
            WaitWithSignals(self.get(), absl::InfiniteDuration());
            return self.tree();
          },
          "Waits, then returns the tree of the call.")
      .def("cancel",
           [](const WorkObject& self) {
             py::gil_scoped_release release;
             self.get().Cancel();
           })
      .def("stats", [](const WorkObject& self) { return StatsToPython(self.get().stats()); })
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

  // No argument but the group has a C++ type: a wrong one must be refused to the other ranks too.
  module.def("all_reduce",
             [](const GroupObject& group, py::object tree, py::object op, py::object async_op,
                py::object bucket_bytes, py::object timeout, py::object leaves, py::object name,
                py::object on_failure, py::object check, py::object stats) {
               return AllReducePython(
                   group, tree,
                   {std::move(op), std::move(async_op), std::move(bucket_bytes), std::move(timeout),
                    std::move(leaves), std::move(name), std::move(on_failure), std::move(check),
                    std::move(stats)});
             });
}

}  // namespace leafpack::python
