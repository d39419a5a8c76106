#include "bindings/python/tree_listing.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

#include "bindings/python/errors.h"
#include "bindings/python/python_values.h"
#include "bindings/python/tree_values.h"
#include "tensordict/nested_key.h"

namespace leafpack::python {
namespace {

// Making a Python object may collect garbage, which may run code that changes the tree that is walked.
class CollectNoGarbage {
 public:
  CollectNoGarbage() : was_enabled_(PyGC_Disable() == 1) {}
  ~CollectNoGarbage() {
    if (was_enabled_) PyGC_Enable();
  }
  CollectNoGarbage(const CollectNoGarbage&) = delete;
  CollectNoGarbage& operator=(const CollectNoGarbage&) = delete;

 private:
  const bool was_enabled_;
};

// The one str of a name, or the int of a position. A name that is short is kept, interned, so that
// dicts find it by identity.
py::object Component(const KeyComponent& component) {
  constexpr size_t kMaxLength = 64;
  constexpr size_t kMaxNames = 1 << 14;
  // Lives for ever: Python may be gone when static objects are destroyed.
  static auto* const names = new absl::flat_hash_map<std::string, PyObject*>();
  if (component.is_position() || component.name().size() > kMaxLength) {
    return py::reinterpret_steal<py::object>(ComponentToPython(component));
  }
  if (const auto it = names->find(component.name()); it != names->end()) {
    return py::reinterpret_borrow<py::object>(it->second);
  }
  PyObject* made = ComponentToPython(component);
  PyUnicode_InternInPlace(&made);
  if (names->size() >= kMaxNames) {
    for (const auto& [name, object] : *names) Py_DECREF(object);
    names->clear();
  }
  names->emplace(component.name(), Py_NewRef(made));
  return py::reinterpret_steal<py::object>(made);
}

// The keys of a tree, and where its values are, as long as `mark` holds.
struct Listing {
  StructureMark mark;
  bool nested, leaves_only;
  std::vector<py::object> keys;
  std::vector<const TreeValue*> values;

  Listing(const TensorDict& tree, const KeysOptions& options)
      : mark(tree, options.nested), nested(options.nested), leaves_only(options.leaves_only) {
    std::vector<py::object> above;
    VisitItems(tree, nested,
               [&](size_t depth, const KeyComponent& key, const TreeValue& value) {
                 py::object component = Component(key);
                 const bool is_dict = std::holds_alternative<TensorDict>(value);
                 if (!leaves_only || !is_dict) {
                   values.push_back(&value);
                   keys.push_back(depth == 0 ? component : Path(above, depth, component));
                 }
                 if (is_dict && nested) {
                   above.resize(depth);
                   above.push_back(std::move(component));
                 }
               });
  }

  static py::object Path(const std::vector<py::object>& above, size_t depth,
                         const py::object& last) {
    PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(depth) + 1);
    if (tuple == nullptr) throw py::error_already_set();
    for (size_t i = 0; i < depth; ++i) {
      PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), Py_NewRef(above[i].ptr()));
    }
    PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(depth), Py_NewRef(last.ptr()));
    return py::reinterpret_steal<py::object>(tuple);
  }
};

// The listing of the tree, which is found again if it was made before and the structure stayed. To be
// used before anything can change the tree or ask for another one.
const Listing& ListingOf(const TensorDict& tree, const KeysOptions& options) {
  constexpr size_t kMaxListings = 16;
  constexpr size_t kMaxKeys = 1 << 16;  // of all that are kept but the last
  static auto* const listings = new std::vector<std::unique_ptr<Listing>>();  // the latest first
  for (size_t i = 0; i < listings->size(); ++i) {
    const Listing& listing = *(*listings)[i];
    if (listing.nested != options.nested || listing.leaves_only != options.leaves_only) continue;
    if (!listing.mark.Holds(tree)) continue;
    const auto at = listings->begin() + static_cast<std::ptrdiff_t>(i);
    std::rotate(listings->begin(), at, at + 1);
    return *listings->front();
  }
  listings->insert(listings->begin(), std::make_unique<Listing>(tree, options));
  size_t kept = 1, keys = listings->front()->keys.size();
  while (kept < std::min(kMaxListings, listings->size())) {
    keys += (*listings)[kept]->keys.size();
    if (keys > kMaxKeys) break;
    ++kept;
  }
  listings->resize(kept);  // drops strings, ints and tuples of them: no Python code runs
  return *listings->front();
}

py::list NewList(size_t size) { return py::list(size); }

void SetItem(const py::list& list, size_t i, PyObject* stolen) {
  PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), stolen);
}

PyObject* NewValue(const TreeValue& value) {
  if (const auto* tensor = std::get_if<at::Tensor>(&value)) return TensorToPython(*tensor);
  return ValueToPython(value).release().ptr();
}

}  // namespace

py::list ListedKeys(const TensorDict& tree, const KeysOptions& options) {
  const CollectNoGarbage pause;
  const Listing& listing = ListingOf(tree, options);
  py::list result = NewList(listing.keys.size());
  for (size_t i = 0; i < listing.keys.size(); ++i) {
    SetItem(result, i, Py_NewRef(listing.keys[i].ptr()));
  }
  return result;
}

py::list ListedValues(const TensorDict& tree, const KeysOptions& options) {
  const CollectNoGarbage pause;
  std::vector<const TreeValue*> values;
  VisitItems(tree, options.nested, [&](size_t, const KeyComponent&, const TreeValue& value) {
    if (!options.leaves_only || !std::holds_alternative<TensorDict>(value)) {
      values.push_back(&value);
    }
  });
  py::list result = NewList(values.size());
  for (size_t i = 0; i < values.size(); ++i) SetItem(result, i, NewValue(*values[i]));
  return result;
}

py::list ListedItems(const TensorDict& tree, const KeysOptions& options) {
  const CollectNoGarbage pause;
  const Listing& listing = ListingOf(tree, options);
  py::list result = NewList(listing.keys.size());
  for (size_t i = 0; i < listing.keys.size(); ++i) {
    py::tuple pair(2);
    PyTuple_SET_ITEM(pair.ptr(), 0, Py_NewRef(listing.keys[i].ptr()));
    PyTuple_SET_ITEM(pair.ptr(), 1, NewValue(*listing.values[i]));
    SetItem(result, i, pair.release().ptr());
  }
  return result;
}

TensorDict Selected(const TensorDict& tree, const py::tuple& keys, bool strict) {
  Selector selector(tree, strict);
  // Neighbours often lie below the same nodes: what was read for the last key is not read again.
  std::vector<KeyComponent> parts;
  std::vector<PyObject*> objects;  // alive as long as `keys`
  for (py::handle key : keys) {
    PyObject* const object = key.ptr();
    const bool is_tuple = PyTuple_CheckExact(object);
    if (!is_tuple && PyTuple_Check(object)) {  // may make its items as they are asked for
      RaiseIfError(selector.Add(KeyFromPython(key).components()));
      continue;
    }
    const size_t size = is_tuple ? static_cast<size_t>(PyTuple_GET_SIZE(object)) : 1;
    parts.resize(size);
    objects.resize(size);
    for (size_t i = 0; i < size; ++i) {
      PyObject* part = is_tuple ? PyTuple_GET_ITEM(object, static_cast<Py_ssize_t>(i)) : object;
      if (objects[i] == part) continue;
      objects[i] = nullptr;
      NestedKey where;
      for (size_t k = 0; k < i; ++k) where.push_back(parts[k]);
      parts[i] = ValueOrRaise(ComponentFromPython(part, where));
      objects[i] = part;
    }
    RaiseIfError(selector.Add(parts));
  }
  return std::move(selector).Take();
}

}  // namespace leafpack::python
