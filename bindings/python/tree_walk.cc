#include "bindings/python/tree_walk.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "bindings/python/python_values.h"
#include "bindings/python/tensor_dict_object.h"
#include "distributed/core/error.h"
#include "tensordict/tensor_dict.h"

namespace leafpack::python {
namespace {

std::string CannotTravel(PyObject* value) {
  return absl::StrCat("a value of type ", TypeName(value),
                      " is neither a tensor nor a str, int, float, bool, bytes, None or a list of "
                      "these: it is not compared or sent");
}

}  // namespace

absl::Status TreeWalk::Run(PyObject* tree) {
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

absl::StatusOr<FlatTree> TreeWalk::TakeLeaves() {
  std::vector<std::pair<NestedKey, NonTensor>> values;
  std::vector<std::pair<NestedKey, at::Tensor>> tensors;
  tensors.reserve(leaves_.size());
  size_t next = 0;
  for (size_t i = 0; i < leaves_.size(); ++i) {
    if (next < values_.size() && values_[next].first == i) {
      values.emplace_back(std::move(leaves_[i].first), std::move(values_[next].second));
      ++next;
    } else {
      tensors.push_back(std::move(leaves_[i]));
    }
  }
  return MakeFlatTree(std::move(tensors), std::move(values));
}

std::unique_ptr<Record> TreeWalk::TakeRecord(const std::vector<uint32_t>& place,
                                             std::shared_ptr<const PathList> paths) {
  for (Node& node : nodes_) {
    for (Entry& entry : node.entries) {
      if (entry.what != Entry::What::kNode && entry.what != Entry::What::kPassedOver) {
        entry.slot = place[entry.slot];
      }
    }
  }
  auto record = std::make_unique<Record>();
  record->nodes = std::move(nodes_);
  record->paths = std::move(paths);
  record->has_plain_values = has_plain_values_;
  return record;
}

absl::Status TreeWalk::Value(py::object value, Entry* entry) {
  PyTypeObject* type = Py_TYPE(value.ptr());
  if (IsPlainTensorType(type)) return Leaf(value.ptr(), entry);
  const TypeInfo& info = TypeOf(type);
  switch (info.kind) {
    case TypeKind::kTensor:
      if (TensorOf(value.ptr()).key_set().has(c10::DispatchKey::Python)) {
        return Unsupported(path_, absl::StrCat("a tensor of class ", TypeName(value.ptr()),
                                               " has no memory of its own that can be used"));
      }
      return Leaf(value.ptr(), entry);
    case TypeKind::kNone:
      entry->what = Entry::What::kUndefined;
      entry->slot = static_cast<uint32_t>(leaves_.size());
      leaves_.emplace_back(path_, at::Tensor());
      return absl::OkStatus();
    case TypeKind::kNonTensor:
      return TensorDictEntry(value, entry);
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

absl::Status TreeWalk::Leaf(PyObject* value, Entry* entry) {
  entry->what = Entry::What::kLeaf;
  entry->slot = static_cast<uint32_t>(leaves_.size());
  leaves_.emplace_back(path_, TensorOf(value));
  return absl::OkStatus();
}

absl::Status TreeWalk::PlainValue(NonTensor value, Entry::What what, Entry* entry) {
  entry->what = what;
  entry->slot = static_cast<uint32_t>(leaves_.size());
  values_.emplace_back(entry->slot, std::move(value));
  leaves_.emplace_back(path_, at::Tensor());
  return absl::OkStatus();
}

absl::Status TreeWalk::TensorDictEntry(const py::object& entry_object, Entry* entry) {
  PyObject* data = NonTensorEntry(entry_object.ptr());
  if (data == nullptr) {
    return Unsupported(path_, "a non-tensor entry does not have the field that it should have");
  }
  const py::object value = py::reinterpret_borrow<py::object>(data);
  absl::StatusOr<std::optional<NonTensor>> plain = NonTensorFromPython(data, path_);
  if (plain.ok() && plain->has_value()) {
    return PlainValue(**std::move(plain), Entry::What::kEntryValue, entry);
  }
  if (choice_.kind != LeafChoice::Kind::kAll) {  // only tensors were asked for
    recordable_ = false;
    entry->what = Entry::What::kPassedOver;
    return absl::OkStatus();
  }
  if (!plain.ok()) return plain.status();
  return Unsupported(path_, CannotTravel(value.ptr()));
}

absl::Status TreeWalk::Other(const py::object& value, Entry* entry) {
  if (choice_.plain_values) {
    absl::StatusOr<std::optional<NonTensor>> plain = NonTensorFromPython(value.ptr(), path_);
    if (!plain.ok()) return plain.status();
    if (plain->has_value()) {
      has_plain_values_ = true;
      return PlainValue(**std::move(plain), Entry::What::kValue, entry);
    }
  }
  return PassOverOrRefuse(value, entry);
}

absl::Status TreeWalk::PassOverOrRefuse(const py::object& value, Entry* entry) {
  recordable_ = false;
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
  return Unsupported(path_, choice_.plain_values
                                ? CannotTravel(value.ptr())
                                : absl::StrCat("a value of type ", TypeName(value.ptr()),
                                               " cannot be reduced: it is no tensor"));
}

absl::Status TreeWalk::LeafpackNode(const py::object& value, Entry* entry) {
  recordable_ = false;
  entry->what = Entry::What::kPassedOver;
  const TensorDict& tree = TensorDictOf(value.ptr());
  absl::Status status;
  auto fits = [&](const NestedKey& path) {
    if (path_.size() + path.size() <= kMaxTreeDepth) return true;
    if (status.ok()) status = TooDeep();
    return false;
  };
  tree.Visit([&](const NestedKey& path, const at::Tensor& leaf) {
    if (fits(path)) leaves_.emplace_back(path_.Join(path), leaf);
  });
  tree.VisitNonTensors([&](const NestedKey& path, const NonTensor& leaf) {
    if (!fits(path)) return;
    values_.emplace_back(static_cast<uint32_t>(leaves_.size()), leaf);
    leaves_.emplace_back(path_.Join(path), at::Tensor());
  });
  return status;
}

absl::Status TreeWalk::Tree(py::object value, const TypeInfo& info, Entry* entry) {
  // Wrappers add no component to the path, so depth is counted apart from it: a tree that
  // contains itself ends here.
  if (depth_ >= 2 * kMaxTreeDepth || path_.size() > kMaxTreeDepth) return TooDeep();
  ++depth_;
  Node node;
  node.type =
      py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())));
  node.kind = info.kind;
  node.attribute = info.attribute;
  absl::Status status = ChildrenInto(value, info, &node);
  --depth_;
  if (!status.ok()) return status;
  entry->what = Entry::What::kNode;
  entry->node = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back(std::move(node));
  return absl::OkStatus();
}

absl::Status TreeWalk::ChildrenInto(const py::object& value, const TypeInfo& info, Node* node) {
  absl::StatusOr<Children> children = ChildrenOf(value, info, path_);
  if (!children.ok()) return children.status();
  if (!children->recordable) recordable_ = false;
  node->modules_from = children->modules_from;
  for (ChildItem& child : children->items) {
    Entry entry;
    entry.key = std::move(child.key);
    if (child.absent) {
      entry.what = Entry::What::kPassedOver;
    } else {
      const bool deeper = child.component.has_value();
      if (deeper) path_.push_back(*std::move(child.component));
      absl::Status status = Value(std::move(child.value), &entry);
      if (deeper) path_.pop_back();
      if (!status.ok()) return status;
    }
    node->entries.push_back(std::move(entry));
  }
  return absl::OkStatus();
}

absl::Status TreeWalk::TooDeep() const {
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

}  // namespace leafpack::python
