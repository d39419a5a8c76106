// leafpack._C.all_reduce, reduce and reduce_scatter.
#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "bindings/python/bind.h"
#include "bindings/python/call_arguments.h"
#include "bindings/python/collective_call.h"
#include "bindings/python/errors.h"
#include "bindings/python/premul_sum.h"
#include "bindings/python/tree_reader.h"
#include "distributed/tree/all_reduce.h"
#include "distributed/tree/reduce.h"

namespace leafpack::python {
namespace {

// The options of a reduction, with those that every collective has.
AllReduceOptions Merged(AllReduceOptions options, const CallOptions& common) {
  options.timeout = common.timeout;
  options.name = common.name;
  options.check = common.check;
  options.interrupt = common.interrupt;
  options.stats = common.stats;
  return options;
}

absl::StatusOr<TreeResult> Nothing(const absl::Status& status) {
  if (!status.ok()) return status;
  return TreeResult();
}

PreparedCall InPlace(py::object tree) {
  PreparedCall call;
  call.finish = [tree](const TreeResult&) { return tree; };
  call.returns_none = true;
  call.keep_alive = std::move(tree);
  return call;
}

py::object AllReducePython(const GroupObject& group, const py::object& tree,
                           const CallArguments& arguments, const ReductionArguments& reduction) {
  auto prepare = [&] {
    AllReduceOptions options;
    LeafChoice choice;
    reduction.Parse(&options, &choice);
    auto flat = std::make_shared<FlatTree>(ValueOrRaise(ReadTree(tree.ptr(), choice)));
    PreparedCall call = InPlace(tree);
    call.run = [flat, options, &group](const CallOptions& common) {
      return Nothing(AllReduce(*flat, group.get(), Merged(options, common)));
    };
    call.start = [flat, options, &group](const CallOptions& common) {
      return AllReduceAsync(*flat, group.get(), Merged(options, common));
    };
    return call;
  };
  return CallCollective(group, CollectiveKind::kAllReduce, "all_reduce", arguments, prepare,
                        {reduction.stats});
}

py::object ReducePython(const GroupObject& group, const py::object& tree, const py::object& dst,
                        const py::object& group_dst, const CallArguments& arguments,
                        const ReductionArguments& reduction) {
  auto prepare = [&] {
    AllReduceOptions options;
    LeafChoice choice;
    reduction.Parse(&options, &choice);
    const Root root = RequiredRoot(dst, group_dst, "dst");
    auto flat = std::make_shared<FlatTree>(ValueOrRaise(ReadTree(tree.ptr(), choice)));
    PreparedCall call = InPlace(tree);
    call.run = [flat, options, root, &group](const CallOptions& common) {
      return Nothing(Reduce(*flat, root, group.get(), Merged(options, common)));
    };
    call.start = [flat, options, root, &group](const CallOptions& common) {
      return ReduceAsync(*flat, root, group.get(), Merged(options, common));
    };
    return call;
  };
  return CallCollective(group, CollectiveKind::kReduce, "reduce", arguments, prepare,
                        {reduction.stats});
}

py::object ReduceScatterPython(const GroupObject& group, const py::object& trees,
                               const CallArguments& arguments,
                               const ReductionArguments& reduction) {
  auto prepare = [&] {
    AllReduceOptions options;
    LeafChoice choice;
    reduction.Parse(&options, &choice);
    if (!PyList_Check(trees.ptr()) && !PyTuple_Check(trees.ptr())) {
      ThrowTypeError("trees", "a list or tuple of trees, one for each rank", trees);
    }
    const py::tuple items = py::reinterpret_steal<py::tuple>(PySequence_Tuple(trees.ptr()));
    if (!items) throw py::error_already_set();
    auto flat = std::make_shared<std::vector<FlatTree>>();
    for (py::handle item : items) flat->push_back(ValueOrRaise(ReadTree(item.ptr(), choice)));
    const auto rank = static_cast<size_t>(group.get().rank().value());
    // With another number of trees the call fails anyway.
    py::object own = rank < items.size() ? py::object(items[rank]) : py::none();
    PreparedCall call;
    call.finish = [own](const TreeResult&) { return own; };
    call.keep_alive = items;
    call.run = [flat, options, &group](const CallOptions& common) {
      return Nothing(ReduceScatter(*flat, group.get(), Merged(options, common)));
    };
    call.start = [flat, options, &group](const CallOptions& common) {
      return ReduceScatterAsync(*flat, group.get(), Merged(options, common));
    };
    return call;
  };
  return CallCollective(group, CollectiveKind::kReduceScatter, "reduce_scatter", arguments,
                        prepare, {reduction.stats});
}

}  // namespace

void BindReductions(py::module_& module) {
  py::class_<PremulSumOp>(module, "PremulSum", "A sum of values times a factor of each rank.")
      .def_readonly("factor", &PremulSumOp::factor)
      .def("__repr__", [](const PremulSumOp& op) {
        return absl::StrCat("leafpack.premul_sum(", op.factor, ")");
      });
  module.def(
      "premul_sum", [](double factor) { return PremulSumOp{factor}; }, py::arg("factor"),
      "The op that multiplies this rank's values with `factor` and adds them up over the ranks.");

  // No argument but the group has a C++ type: a wrong one must be refused to the other ranks too.
  module.def("all_reduce",
             [](const GroupObject& group, py::object tree, py::object op, py::object async_op,
                py::object bucket_bytes, py::object timeout, py::object leaves, py::object name,
                py::object on_failure, py::object check, py::object stats) {
               return AllReducePython(group, tree, {timeout, name, check, async_op},
                                      {op, bucket_bytes, leaves, on_failure, stats});
             });
  module.def("reduce", [](const GroupObject& group, py::object tree, py::object dst,
                          py::object group_dst, py::object op, py::object async_op,
                          py::object bucket_bytes, py::object leaves, py::object on_failure,
                          py::object stats, py::object timeout, py::object name,
                          py::object check) {
    return ReducePython(group, tree, dst, group_dst, {timeout, name, check, async_op},
                        {op, bucket_bytes, leaves, on_failure, stats});
  });
  module.def("reduce_scatter",
             [](const GroupObject& group, py::object trees, py::object op, py::object async_op,
                py::object bucket_bytes, py::object leaves, py::object on_failure,
                py::object stats, py::object timeout, py::object name, py::object check) {
               return ReduceScatterPython(group, trees, {timeout, name, check, async_op},
                                          {op, bucket_bytes, leaves, on_failure, stats});
             });
}

}  // namespace leafpack::python
