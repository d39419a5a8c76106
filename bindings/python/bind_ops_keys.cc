// Keys of a tree: set in place, pop, rename, lists, update, select, flatten.
#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

#include "bindings/python/bind_ops.h"
#include "bindings/python/errors.h"
#include "bindings/python/python_values.h"
#include "bindings/python/tree_listing.h"
#include "bindings/python/tree_values.h"
#include "tensordict/nested_key.h"
#include "tensordict/non_tensor.h"
#include "tensordict/ops/keys.h"
#include "tensordict/tensor_dict.h"

namespace leafpack::python {
namespace {

// The beginning of its repr, with its type.
std::string Shown(const py::object& value) {
  constexpr size_t kShown = 60;
  std::string text = py::repr(value);
  if (text.size() > kShown) {
    size_t end = kShown;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
    text = text.substr(0, end) + "...";
  }
  return absl::StrCat(text, " of type ", TypeName(value.ptr()));
}

Cast CastOf(bool cast) { return cast ? Cast::kAllow : Cast::kRefuse; }

}  // namespace

void BindKeyOps(py::module_& ops) {
  ops.def("set_in_place", [](TensorDict& tree, const py::object& key, const py::object& value,
                             bool cast) {
    const NestedKey path = KeyFromPython(key);
    if (!IsTensor(value.ptr())) {
      throw py::type_error(absl::StrCat("set in place: ", path.ToString(), ": ", Shown(value),
                                        " is no tensor: only a tensor can be copied into one"));
    }
    RaiseIfError(SetInPlace(tree, path, TensorOf(value.ptr()), CastOf(cast)));
  });
  // A list of plain values as one value.
  ops.def("set_plain", [](TensorDict& tree, const py::object& key, const py::object& value) {
    const NestedKey path = KeyFromPython(key);
    std::optional<NonTensor> plain = ValueOrRaise(NonTensorFromPython(value.ptr(), path));
    if (!plain.has_value()) throw py::type_error("not a list of plain values");
    RaiseIfError(tree.Set(path, *std::move(plain)));
  });
  ops.def("pop", [](TensorDict& tree, const py::object& key) {
    return ValueToPython(ValueOrRaise(Pop(tree, KeyFromPython(key))));
  });
  ops.def("rename_key",
          [](TensorDict& tree, const py::object& from, const py::object& to, bool safe) {
            RaiseIfError(RenameKey(tree, KeyFromPython(from), KeyFromPython(to), safe));
          });
  ops.def("keys", [](const TensorDict& tree, bool nested, bool leaves_only) {
    return ListedKeys(tree, {.nested = nested, .leaves_only = leaves_only});
  });
  ops.def("values", [](const TensorDict& tree, bool nested, bool leaves_only) {
    return ListedValues(tree, {.nested = nested, .leaves_only = leaves_only});
  });
  ops.def("items", [](const TensorDict& tree, bool nested, bool leaves_only) {
    return ListedItems(tree, {.nested = nested, .leaves_only = leaves_only});
  });
  ops.def("update", [](TensorDict& tree, const TensorDict& source) {
    RaiseIfError(Update(tree, source));
  });
  ops.def("update_in_place", [](TensorDict& tree, const TensorDict& source, bool cast) {
    RaiseIfError(UpdateInPlace(tree, source, CastOf(cast)));
  });
  ops.def("load", [](TensorDict& tree, const TensorDict& state, bool strict, bool assign,
                     bool cast) {
    RaiseIfError(
        Load(tree, state, {.strict = strict, .assign = assign, .cast = CastOf(cast)}));
  });
  ops.def("select", [](const TensorDict& tree, const py::tuple& keys, bool strict) {
    return Selected(tree, keys, strict);
  });
  ops.def("exclude", [](const TensorDict& tree, const py::tuple& keys) {
    return ValueOrRaise(Exclude(tree, KeysFromPython(keys)));
  });
  ops.def("flatten_keys", [](const TensorDict& tree, const std::string& separator) {
    return ValueOrRaise(FlattenKeys(tree, separator));
  });
  ops.def("unflatten_keys", [](const TensorDict& tree, const std::string& separator) {
    return ValueOrRaise(UnflattenKeys(tree, separator));
  });
}

}  // namespace leafpack::python
