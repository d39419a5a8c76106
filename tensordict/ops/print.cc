#include "tensordict/ops/print.h"

#include <ATen/core/Tensor.h>
#include <c10/core/Layout.h>

#include <sstream>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tensordict/dtype.h"
#include "tensordict/non_tensor.h"
#include "tensordict/ops/walk.h"

namespace leafpack {
namespace {

using internal::Node;
using internal::TreeAccess;

std::string Rules(const Node& node, const Node* above) {
  std::string text = absl::StrCat("batch ", internal::ToText(node.batch_size));
  if (!node.names.empty() && (above == nullptr || node.names != above->names)) {
    absl::StrAppend(&text, " (",
                    absl::StrJoin(node.names, ", ",
                                  [](std::string* out, const std::string& name) {
                                    *out += name.empty() ? "_" : name;
                                  }),
                    ")");
  }
  if (node.device.has_value() && (above == nullptr || node.device != above->device)) {
    absl::StrAppend(&text, " on ", node.device->str());
  }
  if (node.locks > 0 && (above == nullptr || above->locks == 0)) text += ", locked";
  if (node.children.empty()) text += ", empty";
  return text;
}

std::string Leaf(const at::Tensor& leaf, const Node& node) {
  if (!leaf.defined()) return "undefined";
  std::string text = absl::StrCat(DtypeName(leaf.scalar_type()), " ",
                                  leaf.is_nested() ? "[nested]" : internal::ToText(leaf.sizes()));
  if (!node.device.has_value() && !leaf.device().is_cpu()) {
    absl::StrAppend(&text, " on ", leaf.device().str());
  }
  if (leaf.layout() != c10::kStrided) {
    std::ostringstream layout;
    layout << leaf.layout();
    absl::StrAppend(&text, " ", layout.str());
  }
  if (leaf.requires_grad()) text += ", requires grad";
  return text;
}

}  // namespace

std::string ToString(const TensorDict& tree, const PrintOptions& options) {
  struct Step {
    const Node* node;
    Node::ChildMap::const_iterator next;
  };
  const Node& root = TreeAccess::node(tree);
  std::string text = absl::StrCat("TensorDict ", Rules(root, nullptr));
  size_t lines = 1;
  std::vector<Step> stack = {{&root, root.children.begin()}};
  while (!stack.empty()) {
    Step& step = stack.back();
    if (step.next == step.node->children.end()) {
      stack.pop_back();
      continue;
    }
    const auto& [key, value] = *step.next;
    ++step.next;
    const auto* dict = std::get_if<TensorDict>(&value);
    if (++lines <= options.max_lines) {
      absl::StrAppend(&text, "\n", std::string(2 * stack.size(), ' '), key.ToString(), ": ");
      if (dict != nullptr) {
        text += Rules(TreeAccess::node(*dict), step.node);
      } else if (const auto* leaf = std::get_if<at::Tensor>(&value)) {
        text += Leaf(*leaf, *step.node);
      } else {
        text += std::get<NonTensor>(value).ToString();
      }
    }
    if (dict != nullptr) {
      const Node& node = TreeAccess::node(*dict);
      stack.push_back({&node, node.children.begin()});
    }
  }
  if (lines > options.max_lines) {
    absl::StrAppend(&text, "\n  ... (", lines - options.max_lines, " more)");
  }
  return text;
}

std::ostream& operator<<(std::ostream& out, const TensorDict& tree) {
  return out << ToString(tree);
}

}  // namespace leafpack
