#include "tensordict/ops/walk.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <new>
#include <utility>
#include <variant>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensordict/non_tensor.h"

namespace leafpack::internal {
namespace {

absl::Status TooDeep(std::string_view op) {
  return absl::InvalidArgumentError(
      absl::StrCat(op, ": a path has more than ", kMaxTreeDepth, " components"));
}

bool BeginsWith(at::IntArrayRef sizes, at::IntArrayRef batch) {
  return sizes.size() >= batch.size() && std::equal(batch.begin(), batch.end(), sizes.begin());
}

absl::Status LostBatch(std::string_view op, const NestedKey& path, const at::Tensor& made,
                       const Node& node) {
  return ErrorAt(op, path,
                 absl::StrCat("the shape ", ToText(made.sizes()),
                              " of the result does not begin with the batch size ",
                              ToText(node.batch_size)));
}

class Mapper {
 public:
  Mapper(std::string_view op, LeafFn leaf, NodeFn node) : op_(op), leaf_(leaf), node_(node) {}

  absl::Status Map(const Node& from, Node& to, const PathFrame* above, int depth) {
    if (depth > kMaxTreeDepth) return TooDeep(op_);
    const KeyComponent* at = nullptr;
    try {
      node_(from, to);
      for (const auto& [key, value] : from.children) {
        at = &key;
        if (const auto* leaf = std::get_if<at::Tensor>(&value)) {
          at::Tensor made = leaf->defined() ? leaf_(*leaf) : at::Tensor();
          if (made.defined() && !BeginsWith(made.sizes(), to.batch_size)) {
            return LostBatch(op_, PathOf(above, at), made, to);
          }
          to.children.try_emplace(to.children.end(), key, std::move(made));
        } else if (const auto* dict = std::get_if<TensorDict>(&value)) {
          const PathFrame frame = {above, &key};
          auto child = std::make_shared<Node>();
          if (absl::Status s = Map(TreeAccess::node(*dict), *child, &frame, depth + 1); !s.ok()) {
            return s;
          }
          to.children.try_emplace(to.children.end(), key, TreeAccess::Wrap(std::move(child)));
        } else {
          to.children.try_emplace(to.children.end(), key, std::get<NonTensor>(value));
        }
      }
    } catch (...) {
      const NestedKey path = PathOf(above, at);
      return CaughtAt(op_, &path);
    }
    to.num_dicts = from.num_dicts;
    return absl::OkStatus();
  }

 private:
  const std::string_view op_;
  const LeafFn leaf_;
  const NodeFn node_;
};

class Visitor {
 public:
  Visitor(std::string_view op, absl::FunctionRef<void(const at::Tensor&)> leaf)
      : op_(op), leaf_(leaf) {}

  absl::Status Visit(const Node& node, const PathFrame* above, int depth) {
    if (depth > kMaxTreeDepth) return TooDeep(op_);
    const KeyComponent* at = nullptr;
    try {
      for (const auto& [key, value] : node.children) {
        at = &key;
        if (const auto* leaf = std::get_if<at::Tensor>(&value)) {
          if (leaf->defined()) leaf_(*leaf);
        } else if (const auto* dict = std::get_if<TensorDict>(&value)) {
          const PathFrame frame = {above, &key};
          if (absl::Status s = Visit(TreeAccess::node(*dict), &frame, depth + 1); !s.ok()) {
            return s;
          }
        }
      }
    } catch (...) {
      const NestedKey path = PathOf(above, at);
      return CaughtAt(op_, &path);
    }
    return absl::OkStatus();
  }

 private:
  const std::string_view op_;
  const absl::FunctionRef<void(const at::Tensor&)> leaf_;
};

const char* KindOf(const Value& value) {
  if (std::holds_alternative<TensorDict>(value)) return "a node";
  if (std::holds_alternative<NonTensor>(value)) return "a value that is no tensor";
  return std::get<at::Tensor>(value).defined() ? "a tensor" : "an undefined tensor";
}

class Zipper {
 public:
  Zipper(std::string_view op, LeavesFn leaf, NodesFn node) : op_(op), leaf_(leaf), node_(node) {}

  // `to` may be null: then nothing is built, and what `leaf` returns is dropped.
  absl::Status Zip(absl::Span<const Node* const> from, Node* to, const PathFrame* above,
                   int depth) {
    if (depth > kMaxTreeDepth) return TooDeep(op_);
    const KeyComponent* at = nullptr;
    try {
      if (to != nullptr) {
        if (absl::Status s = node_(from, *to); !s.ok()) {
          return ErrorAt(op_, PathOf(above, nullptr), s.message());
        }
      }
      absl::InlinedVector<Node::ChildMap::const_iterator, 4> next;
      for (const Node* node : from) next.push_back(node->children.begin());
      absl::InlinedVector<at::Tensor, 4> leaves(from.size());
      absl::InlinedVector<const Node*, 4> nodes(from.size());
      for (; next[0] != from[0]->children.end(); ++next[0]) {
        const auto& [key, value] = *next[0];
        at = &key;
        const auto* leaf = std::get_if<at::Tensor>(&value);
        const auto* dict = std::get_if<TensorDict>(&value);
        if (leaf != nullptr) leaves[0] = *leaf;
        if (dict != nullptr) nodes[0] = &TreeAccess::node(*dict);
        for (size_t i = 1; i < from.size(); ++i) {
          if (next[i] == from[i]->children.end() || next[i]->first != key) {
            return OtherKeys(*from[0], *from[i], i, above);
          }
          const Value& other = next[i]->second;
          ++next[i];
          if (other.index() != value.index() ||
              (leaf != nullptr && leaf->defined() != std::get<at::Tensor>(other).defined())) {
            return ErrorAt(op_, PathOf(above, at),
                           absl::StrCat("tree 0 has ", KindOf(value), " there, tree ", i, " has ",
                                        KindOf(other)));
          }
          if (leaf != nullptr) {
            leaves[i] = std::get<at::Tensor>(other);
          } else if (dict != nullptr) {
            nodes[i] = &TreeAccess::node(std::get<TensorDict>(other));
          } else if (std::get<NonTensor>(other) != std::get<NonTensor>(value)) {
            return ErrorAt(op_, PathOf(above, at),
                           absl::StrCat("tree 0 has the value ",
                                        std::get<NonTensor>(value).ToString(), ", tree ", i, " ",
                                        std::get<NonTensor>(other).ToString()));
          }
        }
        if (leaf != nullptr) {
          at::Tensor made = leaf->defined() ? leaf_(leaves) : at::Tensor();
          if (to == nullptr) continue;
          if (made.defined() && !BeginsWith(made.sizes(), to->batch_size)) {
            return LostBatch(op_, PathOf(above, at), made, *to);
          }
          to->children.try_emplace(to->children.end(), key, std::move(made));
        } else if (dict != nullptr) {
          const PathFrame frame = {above, &key};
          std::shared_ptr<Node> child = to == nullptr ? nullptr : std::make_shared<Node>();
          if (absl::Status s = Zip(nodes, child.get(), &frame, depth + 1); !s.ok()) return s;
          if (to != nullptr) {
            to->children.try_emplace(to->children.end(), key, TreeAccess::Wrap(std::move(child)));
          }
        } else if (to != nullptr) {
          to->children.try_emplace(to->children.end(), key, std::get<NonTensor>(value));
        }
      }
      for (size_t i = 1; i < from.size(); ++i) {
        if (next[i] != from[i]->children.end()) return OtherKeys(*from[0], *from[i], i, above);
      }
    } catch (...) {
      const NestedKey path = PathOf(above, at);
      return CaughtAt(op_, &path);
    }
    if (to != nullptr) to->num_dicts = from[0]->num_dicts;
    return absl::OkStatus();
  }

 private:
  // Two nodes whose keys differ: names the first that only one has.
  absl::Status OtherKeys(const Node& first, const Node& other, size_t index,
                         const PathFrame* above) {
    auto a = first.children.begin();
    auto b = other.children.begin();
    while (a != first.children.end() && b != other.children.end() && a->first == b->first) {
      ++a;
      ++b;
    }
    const bool in_first =
        b == other.children.end() || (a != first.children.end() && a->first < b->first);
    return ErrorAt(op_, PathOf(above, in_first ? &a->first : &b->first),
                   in_first ? absl::StrCat("tree 0 has it, tree ", index, " has not")
                            : absl::StrCat("tree ", index, " has it, tree 0 has not"));
  }

  const std::string_view op_;
  const LeavesFn leaf_;
  const NodesFn node_;
};

}  // namespace

NestedKey PathOf(const PathFrame* above, const KeyComponent* key) {
  std::vector<KeyComponent> components;
  if (key != nullptr) components.push_back(*key);
  for (; above != nullptr; above = above->above) components.push_back(*above->key);
  std::reverse(components.begin(), components.end());
  return NestedKey(std::move(components));
}

Dims Join(at::IntArrayRef a, at::IntArrayRef b) {
  Dims joined(a.begin(), a.end());
  joined.insert(joined.end(), b.begin(), b.end());
  return joined;
}

std::string ToText(at::IntArrayRef sizes) {
  return absl::StrCat("[", absl::StrJoin(sizes, ", "), "]");
}

absl::Status CaughtAt(std::string_view op, const NestedKey* path) {
  const std::string where =
      path == nullptr || path->empty() ? std::string(op) : absl::StrCat(op, ": ", path->ToString());
  try {
    throw;
  } catch (const c10::NotImplementedError& e) {
    return absl::UnimplementedError(absl::StrCat(where, ": ", e.what_without_backtrace()));
  } catch (const c10::OutOfMemoryError& e) {
    return absl::ResourceExhaustedError(absl::StrCat(where, ": ", e.what_without_backtrace()));
  } catch (const c10::Error& e) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", e.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(where, ": out of memory"));
  } catch (const std::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(where, ": ", e.what()));
  } catch (...) {
    return absl::UnknownError(absl::StrCat(where, ": threw what is no std::exception"));
  }
}

absl::Status ErrorAt(std::string_view op, const NestedKey& path, std::string_view text) {
  if (path.empty()) return absl::InvalidArgumentError(absl::StrCat(op, ": ", text));
  return absl::InvalidArgumentError(absl::StrCat(op, ": ", path.ToString(), ": ", text));
}

void CopyRules(const Node& from, Node& to) {
  to.batch_size = from.batch_size;
  to.names = from.names;
  to.device = from.device;
}

absl::StatusOr<TensorDict> MapTree(std::string_view op, const TensorDict& tree, LeafFn leaf,
                                   NodeFn node) {
  auto root = std::make_shared<Node>();
  if (absl::Status s = Mapper(op, leaf, node).Map(TreeAccess::node(tree), *root, nullptr, 0);
      !s.ok()) {
    return s;
  }
  return TreeAccess::Wrap(std::move(root));
}

absl::Status VisitTensors(std::string_view op, const TensorDict& tree,
                          absl::FunctionRef<void(const at::Tensor& leaf)> leaf) {
  return Visitor(op, leaf).Visit(TreeAccess::node(tree), nullptr, 0);
}

absl::StatusOr<std::vector<at::Tensor>> TensorsOf(std::string_view op, const TensorDict& tree) {
  std::vector<at::Tensor> tensors;
  absl::Status s =
      VisitTensors(op, tree, [&](const at::Tensor& leaf) { tensors.push_back(leaf); });
  if (!s.ok()) return s;
  return tensors;
}

absl::StatusOr<TensorDict> WithTensors(std::string_view op, const TensorDict& tree,
                                       absl::Span<const at::Tensor> tensors, NodeFn node) {
  size_t next = 0;
  return MapTree(op, tree, [&](const at::Tensor&) { return tensors[next++]; }, node);
}

absl::StatusOr<TensorDict> ZipTrees(std::string_view op, absl::Span<const TensorDict> trees,
                                    LeavesFn leaf, NodesFn node) {
  if (trees.empty()) return absl::InvalidArgumentError(absl::StrCat(op, ": no tree is given"));
  std::vector<const Node*> nodes;
  nodes.reserve(trees.size());
  for (const TensorDict& tree : trees) nodes.push_back(&TreeAccess::node(tree));
  auto root = std::make_shared<Node>();
  if (absl::Status s = Zipper(op, leaf, node).Zip(nodes, root.get(), nullptr, 0); !s.ok()) return s;
  return TreeAccess::Wrap(std::move(root));
}

absl::StatusOr<TensorPairs> PairsOf(std::string_view op, const TensorDict& a, const TensorDict& b) {
  TensorPairs pairs;
  const auto leaf = [&](absl::Span<const at::Tensor> leaves) {
    pairs.a.push_back(leaves[0]);
    pairs.b.push_back(leaves[1]);
    return at::Tensor();
  };
  const auto node = [](absl::Span<const Node* const>, Node&) { return absl::OkStatus(); };
  const Node* const both[] = {&TreeAccess::node(a), &TreeAccess::node(b)};
  if (absl::Status s = Zipper(op, leaf, node).Zip(both, nullptr, nullptr, 0); !s.ok()) return s;
  return pairs;
}

}  // namespace leafpack::internal
