// leafpack.TensorDict: the C++ tree as a Python mapping from paths to tensors.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "bindings/python/bind.h"
#include "bindings/python/errors.h"
#include "bindings/python/python_values.h"
#include "bindings/python/tensor_dict_object.h"
#include "bindings/python/tree_reader.h"
#include "bindings/python/tree_values.h"
#include "distributed/core/error.h"
#include "tensordict/dtype.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"
#include "tensordict/ops/keys.h"
#include "tensordict/tensor_dict.h"

namespace leafpack::python {
namespace {

bool IsTensorDict(const py::handle& object) { return py::isinstance<TensorDict>(object); }

// A list of plain values is a node with positions, like every list.
bool IsPlainValue(const py::object& value) {
  return PyUnicode_CheckExact(value.ptr()) || PyLong_CheckExact(value.ptr()) ||
         PyFloat_CheckExact(value.ptr()) || PyBool_Check(value.ptr()) ||
         PyBytes_CheckExact(value.ptr());
}

// What is above the node that is filled, for errors.
struct Above {
  const Above* above;
  const NestedKey& path;
};

// An error about what stands below these, with the whole path in place of the part below.
absl::Status WithWholePath(const absl::Status& status, const Above* above) {
  ErrorDetails details = GetErrorDetails(status);
  if (above == nullptr || details.path.empty()) return status;
  NestedKey whole;
  std::vector<const NestedKey*> parts;
  for (; above != nullptr; above = above->above) parts.push_back(&above->path);
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    for (size_t i = 0; i < (*part)->size(); ++i) whole.push_back((**part)[i]);
  }
  const std::string before = absl::StrCat(details.path, ": ");
  std::string text(status.message());
  std::string path = whole.ToString();
  if (details.path != NestedKey().ToString()) {
    absl::StrAppend(&path, details.path.front() == '[' ? "" : ".", details.path);
  }
  if (!text.starts_with(before)) return status;
  details.path = path;
  return WithErrorDetails(absl::Status(status.code(), path + ": " + text.substr(before.size())),
                          details);
}

void SetValue(TensorDict& node, const NestedKey& path, const py::object& value, int depth,
              const Above* above);

// Builds a node from a Python tree: dicts node by node (nodes that are leafpack.TensorDicts are
// shared), everything else by its leaves.
void Fill(TensorDict node, const py::object& tree, int depth, const Above* above = nullptr) {
  if (depth > kMaxTreeDepth) throw py::value_error("the tree is too deep, or contains itself");
  if (!PyDict_Check(tree.ptr())) {
    LeafChoice choice;
    choice.plain_values = true;
    absl::StatusOr<FlatTree> read = ReadTree(tree.ptr(), choice);
    if (!read.ok()) Raise(WithWholePath(read.status(), above));
    const FlatTree flat = *std::move(read);
    for (size_t i = 0; i < flat.size(); ++i) {
      const NonTensor* value = flat.non_tensor(i);
      RaiseIfError(value != nullptr ? node.Set((*flat.paths)[i], *value)
                                    : node.Set((*flat.paths)[i], flat.leaves[i]));
    }
    return;
  }
  for (auto [key, value] : py::reinterpret_borrow<py::dict>(tree)) {
    SetValue(node, KeyFromPython(py::reinterpret_borrow<py::object>(key)),
             py::reinterpret_borrow<py::object>(value), depth + 1, above);
  }
}

void SetValue(TensorDict& node, const NestedKey& path, const py::object& value, int depth,
              const Above* above) {
  if (IsTensor(value.ptr())) {
    RaiseIfError(node.Set(path, TensorOf(value.ptr())));
  } else if (value.is_none()) {
    RaiseIfError(node.Set(path, at::Tensor()));
  } else if (IsTensorDict(value)) {
    RaiseIfError(node.Set(path, TensorDictOf(value.ptr())));
  } else if (IsPlainValue(value)) {
    RaiseIfError(node.Set(path, *ValueOrRaise(NonTensorFromPython(value.ptr(), path))));
  } else if (py::hasattr(py::type::of(value), "_leafpack_positions")) {  // a LazyStack
    RaiseIfError(node.Set(path, TensorDictOf(value.attr("_leafpack_positions")().ptr())));
  } else {
    TensorDict child(node.batch_size());
    const Above here = {above, path};
    Fill(child, value, depth, &here);
    RaiseIfError(node.Set(path, std::move(child)));
  }
}

void SetItem(TensorDict& self, const py::object& key, const py::object& value) {
  SetValue(self, KeyFromPython(key), value, 0, nullptr);
}

py::object GetItem(const TensorDict& self, const py::object& key) {
  const NestedKey path = KeyFromPython(key);
  if (path.empty()) return py::cast(self);
  return ValueToPython(ValueOrRaise(GetValue(self, path)));
}

py::dict ToDict(const TensorDict& self) {
  py::dict result;
  for (const TensorDict::Child& child : self.Children()) {
    const py::object key = py::reinterpret_steal<py::object>(ComponentToPython(child.key));
    if (child.is_dict()) {
      result[key] = ToDict(child.dict());
    } else if (child.is_non_tensor()) {
      result[key] = NonTensorToPython(child.non_tensor());
    } else {
      result[key] = py::reinterpret_steal<py::object>(TensorToPython(child.leaf()));
    }
  }
  return result;
}

std::string Repr(const TensorDict& self) {
  constexpr size_t kShown = 30;
  const FlatTree flat = Flatten(self);
  std::string text =
      absl::StrCat("leafpack.TensorDict(batch_size=[", absl::StrJoin(self.batch_size(), ", "),
                   "], ", flat.size(), flat.size() == 1 ? " leaf" : " leaves");
  for (size_t i = 0; i < flat.size() && i < kShown; ++i) {
    const at::Tensor& leaf = flat.leaves[i];
    absl::StrAppend(&text, i == 0 ? ":" : ",", "\n  ", (*flat.paths)[i].ToString(), ": ");
    if (const NonTensor* value = flat.non_tensor(i)) {
      absl::StrAppend(&text, value->ToString());
    } else if (leaf.defined()) {
      absl::StrAppend(&text, std::string(DtypeName(leaf.scalar_type())), " [",
                      absl::StrJoin(leaf.sizes(), ", "), "]");
    } else {
      absl::StrAppend(&text, "None");
    }
  }
  if (flat.size() > kShown) absl::StrAppend(&text, ",\n  ...");
  return text + ")";
}

Layout LayoutOf(const TensorDict& self) { return ValueOrRaise(Layout::Of(Flatten(self))); }

}  // namespace

void BindTensorDict(py::module_& module) {
  py::class_<TensorDict>(
      module, "TensorDict",
      "A tree whose leaves are tensors and whose nodes share a batch size, with the names and\n"
      "signatures of tensordict.TensorDict. Keys come in canonical order.")
      .def(py::init([](const py::object& source, const py::object& batch_size,
                       const py::object& device, const py::object& names,
                       const py::object& /*non_blocking*/, bool lock, const py::kwargs& entries) {
             TensorDict tree(BatchSizeFromPython(batch_size), DeviceFromPython(device));
             if (!source.is_none()) Fill(tree, source, 0);
             if (!entries.empty()) Fill(tree, entries, 0);
             if (!names.is_none()) RaiseIfError(tree.SetNames(NamesFromPython(names)));
             if (lock) tree.Lock();
             return tree;
           }),
           py::arg("source") = py::none(), py::arg("batch_size") = py::none(),
           py::arg("device") = py::none(), py::arg("names") = py::none(),
           py::arg("non_blocking") = py::none(), py::arg("lock") = false)
      .def_static(
          "from_tensordict",
          [](const py::object& source) {
            TensorDict tree(BatchSizeFromPython(source.attr("batch_size")));
            Fill(tree, source, 0);
            return tree;
          },
          py::arg("source"),
          "The leaves of a tensordict.TensorDict, not copied, with its batch size.")
      .def_property_readonly(
          "batch_size", [](const TensorDict& self) { return SizesToPython(self.batch_size()); })
      .def("_set", &SetItem)
      .def("_get", &GetItem)
      .def(
          "erase",
          [](TensorDict& self, const py::object& key) {
            RaiseIfError(self.Erase(KeyFromPython(key)));
          },
          py::arg("key"))
      .def("clear", [](TensorDict& self) { RaiseIfError(self.Clear()); })
      .def("__contains__",
           [](const TensorDict& self, const py::object& key) {
             return self.Contains(KeyFromPython(key));
           })
      .def_property_readonly("num_leaves", &TensorDict::num_leaves)
      .def("to_dict", &ToDict)
      .def("is_same", &TensorDict::IsSame, py::arg("other"),
           "True if both names stand for one tree: a change of one is a change of the other.")
      .def("layout_digest",
           [](const TensorDict& self) { return LayoutOf(self).digest().ToString(); })
      .def(
          "same_layout",
          [](const TensorDict& self, const TensorDict& other) {
            return LayoutOf(self) == LayoutOf(other);
          },
          py::arg("other"))
      .def(
          "layout_difference",
          [](const TensorDict& self, const TensorDict& other) -> py::object {
            auto difference = Layout::Difference(LayoutOf(self), LayoutOf(other), "self", "other");
            if (!difference.has_value()) return py::none();
            return py::str(*difference);
          },
          py::arg("other"))
      .def("__repr__", &Repr);
}

}  // namespace leafpack::python
