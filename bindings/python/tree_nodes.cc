#include "bindings/python/tree_nodes.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

#include "bindings/python/errors.h"
#include "bindings/python/python_values.h"
#include "bindings/python/tensor_dict_object.h"
#include "bindings/python/tree_children.h"
#include "bindings/python/type_kinds.h"
#include "tensordict/tensor_dict.h"

namespace leafpack::python {
namespace {

py::object NodesModule() { return py::module_::import("leafpack._nodes"); }

std::vector<int64_t> SizesOf(const py::handle& sizes) {
  std::vector<int64_t> result;
  for (py::handle size : sizes) result.push_back(size.cast<int64_t>());
  return result;
}

py::tuple SizesToPython(const std::vector<int64_t>& sizes) {
  py::tuple tuple(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) tuple[i] = py::int_(sizes[i]);
  return tuple;
}

bool IsNodeKind(TypeKind kind) {
  switch (kind) {
    case TypeKind::kDict:
    case TypeKind::kMapping:
    case TypeKind::kSequence:
    case TypeKind::kTensorDict:
    case TypeKind::kLazyStack:
    case TypeKind::kNonTensorStack:
    case TypeKind::kWrapper:
    case TypeKind::kModule:
    case TypeKind::kLeafpackTensorDict:
      return true;
    default:
      return false;
  }
}

class Describer {
 public:
  absl::Status Visit(const py::object& value) {
    PyTypeObject* type = Py_TYPE(value.ptr());
    if (IsPlainTensorType(type)) return absl::OkStatus();
    const TypeInfo& info = TypeOf(type);
    if (!IsNodeKind(info.kind)) return absl::OkStatus();
    if (depth_ >= 2 * kMaxTreeDepth || path_.size() > kMaxTreeDepth) {
      return Unsupported(NestedKey(), "the tree is too deep, or contains itself");
    }
    if (info.kind == TypeKind::kLeafpackTensorDict) {
      VisitLeafpack(TensorDictOf(value.ptr()));
      return absl::OkStatus();
    }
    if (info.kind == TypeKind::kWrapper && !WrapsNode(value, info)) return absl::OkStatus();
    AddNode(value, info);
    ++depth_;
    absl::Status status = VisitChildren(value, info);
    --depth_;
    return status;
  }

  std::vector<TreeSpec::Node> Take() {
    if (has_stacks_) MoveBatchSizesToNotes();
    std::sort(nodes_.begin(), nodes_.end(),
              [](const TreeSpec::Node& a, const TreeSpec::Node& b) { return a.path < b.path; });
    return std::move(nodes_);
  }

 private:
  static bool WrapsNode(py::object value, const TypeInfo& info) {
    const TypeInfo* kind = &info;
    for (int depth = 0; kind->kind == TypeKind::kWrapper && depth < kMaxTreeDepth; ++depth) {
      value = InstanceAttribute(value.ptr(), kind->attribute);
      if (!value || IsPlainTensorType(Py_TYPE(value.ptr()))) return false;
      kind = &TypeOf(Py_TYPE(value.ptr()));
    }
    return IsNodeKind(kind->kind);
  }

  absl::Status VisitChildren(const py::object& value, const TypeInfo& info) {
    absl::StatusOr<Children> children = ChildrenOf(value, info, path_);
    if (!children.ok()) return children.status();
    for (ChildItem& child : children->items) {
      if (child.absent) continue;
      if (!child.component.has_value()) {
        // The wrapper's own node stands for what it wraps.
        const TypeInfo& inner = TypeOf(Py_TYPE(child.value.ptr()));
        if (inner.kind == TypeKind::kLeafpackTensorDict) VisitLeafpackBelow(TensorDictOf(child.value.ptr()));
        if (!IsNodeKind(inner.kind) || inner.kind == TypeKind::kLeafpackTensorDict) continue;
        if (++depth_ >= 2 * kMaxTreeDepth) {
          return Unsupported(path_, "the tree contains itself");
        }
        absl::Status status = VisitChildren(child.value, inner);
        --depth_;
        if (!status.ok()) return status;
        continue;
      }
      path_.push_back(*std::move(child.component));
      absl::Status status = Visit(child.value);
      path_.pop_back();
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  void AddNode(const py::object& value, const TypeInfo& info) {
    TreeSpec::Node node;
    node.path = path_;
    switch (info.kind) {
      case TypeKind::kDict:
      case TypeKind::kMapping:
      case TypeKind::kModule:
        node.kind = NodeKind::kDict;
        break;
      case TypeKind::kSequence:
        node.kind = PyTuple_Check(value.ptr()) ? NodeKind::kTuple : NodeKind::kList;
        break;
      default:
        node.kind = NodeKind::kTensorDict;
        if (!PlainTensorDict(value, info, &node)) {
          if (!describe_) describe_ = NodesModule().attr("describe");
          py::tuple answer = describe_(value);
          node.batch_size = SizesOf(answer[0]);
          node.note = answer[1].cast<std::string>();
          has_stacks_ = has_stacks_ || answer[2].cast<bool>();
        }
    }
    nodes_.push_back(std::move(node));
  }

  // The short way for a tensordict that is nothing beside its batch size.
  static bool PlainTensorDict(const py::object& value, const TypeInfo& info,
                              TreeSpec::Node* node) {
    if (info.kind != TypeKind::kTensorDict) return false;
    static PyObject* const batch_size = PyUnicode_InternFromString("_batch_size");
    static PyObject* const names = PyUnicode_InternFromString("_td_dim_names");
    static PyObject* const device = PyUnicode_InternFromString("_device");
    py::object sizes = InstanceAttribute(value.ptr(), batch_size);
    if (!sizes || !PyTuple_Check(sizes.ptr())) return false;
    if (InstanceAttribute(value.ptr(), names).ptr() != Py_None) return false;
    if (InstanceAttribute(value.ptr(), device).ptr() != Py_None) return false;
    node->batch_size = SizesOf(sizes);
    return true;
  }

  // What stands in a stack has less dimensions than the stack, which no description allows. So all
  // tensordicts of such a tree say their batch size in their notes.
  void MoveBatchSizesToNotes() {
    const py::object add = NodesModule().attr("with_batch_size");
    for (TreeSpec::Node& node : nodes_) {
      if (node.kind != NodeKind::kTensorDict || node.batch_size.empty()) continue;
      node.note = add(py::bytes(node.note), SizesToPython(node.batch_size)).cast<std::string>();
      node.batch_size.clear();
    }
  }

  void VisitLeafpack(const TensorDict& tree) {
    TreeSpec::Node node;
    node.path = path_;
    node.batch_size = tree.batch_size().vec();
    node.names = tree.names();
    nodes_.push_back(std::move(node));
    VisitLeafpackBelow(tree);
  }

  void VisitLeafpackBelow(const TensorDict& tree) {
    for (const TensorDict::Child& child : tree.Children()) {
      if (!child.is_dict()) continue;
      path_.push_back(child.key);
      VisitLeafpack(child.dict());
      path_.pop_back();
    }
  }

  NestedKey path_;
  int depth_ = 0;
  bool has_stacks_ = false;
  py::object describe_;
  std::vector<TreeSpec::Node> nodes_;
};

// A node that is being built: its children wait in a dict until all of them are there.
struct Site {
  const TreeSpec::Node* node = nullptr;
  py::dict children;        // keys are str or int, in canonical order
  py::list values;          // keys of children that are plain values
  int64_t positions = 0;    // number of children that stand at a position
  bool dense = true;        // whether the positions are 0, 1, 2, ...
  bool has_names = false;
  bool has_other_kinds = false;  // a child is a node that is no tensordict
};

absl::Status Contradiction(const NestedKey& path, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the description of the tree contradicts itself at ", path.ToString(), ": ",
                   what));
}

class Builder {
 public:
  Builder(const std::vector<TreeSpec::Node>& nodes, const FlatTree& leaves, bool lifted, int times)
      : nodes_(nodes), leaves_(leaves), lifted_(lifted), times_(times) {}

  absl::StatusOr<py::object> Run() {
    if (nodes_.empty()) return OneLeaf();
    if (!nodes_[0].path.empty()) return Contradiction(nodes_[0].path, "there is no root");
    sites_.resize(nodes_.size());
    // Nodes and leaves are both in canonical order, so a walk over both meets the children of each
    // node in order. `open` are the nodes that stand above the next one.
    std::vector<size_t> open;
    size_t node = 0, leaf = 0;
    while (node < nodes_.size() || leaf < leaves_.size()) {
      const bool is_node =
          leaf == leaves_.size() ||
          (node < nodes_.size() && nodes_[node].path < (*leaves_.paths)[leaf]);
      const NestedKey& path = is_node ? nodes_[node].path : (*leaves_.paths)[leaf];
      while (!open.empty() && !IsParent(nodes_[open.back()].path, path)) open.pop_back();
      if (open.empty() && !(is_node && node == 0)) {
        return Contradiction(path, "no node stands above it");
      }
      if (is_node) {
        sites_[node].node = &nodes_[node];
        if (!open.empty()) {
          absl::Status status = AddChild(sites_[open.back()], path, py::none(), &nodes_[node]);
          if (!status.ok()) return status;
          parents_.push_back(open.back());
        } else {
          parents_.push_back(0);
        }
        open.push_back(node++);
      } else {
        absl::Status status = AddLeaf(sites_[open.back()], leaf);
        if (!status.ok()) return status;
        ++leaf;
      }
    }
    // Children come after their parents, so the last one is finished first.
    for (size_t i = nodes_.size(); i-- > 0;) {
      absl::StatusOr<py::object> built = Finish(sites_[i]);
      if (!built.ok()) return built.status();
      if (i == 0) return built;
      py::object key =
          py::reinterpret_steal<py::object>(ComponentToPython(nodes_[i].path.back()));
      if (PyDict_SetItem(sites_[parents_[i]].children.ptr(), key.ptr(), built->ptr()) != 0) {
        throw py::error_already_set();
      }
      sites_[i] = Site();
    }
    return absl::InternalError("a tree without a root");
  }

 private:
  static bool IsParent(const NestedKey& above, const NestedKey& path) {
    return path.size() == above.size() + 1 &&
           std::equal(above.begin(), above.end(), path.begin());
  }

  absl::StatusOr<py::object> OneLeaf() {
    if (leaves_.size() != 1 || !(*leaves_.paths)[0].empty()) {
      return Contradiction(NestedKey(), "there are leaves, but no node");
    }
    return LeafObject(0);
  }

  py::object LeafObject(size_t i) {
    if (const NonTensor* value = leaves_.non_tensor(i)) return NonTensorToPython(*value);
    return py::reinterpret_steal<py::object>(TensorToPython(leaves_.leaves[i]));
  }

  absl::Status AddLeaf(Site& site, size_t i) {
    const NestedKey& path = (*leaves_.paths)[i];
    const bool is_value = leaves_.non_tensor(i) != nullptr;
    if (site.node->kind == NodeKind::kTensorDict) {
      if (is_value) {
        site.values.append(py::reinterpret_steal<py::object>(ComponentToPython(path.back())));
      } else if (!leaves_.leaves[i].defined() && !absl::StrContains(site.node->note, "\"leafpack\"")) {
        return Contradiction(path, "a tensordict cannot hold a leaf without a tensor");
      }
    }
    return AddChild(site, path, LeafObject(i), nullptr);
  }

  // `node` is null for a leaf.
  absl::Status AddChild(Site& site, const NestedKey& path, const py::object& value,
                        const TreeSpec::Node* node) {
    const KeyComponent& component = path.back();
    if (component.is_position()) {
      if (component.position() != site.positions++) site.dense = false;
    } else {
      site.has_names = true;
    }
    // Stacks and tensorclasses of leafpack are tensordict nodes over leafpack's own.
    if (node != nullptr && node->kind != site.node->kind &&
        !(site.node->kind == NodeKind::kTensorDict && node->kind == NodeKind::kTree)) {
      site.has_other_kinds = true;
    }
    py::object key = py::reinterpret_steal<py::object>(ComponentToPython(component));
    if (PyDict_SetItem(site.children.ptr(), key.ptr(), value.ptr()) != 0) {
      throw py::error_already_set();
    }
    return absl::OkStatus();
  }

  absl::StatusOr<py::object> Finish(Site& site) {
    const TreeSpec::Node& node = *site.node;
    switch (node.kind) {
      case NodeKind::kDict:
        return py::object(std::move(site.children));
      case NodeKind::kList:
      case NodeKind::kTuple: {
        if (site.has_names || !site.dense) {
          return Contradiction(node.path, "the places of a list are not 0, 1, 2, ...");
        }
        py::object list = py::reinterpret_steal<py::object>(PyDict_Values(site.children.ptr()));
        if (!list) throw py::error_already_set();
        if (node.kind == NodeKind::kList) return list;
        return py::object(py::tuple(list));
      }
      case NodeKind::kTensorDict:
        return FinishTensorDict(site);
      case NodeKind::kTree:
        return FinishTree(site);
    }
    return Contradiction(node.path, "a node of an unknown kind");
  }

  absl::StatusOr<py::object> FinishTensorDict(Site& site) {
    const TreeSpec::Node& node = *site.node;
    if (site.has_other_kinds || (site.has_names && site.positions > 0) || !site.dense) {
      return Contradiction(node.path, "a tensordict cannot hold what it should hold");
    }
    if (!build_) build_ = NodesModule().attr("build");
    try {
      return py::object(build_(py::bytes(node.note), SizesToPython(node.batch_size), site.children, site.values,
                               site.positions > 0, lifted_, times_));
    } catch (const py::error_already_set& error) {
      return Contradiction(node.path, std::string(StatusFromException(error).message()));
    }
  }

  absl::StatusOr<py::object> FinishTree(Site& site) {
    if (site.has_other_kinds) {
      return Contradiction(site.node->path,
                           "a leafpack.TensorDict cannot hold what it should hold");
    }
    TensorDict tree(at::IntArrayRef(site.node->batch_size));
    absl::Status status = FillTree(tree, site.children);
    if (status.ok() && !site.node->names.empty()) {
      std::vector<std::string> names = site.node->names;
      if (names.size() < site.node->batch_size.size()) names.insert(names.begin(), "");
      status = tree.SetNames(std::move(names));
    }
    if (!status.ok()) return status;
    return py::cast(std::move(tree));
  }

  absl::Status FillTree(TensorDict& tree, const py::dict& children) {
    for (auto [key, value] : children) {
      absl::StatusOr<KeyComponent> component = ComponentFromPython(key.ptr(), NestedKey());
      if (!component.ok()) return component.status();
      NestedKey path(*std::move(component));
      absl::Status status;
      if (IsTensor(value.ptr())) {
        status = tree.Set(path, TensorOf(value.ptr()));
      } else if (value.is_none()) {
        status = tree.Set(path, at::Tensor());
      } else if (py::isinstance<TensorDict>(value)) {
        status = tree.Set(path, TensorDictOf(value.ptr()));
      } else {
        absl::StatusOr<std::optional<NonTensor>> plain = NonTensorFromPython(value.ptr(), path);
        if (!plain.ok()) return plain.status();
        if (!plain->has_value()) return Contradiction(path, "a value of an unknown kind");
        status = tree.Set(path, **std::move(plain));
      }
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const std::vector<TreeSpec::Node>& nodes_;
  const FlatTree& leaves_;
  const bool lifted_;
  const int times_;
  std::vector<Site> sites_;
  std::vector<size_t> parents_;
  py::object build_;
};

}  // namespace

absl::StatusOr<std::vector<TreeSpec::Node>> DescribeNodes(PyObject* tree) {
  Describer describer;
  absl::Status status = describer.Visit(py::reinterpret_borrow<py::object>(tree));
  if (!status.ok()) return status;
  return describer.Take();
}

absl::StatusOr<py::object> BuildTree(const std::vector<TreeSpec::Node>& nodes,
                                     const FlatTree& leaves, bool lifted, int times) {
  return Builder(nodes, leaves, lifted, times).Run();
}

}  // namespace leafpack::python
