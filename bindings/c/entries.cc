// leafpack_entries: leaves or children of a tree; leafpack_layout.
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "bindings/c/guard.h"
#include "bindings/c/handles.h"
#include "bindings/c/leafpack.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"

namespace leafpack::c {
namespace {

using Entry = leafpack_entries::Entry;

template <typename Value>
Entry MakeEntry(NestedKey key, Value value) {
  Entry entry{.key = std::move(key), .text = {}, .path = {}, .value = std::move(value)};
  entry.text = entry.key.ToString();
  entry.path = PathOf(entry.key);  // moving a NestedKey leaves its components where they are
  return entry;
}

leafpack_entries LeavesOf(const TensorDict& tree) {
  const FlatTree flat = Flatten(tree);
  leafpack_entries result;
  result.entries.reserve(flat.size());
  for (size_t i = 0; i < flat.size(); ++i) {
    const NonTensor* value = flat.non_tensor(i);
    result.entries.push_back(value != nullptr ? MakeEntry((*flat.paths)[i], *value)
                                              : MakeEntry((*flat.paths)[i], flat.leaves[i]));
  }
  return result;
}

leafpack_entries ChildrenOf(const TensorDict& tree) {
  leafpack_entries result;
  result.entries.reserve(tree.size());
  for (TensorDict::Child& child : tree.Children()) {
    result.entries.push_back(std::visit(
        [&](auto& value) { return MakeEntry(NestedKey(std::move(child.key)), std::move(value)); },
        child.value));
  }
  return result;
}

const Entry& EntryAt(const leafpack_entries& entries, size_t index) {
  if (index >= entries.entries.size()) {
    Fail(absl::OutOfRangeError(
        absl::StrCat("index is ", index, " among ", entries.entries.size(), " entries")));
  }
  return entries.entries[index];
}

template <typename Value>
const Value& ReadEntry(const leafpack_entries& entries, size_t index, const char* expected) {
  const Entry& entry = EntryAt(entries, index);
  const Value* value = std::get_if<Value>(&entry.value);
  if (value == nullptr) {
    CheckOkAt(entry.key,
              absl::InvalidArgumentError(absl::StrCat(entry.text, " is no ", expected)));
  }
  return *value;
}

std::string TextOf(const Layout& layout) {
  std::string text;
  for (const Layout::Entry& entry : layout.Describe()) {
    absl::StrAppend(&text, entry.path, ": ", entry.value, "\n");
  }
  return text;
}

}  // namespace
}  // namespace leafpack::c

using namespace leafpack::c;  // NOLINT(google-build-using-namespace): the functions of leafpack.h

leafpack_error* leafpack_tree_leaves(const leafpack_tree* tree, leafpack_entries** entries) {
  return Guard([&] {
    NeedPointer(entries, "entries");
    *entries = MakeHandle(LeavesOf(Need(tree, "tree")->tree));
  });
}

leafpack_error* leafpack_tree_children(const leafpack_tree* tree, leafpack_entries** entries) {
  return Guard([&] {
    NeedPointer(entries, "entries");
    *entries = MakeHandle(ChildrenOf(Need(tree, "tree")->tree));
  });
}

leafpack_error* leafpack_entries_size(const leafpack_entries* entries, size_t* size) {
  return Guard([&] {
    NeedPointer(size, "size");
    *size = Need(entries, "entries")->entries.size();
  });
}

leafpack_error* leafpack_entries_kind(const leafpack_entries* entries, size_t index,
                                      int32_t* kind) {
  return Guard([&] {
    NeedPointer(kind, "kind");
    const auto object = Need(entries, "entries");
    const auto& value = EntryAt(*object, index).value;
    *kind = std::holds_alternative<at::Tensor>(value)            ? LEAFPACK_ENTRY_TENSOR
            : std::holds_alternative<leafpack::NonTensor>(value) ? LEAFPACK_ENTRY_VALUE
                                                                 : LEAFPACK_ENTRY_TREE;
  });
}

leafpack_error* leafpack_entries_path(const leafpack_entries* entries, size_t index,
                                      const leafpack_component** path, size_t* depth) {
  return Guard([&] {
    NeedPointer(path, "path");
    NeedPointer(depth, "depth");
    const auto object = Need(entries, "entries");
    const auto& entry = EntryAt(*object, index);
    *path = entry.path.data();
    *depth = entry.path.size();
  });
}

leafpack_error* leafpack_entries_path_text(const leafpack_entries* entries, size_t index,
                                           const char** text) {
  return Guard([&] {
    NeedPointer(text, "text");
    *text = EntryAt(*Need(entries, "entries"), index).text.c_str();
  });
}

leafpack_error* leafpack_entries_tensor(const leafpack_entries* entries, size_t index,
                                        leafpack_tensor** tensor) {
  return Guard([&] {
    NeedPointer(tensor, "tensor");
    const auto object = Need(entries, "entries");
    *tensor = MakeHandle(leafpack_tensor{ReadEntry<at::Tensor>(*object, index, "tensor")});
  });
}

leafpack_error* leafpack_entries_value(const leafpack_entries* entries, size_t index,
                                       leafpack_value** value) {
  return Guard([&] {
    NeedPointer(value, "value");
    const auto object = Need(entries, "entries");
    *value = MakeHandle(leafpack_value{ReadEntry<leafpack::NonTensor>(*object, index, "value")});
  });
}

leafpack_error* leafpack_entries_tree(const leafpack_entries* entries, size_t index,
                                      leafpack_tree** tree) {
  return Guard([&] {
    NeedPointer(tree, "tree");
    const auto object = Need(entries, "entries");
    *tree = MakeHandle(leafpack_tree{ReadEntry<leafpack::TensorDict>(*object, index, "tree")});
  });
}

void leafpack_entries_free(leafpack_entries* entries) { FreeHandle(entries); }

leafpack_error* leafpack_layout_of(const leafpack_tree* tree, leafpack_layout** layout) {
  return Guard([&] {
    NeedPointer(layout, "layout");
    leafpack_layout made;
    made.layout = ValueOf(leafpack::Layout::Of(leafpack::Flatten(Need(tree, "tree")->tree)));
    made.text = TextOf(made.layout);
    *layout = MakeHandle(std::move(made));
  });
}

leafpack_error* leafpack_layout_digest(const leafpack_layout* layout, uint64_t* low,
                                       uint64_t* high) {
  return Guard([&] {
    NeedPointer(low, "low");
    NeedPointer(high, "high");
    const leafpack::Digest128 digest = Need(layout, "layout")->layout.digest();
    *low = digest.lo;
    *high = digest.hi;
  });
}

leafpack_error* leafpack_layout_text(const leafpack_layout* layout, const char** text) {
  return Guard([&] {
    NeedPointer(text, "text");
    *text = Need(layout, "layout")->text.c_str();
  });
}

leafpack_error* leafpack_layout_num_bytes(const leafpack_layout* layout, int64_t* num_bytes) {
  return Guard([&] {
    NeedPointer(num_bytes, "num_bytes");
    *num_bytes = Need(layout, "layout")->layout.total_bytes();
  });
}

void leafpack_layout_free(leafpack_layout* layout) { FreeHandle(layout); }
