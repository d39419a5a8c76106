#include "bindings/python/tree_reader.h"

#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "bindings/python/errors.h"
#include "bindings/python/tensor_dict_object.h"
#include "bindings/python/type_kinds.h"

namespace leafpack::python {
namespace {

// One child of a node, in the order in which the walk meets it.
struct Entry {
  enum class What : uint8_t { kLeaf, kUndefined, kNode, kPassedOver };
  py::object key;  // of a dict; null for a place in a sequence
  What what = What::kLeaf;
  uint32_t node = 0;  // kNode: index of the node
  uint32_t slot = 0;  // leaves: index in canonical order
};

struct Node {
  py::object type;
  TypeKind kind = TypeKind::kOther;
  PyObject* attribute = nullptr;  // borrowed from the (immortal) table of types
  size_t modules_from = 0;        // modules: entries before it are parameters
  std::vector<Entry> entries;
};

// The structure of a tree that was read before.
struct Record {
  std::vector<Node> nodes;  // the root is the last one
  std::shared_ptr<const PathList> paths;
  const void* last_root = nullptr;  // a hint, never dereferenced
  py::list path_tuples;             // made when a predicate first asks
  std::vector<bool> mask;           // what a predicate took the last time, and the paths of it
  std::shared_ptr<const PathList> masked_paths;
};

// An attribute of an instance, past any __getattr__ of its class. Null, without an error, if there
// is none.
py::object InstanceAttribute(PyObject* object, PyObject* name) {
  PyObject* value = PyObject_GenericGetAttr(object, name);
  if (value == nullptr) PyErr_Clear();
  return py::reinterpret_steal<py::object>(value);
}

PyObject* Interned(const char* text) { return PyUnicode_InternFromString(text); }

// The dicts of parameters and of submodules of a torch.nn.Module.
bool ModuleDicts(PyObject* module, py::object* parameters, py::object* modules) {
  static PyObject* const parameters_name = Interned("_parameters");
  static PyObject* const modules_name = Interned("_modules");
  *parameters = InstanceAttribute(module, parameters_name);
  *modules = InstanceAttribute(module, modules_name);
  return *parameters && *modules && PyDict_Check(parameters->ptr()) && PyDict_Check(modules->ptr());
}

bool IsPlainTensorType(PyTypeObject* type) { return THPVariable_CheckTypeExact(type); }

const at::Tensor& Unpack(PyObject* object) {
  return THPVariable_Unpack(reinterpret_cast<THPVariable*>(object));
}

absl::Status Unsupported(const NestedKey& path, std::string_view what) {
  ErrorDetails details;
  details.kind = ErrorKind::kUnsupported;
  details.path = path.ToString();
  return WithErrorDetails(absl::InvalidArgumentError(absl::StrCat(details.path, ": ", what)),
                          details);
}

std::string TypeName(PyObject* object) { return Py_TYPE(object)->tp_name; }

// Follows a record along a tree. False as soon as they differ; runs no Python code.
class Replay {
 public:
  Replay(const Record& record, std::vector<at::Tensor>* leaves)
      : record_(record), leaves_(*leaves) {}

  bool Run(PyObject* tree) { return Matches(record_.nodes[record_.nodes.size() - 1], tree); }

 private:
  bool Matches(const Node& node, PyObject* object) {
    if (reinterpret_cast<PyObject*>(Py_TYPE(object)) != node.type.ptr()) return false;
    switch (node.kind) {
      case TypeKind::kTensor:
        return Child(node.entries[0], object);
      case TypeKind::kDict:
        return Dict(node, 0, node.entries.size(), object);
      case TypeKind::kSequence:
        return Sequence(node, object);
      case TypeKind::kTensorDict: {
        py::object dict = InstanceAttribute(object, node.attribute);
        return dict && PyDict_Check(dict.ptr()) && Dict(node, 0, node.entries.size(), dict.ptr());
      }
      case TypeKind::kLazyStack: {
        py::object list = InstanceAttribute(object, node.attribute);
        return list && Sequence(node, list.ptr());
      }
      case TypeKind::kWrapper: {
        py::object inner = InstanceAttribute(object, node.attribute);
        return inner && Child(node.entries[0], inner.ptr());
      }
      case TypeKind::kModule: {
        py::object parameters, modules;
        return ModuleDicts(object, &parameters, &modules) &&
               Dict(node, 0, node.modules_from, parameters.ptr()) &&
               Dict(node, node.modules_from, node.entries.size(), modules.ptr());
      }
      default:
        return false;
    }
  }

  bool Dict(const Node& node, size_t begin, size_t end, PyObject* dict) {
    if (static_cast<size_t>(PyDict_GET_SIZE(dict)) != end - begin) return false;
    Py_ssize_t position = 0;
    PyObject *key, *value;
    for (size_t i = begin; i < end; ++i) {
      if (!PyDict_Next(dict, &position, &key, &value)) return false;
      const Entry& entry = node.entries[i];
      if (key != entry.key.ptr() && !SameKey(key, entry.key.ptr())) return false;
      if (!Child(entry, value)) return false;
    }
    return true;
  }

  bool Sequence(const Node& node, PyObject* sequence) {
    const size_t size = node.entries.size();
    if (PyList_Check(sequence)) {
      if (static_cast<size_t>(PyList_GET_SIZE(sequence)) != size) return false;
      for (size_t i = 0; i < size; ++i) {
        if (!Child(node.entries[i], PyList_GET_ITEM(sequence, i))) return false;
      }
      return true;
    }
    if (!PyTuple_Check(sequence)) return false;
    if (static_cast<size_t>(PyTuple_GET_SIZE(sequence)) != size) return false;
    for (size_t i = 0; i < size; ++i) {
      if (!Child(node.entries[i], PyTuple_GET_ITEM(sequence, i))) return false;
    }
    return true;
  }

  bool Child(const Entry& entry, PyObject* value) {
    switch (entry.what) {
      case Entry::What::kLeaf:
        if (!IsPlainTensorType(Py_TYPE(value))) {
          const TypeInfo* info = KnownType(Py_TYPE(value));
          if (info == nullptr || info->kind != TypeKind::kTensor) return false;
          // A subclass may lack memory: the full walk says so.
          if (Unpack(value).key_set().has(c10::DispatchKey::Python)) return false;
        }
        leaves_[entry.slot] = Unpack(value);
        return true;
      case Entry::What::kUndefined:
        return value == Py_None;
      case Entry::What::kNode:
        return Matches(record_.nodes[entry.node], value);
      case Entry::What::kPassedOver: {
        if (value == Py_None) return true;
        const TypeInfo* info = KnownType(Py_TYPE(value));
        return info != nullptr && info->kind == TypeKind::kNonTensor;
      }
    }
    return false;
  }

  // Keys that are not the same object: equal strings, or equal ints.
  static bool SameKey(PyObject* a, PyObject* b) {
    if (PyUnicode_CheckExact(a) && PyUnicode_CheckExact(b)) {
      return PyUnicode_GET_LENGTH(a) == PyUnicode_GET_LENGTH(b) && PyUnicode_Compare(a, b) == 0;
    }
    if (!PyLong_CheckExact(a) || !PyLong_CheckExact(b)) return false;
    int overflow_a = 0, overflow_b = 0;
    const long long x = PyLong_AsLongLongAndOverflow(a, &overflow_a);
    const long long y = PyLong_AsLongLongAndOverflow(b, &overflow_b);
    return overflow_a == 0 && overflow_b == 0 && x == y;
  }

  const Record& record_;
  std::vector<at::Tensor>& leaves_;
};

// The full walk: reads the leaves and writes the record.
class Recorder {
 public:
  explicit Recorder(const LeafChoice& choice) : choice_(choice) {}

  absl::Status Run(PyObject* tree) {
    Entry root;
    absl::Status status = Value(py::reinterpret_borrow<py::object>(tree), &root);
    if (!status.ok()) return status;
    if (root.what != Entry::What::kNode) {
      // One leaf, or a value that is passed over, at the root.
      Node node;
      node.type = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(Py_TYPE(tree)));
      node.kind = TypeKind::kTensor;
      node.entries.push_back(std::move(root));
      nodes_.push_back(std::move(node));
    }
    return absl::OkStatus();
  }

  bool cacheable() const { return cacheable_; }
  std::vector<std::pair<NestedKey, at::Tensor>>& leaves() { return leaves_; }

  // Ends with the record, whose leaf number i (as the walk met them) has canonical place
  // `place[i]`.
  std::unique_ptr<Record> Finish(const std::vector<uint32_t>& place,
                                 std::shared_ptr<const PathList> paths) {
    for (Node& node : nodes_) {
      for (Entry& entry : node.entries) {
        if (entry.what == Entry::What::kLeaf || entry.what == Entry::What::kUndefined) {
          entry.slot = place[entry.slot];
        }
      }
    }
    auto record = std::make_unique<Record>();
    record->nodes = std::move(nodes_);
    record->paths = std::move(paths);
    return record;
  }

 private:
  absl::Status Value(py::object value, Entry* entry) {
    PyTypeObject* type = Py_TYPE(value.ptr());
    if (IsPlainTensorType(type)) return Leaf(value.ptr(), entry);
    const TypeInfo& info = TypeOf(type);
    switch (info.kind) {
      case TypeKind::kTensor:
        if (Unpack(value.ptr()).key_set().has(c10::DispatchKey::Python)) {
          return Unsupported(path_, absl::StrCat("a tensor of class ", TypeName(value.ptr()),
                                                 " has no memory of its own that can be reduced"));
        }
        return Leaf(value.ptr(), entry);
      case TypeKind::kNone:
        entry->what = Entry::What::kUndefined;
        entry->slot = static_cast<uint32_t>(leaves_.size());
        leaves_.emplace_back(path_, at::Tensor());
        return absl::OkStatus();
      case TypeKind::kNonTensor:
        entry->what = Entry::What::kPassedOver;
        return absl::OkStatus();
      case TypeKind::kRefused:
        return Unsupported(path_, info.why);
      case TypeKind::kOther:
        return Other(value, entry);
      case TypeKind::kLeafpackTensorDict:
        return LeafpackNode(value, entry);
      default:
        return Tree(std::move(value), info, entry);
    }
  }

  absl::Status Leaf(PyObject* value, Entry* entry) {
    entry->what = Entry::What::kLeaf;
    entry->slot = static_cast<uint32_t>(leaves_.size());
    leaves_.emplace_back(path_, Unpack(value));
    return absl::OkStatus();
  }

  // Something that is neither a tensor nor a tree.
  absl::Status Other(const py::object& value, Entry* entry) {
    cacheable_ = false;
    entry->what = Entry::What::kPassedOver;
    if (choice_.kind == LeafChoice::Kind::kTensors) return absl::OkStatus();
    if (choice_.kind == LeafChoice::Kind::kPredicate) {
      py::object path = py::reinterpret_steal<py::object>(PathToPython(path_));
      py::object taken = py::reinterpret_steal<py::object>(
          PyObject_CallFunctionObjArgs(choice_.predicate, path.ptr(), value.ptr(), nullptr));
      if (!taken) throw py::error_already_set();
      const int truth = PyObject_IsTrue(taken.ptr());
      if (truth < 0) throw py::error_already_set();
      if (truth == 0) return absl::OkStatus();
    }
    return Unsupported(path_, absl::StrCat("a value of type ", TypeName(value.ptr()),
                                           " cannot be reduced: it is no tensor"));
  }

  absl::Status LeafpackNode(const py::object& value, Entry* entry) {
    cacheable_ = false;
    entry->what = Entry::What::kPassedOver;
    absl::Status status;
    TensorDictOf(value.ptr()).Visit([&](const NestedKey& path, const at::Tensor& leaf) {
      if (path_.size() + path.size() > kMaxTreeDepth) {
        if (status.ok()) status = TooDeep();
        return;
      }
      leaves_.emplace_back(path_.Join(path), leaf);
    });
    return status;
  }

  absl::Status Tree(py::object value, const TypeInfo& info, Entry* entry) {
    // Wrappers add no component to the path, so depth is counted apart from it: a tree that
    // contains itself ends here.
    if (depth_ >= 2 * kMaxTreeDepth || path_.size() > kMaxTreeDepth) return TooDeep();
    ++depth_;
    Node node;
    node.type =
        py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())));
    node.kind = info.kind;
    node.attribute = info.attribute;
    absl::Status status = Children(value, info, &node);
    --depth_;
    if (!status.ok()) return status;
    entry->what = Entry::What::kNode;
    entry->node = static_cast<uint32_t>(nodes_.size());
    nodes_.push_back(std::move(node));
    return absl::OkStatus();
  }

  absl::Status Children(const py::object& value, const TypeInfo& info, Node* node) {
    switch (info.kind) {
      case TypeKind::kDict:
        return Dict(value, false, node);
      case TypeKind::kMapping: {
        cacheable_ = false;
        py::object dict = py::reinterpret_steal<py::object>(
            PyObject_CallOneArg(reinterpret_cast<PyObject*>(&PyDict_Type), value.ptr()));
        if (!dict) throw py::error_already_set();
        return Dict(dict, false, node);
      }
      case TypeKind::kSequence:
        return Sequence(value, node);
      case TypeKind::kTensorDict: {
        py::object dict = InstanceAttribute(value.ptr(), node->attribute);
        if (!dict || !PyDict_Check(dict.ptr())) return Strange(value);
        return Dict(dict, false, node);
      }
      case TypeKind::kLazyStack: {
        py::object list = InstanceAttribute(value.ptr(), node->attribute);
        if (!list || !(PyList_Check(list.ptr()) || PyTuple_Check(list.ptr()))) {
          return Strange(value);
        }
        return Sequence(list, node);
      }
      case TypeKind::kWrapper: {
        py::object inner = InstanceAttribute(value.ptr(), node->attribute);
        if (!inner) return Strange(value);
        node->entries.emplace_back();
        Entry entry;
        absl::Status status = Value(std::move(inner), &entry);
        node->entries.back() = std::move(entry);
        return status;
      }
      case TypeKind::kModule: {
        py::object parameters, modules;
        if (!ModuleDicts(value.ptr(), &parameters, &modules)) return Strange(value);
        absl::Status status = Dict(parameters, true, node);
        if (!status.ok()) return status;
        node->modules_from = node->entries.size();
        return Dict(modules, true, node);
      }
      default:
        return Strange(value);
    }
  }

  // `none_is_absent`: None means that there is nothing (modules), not a leaf without a value.
  absl::Status Dict(const py::object& dict, bool none_is_absent, Node* node) {
    // A copy: reading a value may run Python code, which may change the dict.
    std::vector<std::pair<py::object, py::object>> items;
    items.reserve(PyDict_GET_SIZE(dict.ptr()));
    Py_ssize_t position = 0;
    PyObject *key, *value;
    while (PyDict_Next(dict.ptr(), &position, &key, &value)) {
      items.emplace_back(py::reinterpret_borrow<py::object>(key),
                         py::reinterpret_borrow<py::object>(value));
    }
    for (auto& [item_key, item_value] : items) {
      Entry entry;
      entry.key = item_key;
      if (none_is_absent && item_value.is_none()) {
        entry.what = Entry::What::kPassedOver;
      } else {
        absl::StatusOr<KeyComponent> component = ComponentFromPython(item_key.ptr(), path_);
        if (!component.ok()) return component.status();
        // Only keys that cannot change what they compare equal to can be recorded.
        if (!PyUnicode_CheckExact(item_key.ptr()) && !PyLong_CheckExact(item_key.ptr())) {
          cacheable_ = false;
        }
        path_.push_back(*std::move(component));
        absl::Status status = Value(item_value, &entry);
        path_.pop_back();
        if (!status.ok()) return status;
      }
      node->entries.push_back(std::move(entry));
    }
    return absl::OkStatus();
  }

  absl::Status Sequence(const py::object& sequence, Node* node) {
    std::vector<py::object> items;
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(sequence.ptr());
    items.reserve(size);
    for (Py_ssize_t i = 0; i < size; ++i) {
      items.push_back(
          py::reinterpret_borrow<py::object>(PySequence_Fast_GET_ITEM(sequence.ptr(), i)));
    }
    for (size_t i = 0; i < items.size(); ++i) {
      Entry entry;
      path_.push_back(static_cast<int64_t>(i));
      absl::Status status = Value(std::move(items[i]), &entry);
      path_.pop_back();
      if (!status.ok()) return status;
      node->entries.push_back(std::move(entry));
    }
    return absl::OkStatus();
  }

  absl::Status Strange(const py::object& value) const {
    return Unsupported(path_, absl::StrCat("an object of class ", TypeName(value.ptr()),
                                           " does not have the fields that its class should have"));
  }

  absl::Status TooDeep() const {
    ErrorDetails details;
    details.kind = ErrorKind::kUnsupported;
    NestedKey head(std::vector<KeyComponent>(path_.begin(),
                                             path_.begin() + std::min<size_t>(path_.size(), 8)));
    details.path = head.ToString();
    return WithErrorDetails(
        absl::InvalidArgumentError(absl::StrCat(details.path, "...: the tree is deeper than ",
                                                kMaxTreeDepth, " levels, or contains itself")),
        details);
  }

  LeafChoice choice_;
  NestedKey path_;
  int depth_ = 0;
  bool cacheable_ = true;
  std::vector<Node> nodes_;
  std::vector<std::pair<NestedKey, at::Tensor>> leaves_;
};

// The records of trees that were read, the latest first. Lives for ever: Python may be gone when
// static objects are destroyed.
constexpr size_t kMaxRecords = 64;
// Records of other trees that are tried on a tree that was not seen before.
constexpr int kMaxTries = 4;

std::vector<std::unique_ptr<Record>>& Records() {
  static auto* records = new std::vector<std::unique_ptr<Record>>();
  return *records;
}

void MoveToFront(size_t index) {
  auto& records = Records();
  std::rotate(records.begin(), records.begin() + index, records.begin() + index + 1);
}

// The record that fits `tree`, with the leaves read; null if there is none.
Record* FindRecord(PyObject* tree, std::vector<at::Tensor>* leaves) {
  auto& records = Records();
  auto fits = [&](size_t i) {
    leaves->assign(records[i]->paths->size(), at::Tensor());
    if (!Replay(*records[i], leaves).Run(tree)) return false;
    if (i != 0) MoveToFront(i);
    records[0]->last_root = tree;
    return true;
  };
  size_t seen = records.size();
  for (size_t i = 0; i < records.size(); ++i) {
    if (records[i]->last_root != tree) continue;
    if (fits(i)) return records[0].get();
    seen = i;
    break;
  }
  int tries = 0;
  for (size_t i = 0; i < records.size() && tries < kMaxTries; ++i) {
    if (i == seen) continue;
    const Node& root = records[i]->nodes.back();
    if (root.type.ptr() != reinterpret_cast<PyObject*>(Py_TYPE(tree))) continue;
    ++tries;
    if (fits(i)) return records[0].get();
  }
  return nullptr;
}

// Leaves for which the predicate holds. `record` may be null.
FlatTree Filter(FlatTree flat, Record* record, PyObject* predicate) {
  py::list tuples;
  if (record != nullptr && record->path_tuples.size() == flat.size()) {
    tuples = record->path_tuples;
  } else {
    for (size_t i = 0; i < flat.size(); ++i) {
      tuples.append(py::reinterpret_steal<py::object>(PathToPython((*flat.paths)[i])));
    }
    if (record != nullptr) record->path_tuples = tuples;
  }
  std::vector<bool> mask(flat.size());
  for (size_t i = 0; i < flat.size(); ++i) {
    py::object leaf = py::reinterpret_steal<py::object>(TensorToPython(flat.leaves[i]));
    py::object path = tuples[i];
    py::object taken = py::reinterpret_steal<py::object>(
        PyObject_CallFunctionObjArgs(predicate, path.ptr(), leaf.ptr(), nullptr));
    if (!taken) throw py::error_already_set();
    const int truth = PyObject_IsTrue(taken.ptr());
    if (truth < 0) throw py::error_already_set();
    mask[i] = truth != 0;
  }
  std::vector<at::Tensor> leaves;
  for (size_t i = 0; i < flat.size(); ++i) {
    if (mask[i]) leaves.push_back(std::move(flat.leaves[i]));
  }
  // The predicate is Python code that may have read another tree: look for the record again.
  const bool known =
      record != nullptr &&
      std::any_of(Records().begin(), Records().end(),
                  [&](const std::unique_ptr<Record>& r) { return r.get() == record; }) &&
      record->paths == flat.paths;
  if (known && record->masked_paths != nullptr && record->mask == mask) {
    return FlatTree(record->masked_paths, std::move(leaves));
  }
  std::vector<NestedKey> paths;
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i]) paths.push_back((*flat.paths)[i]);
  }
  auto shared = SharedPaths(std::make_shared<const PathList>(std::move(paths)));
  if (known) {
    record->mask = std::move(mask);
    record->masked_paths = shared;
  }
  return FlatTree(std::move(shared), std::move(leaves));
}

}  // namespace

std::shared_ptr<const PathList> SharedPaths(std::shared_ptr<const PathList> paths) {
  static auto* known = new absl::flat_hash_map<Digest128, std::weak_ptr<const PathList>>();
  static size_t purge_at = 256;
  auto& slot = (*known)[paths->digest()];
  if (std::shared_ptr<const PathList> old = slot.lock(); old != nullptr) {
    return old->paths() == paths->paths() ? old : paths;
  }
  slot = paths;
  if (known->size() > purge_at) {
    absl::erase_if(*known, [](const auto& item) { return item.second.expired(); });
    purge_at = std::max<size_t>(256, 2 * known->size());
  }
  return paths;
}

absl::StatusOr<FlatTree> ReadTree(PyObject* tree, const LeafChoice& choice) {
  const bool filter = choice.kind == LeafChoice::Kind::kPredicate;
  if (TypeOf(Py_TYPE(tree)).kind == TypeKind::kLeafpackTensorDict) {
    FlatTree flat = Flatten(TensorDictOf(tree));
    return filter ? Filter(std::move(flat), nullptr, choice.predicate) : std::move(flat);
  }

  std::vector<at::Tensor> found;
  if (Record* record = FindRecord(tree, &found); record != nullptr) {
    FlatTree flat(record->paths, std::move(found));
    return filter ? Filter(std::move(flat), record, choice.predicate) : std::move(flat);
  }

  Recorder recorder(choice);
  if (absl::Status status = recorder.Run(tree); !status.ok()) return status;
  // Canonical places of the leaves, in the order in which the walk met them.
  const auto& met = recorder.leaves();
  std::vector<uint32_t> order(met.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return met[a].first < met[b].first; });
  std::vector<uint32_t> place(met.size());
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<uint32_t>(i);
  absl::StatusOr<FlatTree> flat = MakeFlatTree(std::move(recorder.leaves()));
  if (!flat.ok()) return flat.status();
  flat->paths = SharedPaths(std::move(flat->paths));

  Record* record = nullptr;
  if (recorder.cacheable()) {
    auto& records = Records();
    for (auto& old : records) {
      if (old->last_root == tree) old->last_root = nullptr;
    }
    if (records.size() == kMaxRecords) records.pop_back();
    records.insert(records.begin(), recorder.Finish(place, flat->paths));
    record = records.front().get();
    record->last_root = tree;
  }
  if (filter) return Filter(*std::move(flat), record, choice.predicate);
  return flat;
}

bool IsTensor(PyObject* object) {
  return IsPlainTensorType(Py_TYPE(object)) || TypeOf(Py_TYPE(object)).kind == TypeKind::kTensor;
}

const at::Tensor& TensorOf(PyObject* object) { return Unpack(object); }

PyObject* TensorToPython(const at::Tensor& tensor) {
  if (!tensor.defined()) return Py_NewRef(Py_None);
  PyObject* object = THPVariable_Wrap(tensor);
  if (object == nullptr) throw py::error_already_set();
  return object;
}

absl::StatusOr<KeyComponent> ComponentFromPython(PyObject* key, const NestedKey& where) {
  if (PyUnicode_Check(key)) {
    Py_ssize_t size = 0;
    const char* bytes = PyUnicode_AsUTF8AndSize(key, &size);
    if (bytes == nullptr) {
      PyErr_Clear();
      return Unsupported(where, "a key is a string that has no UTF-8 form (a lone surrogate)");
    }
    return KeyComponent(std::string_view(bytes, size));
  }
  if (PyLong_Check(key) && !PyBool_Check(key)) {
    int overflow = 0;
    const long long position = PyLong_AsLongLongAndOverflow(key, &overflow);
    if (overflow != 0) {
      return Unsupported(where, "a key is an int of more than 64 bits");
    }
    if (position == -1 && PyErr_Occurred()) throw py::error_already_set();
    return KeyComponent(static_cast<int64_t>(position));
  }
  std::string shown;
  if (py::object text = py::reinterpret_steal<py::object>(PyObject_Repr(key)); text) {
    if (const char* utf8 = PyUnicode_AsUTF8(text.ptr())) shown = utf8;
  }
  PyErr_Clear();
  if (shown.size() > 80) shown.resize(80);
  return Unsupported(where, absl::StrCat("the key ", shown, " of type ", TypeName(key),
                                         " is neither a str nor an int"));
}

PyObject* PathToPython(const NestedKey& path) {
  py::tuple tuple(path.size());
  for (size_t i = 0; i < path.size(); ++i) {
    const KeyComponent& component = path[i];
    PyObject* item = component.is_position()
                         ? PyLong_FromLongLong(component.position())
                         : PyUnicode_DecodeUTF8(component.name().data(),
                                                static_cast<Py_ssize_t>(component.name().size()),
                                                "surrogateescape");
    if (item == nullptr) throw py::error_already_set();
    PyTuple_SET_ITEM(tuple.ptr(), i, item);
  }
  return tuple.release().ptr();
}

}  // namespace leafpack::python
