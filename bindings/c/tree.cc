// leafpack_tree.
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "bindings/c/guard.h"
#include "bindings/c/handles.h"
#include "bindings/c/leafpack.h"
#include "tensordict/tensor_dict.h"

namespace leafpack::c {
namespace {

at::IntArrayRef ReadBatchSize(const int64_t* batch_size, size_t batch_dims) {
  constexpr size_t kMaxDims = 64;
  if (batch_dims > kMaxDims) {
    FailArgument("batch_dims", absl::StrCat("is ", batch_dims, "; at most ", kMaxDims));
  }
  NeedArray(batch_size, batch_dims, "batch_size");
  for (size_t i = 0; i < batch_dims; ++i) {
    if (batch_size[i] < 0) {
      FailArgument("batch_size", absl::StrCat("has the size ", batch_size[i]));
    }
  }
  return at::IntArrayRef(batch_size, batch_dims);
}

}  // namespace
}  // namespace leafpack::c

using namespace leafpack::c;  // NOLINT(google-build-using-namespace): the functions of leafpack.h

leafpack_error* leafpack_tree_new(const int64_t* batch_size, size_t batch_dims,
                                  leafpack_tree** tree) {
  return Guard([&] {
    NeedPointer(tree, "tree");
    const at::IntArrayRef size = ReadBatchSize(batch_size, batch_dims);
    *tree = MakeHandle(leafpack_tree{leafpack::TensorDict(size)});
  });
}

void leafpack_tree_free(leafpack_tree* tree) { FreeHandle(tree); }

leafpack_error* leafpack_tree_set_tensor(leafpack_tree* tree, const leafpack_component* path,
                                         size_t depth, const leafpack_tensor* tensor) {
  return Guard([&] {
    const auto object = Need(tree, "tree");
    const auto key = ReadPath(path, depth);
    CheckOkAt(key, object->tree.Set(key, Need(tensor, "tensor")->tensor));
  });
}

leafpack_error* leafpack_tree_set_value(leafpack_tree* tree, const leafpack_component* path,
                                        size_t depth, const leafpack_value* value) {
  return Guard([&] {
    const auto object = Need(tree, "tree");
    const auto key = ReadPath(path, depth);
    CheckOkAt(key, object->tree.Set(key, Need(value, "value")->value));
  });
}

leafpack_error* leafpack_tree_set_tree(leafpack_tree* tree, const leafpack_component* path,
                                       size_t depth, const leafpack_tree* subtree) {
  return Guard([&] {
    const auto object = Need(tree, "tree");
    const auto key = ReadPath(path, depth);
    CheckOkAt(key, object->tree.Set(key, Need(subtree, "subtree")->tree));
  });
}

leafpack_error* leafpack_tree_get_tensor(const leafpack_tree* tree, const leafpack_component* path,
                                         size_t depth, leafpack_tensor** tensor) {
  return Guard([&] {
    NeedPointer(tensor, "tensor");
    const auto object = Need(tree, "tree");
    const auto key = ReadPath(path, depth);
    *tensor = MakeHandle(leafpack_tensor{ValueAt(key, object->tree.Get(key))});
  });
}

leafpack_error* leafpack_tree_get_value(const leafpack_tree* tree, const leafpack_component* path,
                                        size_t depth, leafpack_value** value) {
  return Guard([&] {
    NeedPointer(value, "value");
    const auto object = Need(tree, "tree");
    const auto key = ReadPath(path, depth);
    *value = MakeHandle(leafpack_value{ValueAt(key, object->tree.GetNonTensor(key))});
  });
}

leafpack_error* leafpack_tree_get_tree(const leafpack_tree* tree, const leafpack_component* path,
                                       size_t depth, leafpack_tree** subtree) {
  return Guard([&] {
    NeedPointer(subtree, "subtree");
    const auto object = Need(tree, "tree");
    const auto key = ReadPath(path, depth);
    *subtree = MakeHandle(leafpack_tree{ValueAt(key, object->tree.GetDict(key))});
  });
}

leafpack_error* leafpack_tree_erase(leafpack_tree* tree, const leafpack_component* path,
                                    size_t depth) {
  return Guard([&] {
    const auto object = Need(tree, "tree");
    const auto key = ReadPath(path, depth);
    CheckOkAt(key, object->tree.Erase(key));
  });
}

leafpack_error* leafpack_tree_clear(leafpack_tree* tree) {
  return Guard([&] { CheckOk(Need(tree, "tree")->tree.Clear()); });
}

leafpack_error* leafpack_tree_contains(const leafpack_tree* tree, const leafpack_component* path,
                                       size_t depth, int32_t* contains) {
  return Guard([&] {
    NeedPointer(contains, "contains");
    *contains = Need(tree, "tree")->tree.Contains(ReadPath(path, depth)) ? 1 : 0;
  });
}

leafpack_error* leafpack_tree_num_leaves(const leafpack_tree* tree, size_t* num_leaves) {
  return Guard([&] {
    NeedPointer(num_leaves, "num_leaves");
    *num_leaves = Need(tree, "tree")->tree.num_leaves();
  });
}

leafpack_error* leafpack_tree_batch_size(const leafpack_tree* tree, size_t* batch_dims,
                                         const int64_t** batch_size) {
  return Guard([&] {
    NeedPointer(batch_dims, "batch_dims");
    const at::IntArrayRef size = Need(tree, "tree")->tree.batch_size();
    *batch_dims = size.size();
    if (batch_size != nullptr) *batch_size = size.data();
  });
}

leafpack_error* leafpack_tree_set_batch_size(leafpack_tree* tree, const int64_t* batch_size,
                                             size_t batch_dims) {
  return Guard([&] {
    CheckOk(Need(tree, "tree")->tree.SetBatchSize(ReadBatchSize(batch_size, batch_dims)));
  });
}
