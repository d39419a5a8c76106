#include "bindings/python/call_arguments.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "bindings/python/bind.h"
#include "bindings/python/errors.h"
#include "bindings/python/premul_sum.h"
#include "bindings/python/python_values.h"
#include "bindings/python/tensor_dict_object.h"
#include "bindings/python/tree_nodes.h"
#include "bindings/python/type_kinds.h"
#include "tensordict/layout.h"

namespace leafpack::python {
namespace {

ReduceOp OpFromName(std::string_view name) {
  for (const ReduceOp& op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin,
                             ReduceOp::kMax, ReduceOp::kBand, ReduceOp::kBor, ReduceOp::kBxor}) {
    if (ReduceOpName(op.kind) == name) return op;
  }
  if (name == ReduceOpName(ReduceOpKind::kPremulSum)) {
    throw py::value_error("op 'premul_sum' needs a factor: use leafpack.premul_sum(factor)");
  }
  throw py::value_error(absl::StrCat(
      "op must be one of sum, avg, product, min, max, band, bor, bxor, not '",
      absl::Utf8SafeCEscape(name), "'"));
}

FlatTree ReadWithValues(py::handle tree) {
  LeafChoice choice;
  choice.plain_values = true;
  return ValueOrRaise(ReadTree(tree.ptr(), choice));
}

template <typename F>
bool AnyLeaf(const Layout& layout, F&& is) {
  return std::any_of(layout.leaves().begin(), layout.leaves().end(), is);
}

bool SameNodes(const std::vector<TreeSpec::Node>& a, const std::vector<TreeSpec::Node>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const TreeSpec::Node& x, const TreeSpec::Node& y) {
                      return x.path == y.path && x.kind == y.kind &&
                             x.batch_size == y.batch_size && x.names == y.names &&
                             x.note == y.note;
                    });
}

// The description of a tree; the very same object for a tree that is laid out like one of the last,
// so that plans that were made for it are found again.
std::shared_ptr<const TreeSpec> Describe(const FlatTree& flat,
                                         std::vector<TreeSpec::Node> nodes) {
  struct Known {
    Layout layout;
    std::shared_ptr<const TreeSpec> spec;
  };
  constexpr size_t kMaxKnown = 16;
  static auto* known = new std::vector<Known>();  // the latest first; Python may outlive statics
  std::optional<Layout> layout;
  for (size_t i = 0; i < known->size(); ++i) {
    Known& candidate = (*known)[i];
    if (candidate.spec->paths != flat.paths || !SameNodes(candidate.spec->nodes, nodes)) continue;
    if (!candidate.layout.Matches(flat)) {
      if (!layout.has_value()) layout = ValueOrRaise(Layout::Of(flat));
      // How leaves that share memory lie in it is in the description, but not in the digest.
      if (*layout != candidate.layout) continue;
      if (AnyLeaf(*layout, [](const LeafInfo& leaf) { return leaf.alias_of >= 0; })) continue;
      candidate.layout = *layout;
    }
    const auto begin = known->begin();
    const auto at = begin + static_cast<std::ptrdiff_t>(i);
    std::rotate(begin, at, at + 1);
    return known->front().spec;
  }
  if (!layout.has_value()) layout = ValueOrRaise(Layout::Of(flat));
  auto spec = std::make_shared<TreeSpec>(ValueOrRaise(DescribeTree(flat, *layout)));
  spec->nodes = std::move(nodes);
  // Nor is how many elements of a sparse leaf are there.
  if (AnyLeaf(*layout, [](const LeafInfo& leaf) { return leaf.kind == LeafKind::kSparse; })) {
    return spec;
  }
  if (known->size() == kMaxKnown) known->pop_back();
  known->insert(known->begin(), {*std::move(layout), spec});
  return spec;
}

}  // namespace

void ThrowTypeError(const char* argument, const char* expected, py::handle got) {
  throw py::type_error(
      absl::StrCat(argument, " must be ", expected, ", not ", py::repr(got).cast<std::string>()));
}

std::string_view TextFromPython(py::handle text, const char* argument) {
  Py_ssize_t size = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes == nullptr) {
    PyErr_Clear();
    throw py::value_error(absl::StrCat(argument, " has no UTF-8 form (a lone surrogate): ",
                                       py::repr(text).cast<std::string>()));
  }
  return {bytes, static_cast<size_t>(size)};
}

int ChoiceFromPython(py::handle value, const char* argument,
                     std::initializer_list<const char*> names) {
  std::string all;
  int index = 0;
  for (const char* name : names) {
    if (PyUnicode_Check(value.ptr()) && TextFromPython(value, argument) == name) return index;
    absl::StrAppend(&all, all.empty() ? "'" : ", '", name, "'");
    ++index;
  }
  throw py::value_error(absl::StrCat(argument, " must be one of ", all, ", not ",
                                     py::repr(value).cast<std::string>()));
}

bool BoolFromPython(py::handle value) {
  const int truth = PyObject_IsTrue(value.ptr());
  if (truth < 0) throw py::error_already_set();
  return truth != 0;
}

int64_t IntFromPython(py::handle value, const char* argument) {
  if (!PyIndex_Check(value.ptr()) || PyBool_Check(value.ptr())) {
    ThrowTypeError(argument, "an int", value);
  }
  py::object number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  if (!number) throw py::error_already_set();
  int overflow = 0;
  const long long result = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (overflow != 0) {
    throw py::value_error(absl::StrCat(argument, " must fit in 64 bits, not ",
                                       py::repr(number).cast<std::string>()));
  }
  return result;
}

int Int32FromPython(py::handle value, const char* argument) {
  const int64_t number = IntFromPython(value, argument);
  if (number < INT32_MIN || number > INT32_MAX) {
    throw py::value_error(absl::StrCat(argument, " must fit in 32 bits, not ", number));
  }
  return static_cast<int>(number);
}

CallOptions CallArguments::Parse() const {
  CallOptions options;
  options.timeout = TimeoutFromPython(timeout);
  if (!name.is_none()) {
    if (!PyUnicode_Check(name.ptr())) ThrowTypeError("name", "a str", name);
    options.name = std::string(TextFromPython(name, "name"));
  }
  constexpr CheckMode kModes[] = {CheckMode::kAlways, CheckMode::kFirst, CheckMode::kOff};
  options.check = kModes[ChoiceFromPython(check, "check", {"always", "first", "off"})];
  return options;
}

void ReductionArguments::Parse(AllReduceOptions* options, LeafChoice* choice) const {
  if (!stats.is_none() && !PyDict_Check(stats.ptr())) {
    ThrowTypeError("stats", "a dict or None", stats);
  }
  options->op = OpFromPython(op);
  options->bucketing = BucketingFromPython(bucket_bytes);
  options->on_failure = ChoiceFromPython(on_failure, "on_failure", {"report", "restore"}) == 0
                            ? OnFailure::kReport
                            : OnFailure::kRestore;
  if (PyUnicode_Check(leaves.ptr())) {
    if (ChoiceFromPython(leaves, "leaves", {"all", "floating"}) == 1) {
      options->leaves = LeafFilter::Floating();
      choice->kind = LeafChoice::Kind::kTensors;
    }
  } else if (PyCallable_Check(leaves.ptr())) {
    // The choice is made here, with the GIL; the filter only tells the other ranks of one.
    options->leaves = LeafFilter::Where([](const NestedKey&, const at::Tensor&) { return true; });
    choice->kind = LeafChoice::Kind::kPredicate;
    choice->predicate = leaves.ptr();
  } else {
    ThrowTypeError("leaves", "'all', 'floating' or a function of a path and a leaf", leaves);
  }
}

ReduceOp OpFromPython(py::handle op) {
  if (op.is_none()) return ReduceOp::kSum;
  if (PyUnicode_CheckExact(op.ptr())) return OpFromName(TextFromPython(op, "op"));
  if (py::isinstance<PremulSumOp>(op)) {
    return ReduceOp::PremulSum(op.cast<const PremulSumOp&>().factor);
  }
  if (std::optional<absl::StatusOr<ReduceOp>> torch_op = ReduceOpFromTorch(op)) {
    return ValueOrRaise(*std::move(torch_op));
  }
  ThrowTypeError("op", "a str, None, leafpack.premul_sum(factor) or a torch.distributed.ReduceOp",
                 op);
}

Bucketing BucketingFromPython(py::handle bucket_bytes) {
  if (bucket_bytes.is_none()) return Bucketing::PerLeaf();
  if (PyUnicode_CheckExact(bucket_bytes.ptr())) {
    if (TextFromPython(bucket_bytes, "bucket_bytes") == "auto") return Bucketing::Auto();
  } else if (PyIndex_Check(bucket_bytes.ptr()) && !PyBool_Check(bucket_bytes.ptr())) {
    const int64_t bytes = IntFromPython(bucket_bytes, "bucket_bytes");
    if (bytes <= 0) {
      throw py::value_error(absl::StrCat("bucket_bytes must be more than zero, not ", bytes));
    }
    return Bucketing::MaxBytes(bytes);
  }
  ThrowTypeError("bucket_bytes", "'auto', None (one message per leaf) or a number of bytes",
                 bucket_bytes);
}

std::optional<Root> RootFromPython(py::handle global, py::handle in_group, const char* argument) {
  if (!global.is_none() && !in_group.is_none()) {
    throw py::value_error(absl::StrCat(argument, " and group_", argument,
                                       " are two ways to name one rank: give one of them"));
  }
  auto rank = [](py::handle value, const std::string& name) {
    const int64_t number = IntFromPython(value, name.c_str());
    if (number < 0 || number > INT32_MAX) {
      throw py::value_error(absl::StrCat(name, " must be a rank, not ", number));
    }
    return static_cast<int>(number);
  };
  if (!global.is_none()) return Root(GlobalRank(rank(global, argument)));
  if (!in_group.is_none()) {
    return Root(GroupRank(rank(in_group, absl::StrCat("group_", argument))));
  }
  return std::nullopt;
}

Root RequiredRoot(py::handle global, py::handle in_group, const char* argument) {
  std::optional<Root> root = RootFromPython(global, in_group, argument);
  if (!root.has_value()) {
    throw py::value_error(
        absl::StrCat("give ", argument, " (a rank of the job) or group_", argument));
  }
  return *root;
}

TreeArg SentTree(py::handle tree) {
  if (TypeOf(Py_TYPE(tree.ptr())).kind == TypeKind::kLeafpackTensorDict) {
    return TreeArg(TensorDictOf(tree.ptr()));
  }
  FlatTree flat = ReadWithValues(tree);
  std::vector<TreeSpec::Node> nodes = ValueOrRaise(DescribeNodes(tree.ptr()));
  std::shared_ptr<const TreeSpec> spec = Describe(flat, std::move(nodes));
  return TreeArg(std::move(flat), std::move(spec));
}

std::optional<TreeArg> WrittenTree(py::handle tree) {
  if (tree.is_none()) return std::nullopt;
  return TreeArg(ReadWithValues(tree));
}

std::vector<TreeArg> SentTrees(py::handle trees, const char* argument) {
  if (!PyList_Check(trees.ptr()) && !PyTuple_Check(trees.ptr())) {
    ThrowTypeError(argument, "a list or tuple of trees", trees);
  }
  // A copy: reading a tree may run Python code that changes the list.
  const py::tuple items = py::reinterpret_steal<py::tuple>(PySequence_Tuple(trees.ptr()));
  if (!items) throw py::error_already_set();
  std::vector<TreeArg> result;
  result.reserve(items.size());
  for (py::handle item : items) result.push_back(SentTree(item));
  return result;
}

py::object ReceivedToPython(const ReceivedTree& tree, py::handle given, bool lifted, int times) {
  if (given && !given.is_none()) return py::reinterpret_borrow<py::object>(given);
  return ValueOrRaise(BuildTree(tree.spec->nodes, tree.flat, lifted, times));
}

BytesView::BytesView(py::handle data, const char* argument) {
  if (!PyObject_CheckBuffer(data.ptr())) ThrowTypeError(argument, "bytes or a buffer", data);
  if (PyObject_GetBuffer(data.ptr(), &buffer_, PyBUF_SIMPLE) != 0) {
    if (PyErr_ExceptionMatches(PyExc_BufferError) == 0) throw py::error_already_set();
    PyErr_Clear();
    throw py::value_error(absl::StrCat(argument, " must be contiguous in memory, which ",
                                       py::repr(data).cast<std::string>(), " is not"));
  }
}

}  // namespace leafpack::python
