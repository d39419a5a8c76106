#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Device.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tensordict/dtype.h"
#include "tensordict/io/atomic_file.h"
#include "tensordict/io/json.h"
#include "tensordict/io/memmap.h"
#include "tensordict/io/memmap_format.h"
#include "tensordict/nested_key.h"
#include "tensordict/non_tensor.h"
#include "tensordict/ops/combine.h"
#include "tensordict/ops/walk.h"

namespace leafpack {
namespace {

using internal::IsMemmapName;
using internal::Json;
using internal::kMemmapDtypes;
using internal::MemmapErrnoError;
using internal::MemmapError;
using internal::MemmapFileName;

absl::StatusOr<std::vector<int64_t>> ReadSizes(const Json* json, const std::string& where) {
  const auto* items = json == nullptr ? nullptr : std::get_if<Json::Array>(&json->value);
  if (items == nullptr) return absl::InvalidArgumentError(absl::StrCat(where, " has no shape"));
  std::vector<int64_t> sizes;
  for (const Json& item : *items) {
    const auto* size = std::get_if<int64_t>(&item.value);
    if (size == nullptr || *size < 0 || items->size() > 64) {
      return absl::InvalidArgumentError(absl::StrCat(where, " has no valid shape"));
    }
    sizes.push_back(*size);
  }
  return sizes;
}

absl::StatusOr<NonTensor> FromJson(const Json& json) {
  if (const auto* flag = std::get_if<bool>(&json.value)) return NonTensor(*flag);
  if (const auto* whole = std::get_if<int64_t>(&json.value)) return NonTensor(*whole);
  if (const auto* number = std::get_if<double>(&json.value)) return NonTensor(*number);
  if (const auto* text = std::get_if<std::string>(&json.value)) return NonTensor(*text);
  if (const auto* items = std::get_if<Json::Array>(&json.value)) {
    std::vector<NonTensor> values;
    for (const Json& item : *items) {
      absl::StatusOr<NonTensor> value = FromJson(item);
      if (!value.ok()) return value;
      values.push_back(*std::move(value));
    }
    return NonTensor::List(std::move(values));
  }
  if (std::holds_alternative<std::monostate>(json.value)) return NonTensor();
  return absl::UnimplementedError("a dictionary is no plain value");
}

absl::Status CheckDevice(const Json* device, const std::string& where) {
  if (device == nullptr || std::holds_alternative<std::monostate>(device->value)) return absl::OkStatus();
  if (const std::string* name = device->text(); name != nullptr) {
    if (*name == "None") return absl::OkStatus();
    try {
      (void)c10::Device(*name);
      return absl::OkStatus();
    } catch (...) {
      // Told below.
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": the device ", internal::WriteJson(*device), " does not exist"));
}

// What all kinds of nodes say in their meta.json.
absl::Status CheckFormat(const Json& meta, const std::string& file) {
  // An object is a leaf of this name.
  if (const Json* version = meta.Find("_format_version");
      version != nullptr && !std::holds_alternative<Json::Object>(version->value)) {
    const auto* number = std::get_if<int64_t>(&version->value);
    if (number == nullptr || *number < 0 || *number > internal::kMemmapVersion) {
      return absl::UnimplementedError(
          absl::StrCat("file ", file, ": _format_version ", internal::WriteJson(*version),
                       " cannot be read; versions up to ", internal::kMemmapVersion, " can"));
    }
  }
  return CheckDevice(meta.Find("device"), absl::StrCat("file ", file));
}

// tensordict writes its own entries over those of leaves of these names; the files of the leaves stay.
absl::Status CheckLost(const std::string& folder) {
  for (const char* name : {"shape", "device", "_type"}) {
    for (const char* rest : {".memmap", "/meta.json"}) {
      const std::string file = absl::StrCat(name, rest);
      struct stat info {};
      if (lstat(absl::StrCat(folder, "/", file).c_str(), &info) != 0) continue;
      return MemmapError(folder + "/meta.json",
                         absl::StrCat("the entry of ", name, " was lost when the folder was written: ", file,
                                      " is there, and nothing says what it holds"));
    }
  }
  return absl::OkStatus();
}

// An entry that tensordict keeps although it has a name of the format's own.
bool IsKeptLeaf(const std::string& key, const Json& entry) {
  return (key == "_format_version" || key == "_class" || key == "_names") &&
         (entry.Find("type") != nullptr || entry.Find("dtype") != nullptr);
}

// A file in memory.
struct Mapping {
  std::string file;  // empty: writes do not reach it
  void* data;
  size_t bytes;
};

void DeleteMapping(void* context) {
  const std::unique_ptr<Mapping> mapping(static_cast<Mapping*>(context));
  munmap(mapping->data, mapping->bytes);
}

class Loader {
 public:
  // `root` may be a link, folders below it may not.
  Loader(std::string root, MapMode mode) : root_(std::move(root)), mode_(mode) {}

  absl::StatusOr<TensorDict> Load(const std::string& folder, const Json& meta, int depth) {
    const std::string file = folder + "/meta.json";
    if (depth > kMaxTreeDepth) {
      return MemmapError(file, absl::StrCat("lies deeper than ", kMaxTreeDepth, " folders"));
    }
    const auto* entries = std::get_if<Json::Object>(&meta.value);
    if (entries == nullptr) return MemmapError(file, "is no JSON object");
    const absl::StatusOr<std::vector<int64_t>> batch =
        ReadSizes(meta.Find("shape"), absl::StrCat("file ", file, ": the node"));
    if (!batch.ok()) return batch.status();
    TensorDict tree(*batch);
    if (const Json* names = meta.Find("_names");
        names != nullptr && !std::holds_alternative<std::monostate>(names->value) &&
        !IsKeptLeaf("_names", *names)) {
      const auto* items = std::get_if<Json::Array>(&names->value);
      if (items == nullptr) return MemmapError(file, "has no valid _names");
      std::vector<std::string> text;
      for (const Json& item : *items) {
        if (item.text() == nullptr && !std::holds_alternative<std::monostate>(item.value)) {
          return MemmapError(file, "has no valid _names");
        }
        text.push_back(item.text() == nullptr ? std::string() : *item.text());
      }
      if (absl::Status s = tree.SetNames(std::move(text)); !s.ok()) {
        return MemmapError(file, s.message());
      }
    }
    if (absl::Status s = CheckLost(folder); !s.ok()) return s;
    for (const auto& [key, entry] : *entries) {
      if (IsMemmapName(key) && !IsKeptLeaf(key, entry)) continue;
      if (absl::Status s = LoadEntry(folder, key, entry, depth, tree); !s.ok()) return s;
    }
    return tree;
  }

  // The trees in the folders 0, 1, ... at these positions of a node, whose batch dimensions are those
  // before the one along which they stand.
  absl::StatusOr<TensorDict> LoadStack(const std::string& folder, const Json& meta, int depth) {
    const std::string file = folder + "/meta.json";
    if (depth > kMaxTreeDepth) {
      return MemmapError(file, absl::StrCat("lies deeper than ", kMaxTreeDepth, " folders"));
    }
    const Json* dim_entry = meta.Find("stack_dim");
    const int64_t* dim = dim_entry == nullptr ? nullptr : std::get_if<int64_t>(&dim_entry->value);
    if (dim == nullptr || *dim < 0) return MemmapError(file, "has no valid stack_dim");
    const absl::StatusOr<int64_t> count = CountParts(folder);
    if (!count.ok()) return count.status();
    TensorDict tree;
    std::vector<int64_t> first;
    for (int64_t i = 0; i < *count; ++i) {
      const std::string part = absl::StrCat(folder, "/", i);
      std::vector<int64_t> sizes;
      absl::StatusOr<TensorDict> node = LoadNode(part, depth + 1, &sizes);
      if (!node.ok()) return node.status();
      if (i == 0) {
        first = sizes;
        if (*dim > static_cast<int64_t>(sizes.size())) {
          return MemmapError(file, absl::StrCat("stack_dim ", *dim, " is no place beside a batch size ",
                                                internal::ToText(sizes)));
        }
        if (*dim > static_cast<int64_t>(node->batch_size().size())) {
          return absl::UnimplementedError(absl::StrCat(
              "file ", file, ": a stack of stacks along an earlier dimension cannot be read"));
        }
        tree = TensorDict(at::IntArrayRef(sizes).slice(0, static_cast<size_t>(*dim)));
      } else if (sizes != first) {
        return MemmapError(part, absl::StrCat("has the batch size ", internal::ToText(sizes),
                                              ", the tree 0 beside it ", internal::ToText(first)));
      }
      if (absl::Status s = tree.Set(KeyComponent(i), *std::move(node)); !s.ok()) return In(part, s);
    }
    return tree;
  }

  // What the folder says that it holds; `sizes`: its batch size, a stack's own dimension counted in.
  absl::StatusOr<TensorDict> LoadNode(const std::string& folder, int depth,
                                      std::vector<int64_t>* sizes) {
    const absl::StatusOr<Json> meta = ReadMeta(folder);
    if (!meta.ok()) return meta.status();
    const Json* type = meta->Find("_type");
    const bool is_text = type != nullptr && type->text() != nullptr;
    absl::StatusOr<TensorDict> node = absl::UnimplementedError(absl::StrCat(
        "file ", folder, "/meta.json: the folder is of the kind ",
        type == nullptr ? std::string("none") : internal::WriteJson(*type),
        ", which cannot be read; TensorDict and LazyStackedTensorDict can"));
    if (is_text && *type->text() == internal::kStackType) {
      node = LoadStack(folder, *meta, depth);
      if (node.ok()) *sizes = StackSizes(*node);
    } else if (is_text && type->text()->find("TensorDict'") != std::string::npos &&
               type->text()->find("Lazy") == std::string::npos) {
      node = Load(folder, *meta, depth);
      if (node.ok()) *sizes = node->batch_size().vec();
    }
    return node;
  }

  absl::StatusOr<Json> ReadMeta(const std::string& folder) {
    struct stat info {};
    if (lstat(folder.c_str(), &info) == 0 && S_ISLNK(info.st_mode) && folder != root_) {
      return MemmapError(folder, "is a link");
    }
    const std::string file = folder + "/meta.json";
    const absl::StatusOr<std::string> text = internal::ReadMemmapText(file);
    if (!text.ok()) return text.status();
    absl::StatusOr<Json> json = internal::ParseJson(*text);
    if (!json.ok()) return MemmapError(file, json.status().message());
    if (absl::Status s = CheckFormat(*json, file); !s.ok()) return s;
    return json;
  }

 private:
  static absl::Status In(const std::string& where, const absl::Status& status) {
    return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
  }

  // Of a node that LoadStack made.
  static std::vector<int64_t> StackSizes(const TensorDict& stack) {
    const std::vector<TensorDict::Child> parts = stack.Children();
    const TensorDict& first = parts[0].dict();
    const bool is_stack = !first.empty() && first.Children()[0].key.is_position();
    std::vector<int64_t> sizes = is_stack ? StackSizes(first) : first.batch_size().vec();
    sizes.insert(sizes.begin() + static_cast<long>(stack.batch_size().size()),
                 static_cast<int64_t>(parts.size()));
    return sizes;
  }

  // A stack along one of the first `taken` dimensions, which all below the tree that holds it must have,
  // as one tree.
  static absl::StatusOr<TensorDict> MadeDense(TensorDict stack, size_t taken,
                                              const std::string& where) {
    while (stack.batch_size().size() < taken) {
      std::vector<TensorDict> parts;
      for (const TensorDict::Child& child : stack.Children()) {
        if (!child.key.is_position() || !child.is_dict()) return stack;
        parts.push_back(child.dict());
      }
      if (parts.empty()) return stack;
      const size_t dim = stack.batch_size().size();
      absl::StatusOr<TensorDict> dense = Stack(parts, static_cast<int64_t>(dim));
      if (!dense.ok()) {
        return absl::UnimplementedError(absl::StrCat(
            where, ": the trees stand along dimension ", dim, ", which is one of the ", taken,
            " batch dimensions of the tree above, and cannot be one tree: ",
            dense.status().message()));
      }
      stack = *std::move(dense);
    }
    return stack;
  }

  // How many folders 0, 1, ... there are. An error if there is none, or another folder.
  static absl::StatusOr<int64_t> CountParts(const std::string& folder) {
    std::vector<std::string> names;
    std::error_code error;
    for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
         at.increment(error)) {
      std::error_code ignored;
      if (at->is_directory(ignored)) names.push_back(at->path().filename().string());
    }
    if (error) return MemmapErrnoError(folder, "cannot be listed", error.value());
    if (names.empty()) return MemmapError(folder, "is a stack without a tree");
    std::sort(names.begin(), names.end());
    for (size_t i = 0; i < names.size(); ++i) {
      if (!std::binary_search(names.begin(), names.end(), absl::StrCat(i))) {
        return MemmapError(folder, absl::StrCat("is a stack of ", names.size(),
                                                " folders, of which none is called ", i));
      }
    }
    return static_cast<int64_t>(names.size());
  }

  // Values, one for each element of `left`, the batch dimensions that are left of `batch`, at the
  // positions of a node.
  static absl::StatusOr<TensorDict> ValuesFromJson(const Json& json, at::IntArrayRef left,
                                                   at::IntArrayRef batch) {
    const auto* items = std::get_if<Json::Array>(&json.value);
    if (left.empty() || items == nullptr || static_cast<int64_t>(items->size()) != left[0]) {
      return absl::InvalidArgumentError(
          absl::StrCat("the values are not one for each element of the batch ",
                       internal::ToText(batch)));
    }
    TensorDict tree(batch);
    for (size_t i = 0; i < items->size(); ++i) {
      const KeyComponent key(static_cast<int64_t>(i));
      absl::Status set;
      if (left.size() > 1) {
        absl::StatusOr<TensorDict> node = ValuesFromJson((*items)[i], left.slice(1), batch);
        if (!node.ok()) return node.status();
        set = tree.Set(key, *std::move(node));
      } else {
        absl::StatusOr<NonTensor> value = FromJson((*items)[i]);
        if (!value.ok()) return value.status();
        set = tree.Set(key, *std::move(value));
      }
      if (!set.ok()) return set;
    }
    return tree;
  }

  absl::Status LoadEntry(const std::string& folder, const std::string& key, const Json& entry,
                         int depth, TensorDict& tree) {
    const std::string where =
        absl::StrCat("file ", folder, "/meta.json: ", NestedKey(key).ToString());
    if (const Json* type = entry.Find("type"); type != nullptr) {
      const std::string below = absl::StrCat(folder, "/", MemmapFileName(key));
      absl::StatusOr<Json> meta = ReadMeta(below);
      if (!meta.ok()) return meta.status();
      const Json* data = meta->Find("data");
      const Json* plain = meta->Find("_is_non_tensor");
      if (plain != nullptr && std::get_if<bool>(&plain->value) != nullptr && data != nullptr) {
        absl::StatusOr<NonTensor> value = FromJson(*data);
        if (!value.ok()) return In(where, value.status());
        return Put(tree, key, *std::move(value), where);
      }
      absl::StatusOr<TensorDict> node = absl::UnimplementedError(absl::StrCat(
          where, ": a node of the kind ", internal::WriteJson(*type),
          " cannot be read; TensorDict, LazyStackedTensorDict and plain values can"));
      if (type->text() != nullptr && *type->text() == "TensorDict") {
        node = Load(below, *meta, depth + 1);
      } else if (type->text() != nullptr && *type->text() == internal::kStackKind) {
        node = LoadStack(below, *meta, depth + 1);
        if (node.ok()) node = MadeDense(*std::move(node), tree.batch_size().size(), where);
      } else if (type->text() != nullptr && *type->text() == internal::kValuesKind &&
                 data != nullptr) {
        node = ValuesFromJson(*data, tree.batch_size(), tree.batch_size());
        if (!node.ok()) node = In(where, node.status());
      }
      if (!node.ok()) return node.status();
      return Put(tree, key, *std::move(node), where);
    }
    const absl::StatusOr<at::Tensor> leaf = LoadLeaf(folder, key, entry, where);
    if (!leaf.ok()) return leaf.status();
    return Put(tree, key, *leaf, where);
  }

  template <typename Value>
  static absl::Status Put(TensorDict& tree, const std::string& key, Value value,
                          const std::string& where) {
    absl::Status s = tree.Set(key, std::move(value));
    if (s.ok()) return s;
    return absl::Status(s.code(), absl::StrCat(where, ": ", s.message()));
  }

  absl::StatusOr<at::Tensor> LoadLeaf(const std::string& folder, const std::string& key,
                                      const Json& entry, const std::string& where) {
    const absl::StatusOr<std::vector<int64_t>> sizes = ReadSizes(entry.Find("shape"), where);
    if (!sizes.ok()) return sizes.status();
    const Json* dtype_name = entry.Find("dtype");
    const auto* dtype = std::find_if(
        std::begin(kMemmapDtypes), std::end(kMemmapDtypes), [&](at::ScalarType known) {
          return dtype_name != nullptr && dtype_name->text() != nullptr &&
                 *dtype_name->text() == absl::StrCat("torch.", DtypeName(known));
        });
    if (dtype == std::end(kMemmapDtypes)) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, " has the dtype ",
          dtype_name == nullptr ? std::string("none") : internal::WriteJson(*dtype_name),
          ", which is unknown"));
    }
    if (absl::Status s = CheckDevice(entry.Find("device"), where); !s.ok()) return s;
    const Json* nested = entry.Find("is_nested");
    const bool* is_nested = nested == nullptr ? nullptr : std::get_if<bool>(&nested->value);
    if (nested != nullptr && (is_nested == nullptr || *is_nested)) {
      return absl::UnimplementedError(absl::StrCat(where, ": nested tensors cannot be read"));
    }
    auto bytes = static_cast<int64_t>(c10::elementSize(*dtype));
    for (const int64_t size : *sizes) {
      if (size > 0 && bytes > std::numeric_limits<int64_t>::max() / size) {
        return absl::InvalidArgumentError(absl::StrCat(where, ": the shape overflows"));
      }
      bytes *= std::max<int64_t>(size, 1);
    }
    const bool empty = std::find(sizes->begin(), sizes->end(), 0) != sizes->end();
    const at::TensorOptions options = at::TensorOptions().dtype(*dtype);
    try {
      if (empty) return at::empty(*sizes, options);
      return Map(absl::StrCat(folder, "/", MemmapFileName(key), ".memmap"), *sizes, bytes, options);
    } catch (...) {
      const NestedKey path(key);
      return internal::CaughtAt("load memmap", &path);
    }
  }

  absl::StatusOr<at::Tensor> Map(const std::string& path, at::IntArrayRef sizes, int64_t bytes,
                                 const at::TensorOptions& options) {
    const bool shared = mode_ == MapMode::kShared;
    const int fd =
        open(path.c_str(), (shared ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return MemmapErrnoError(path, "cannot be opened", errno);
    const absl::Cleanup close_it = [fd] { close(fd); };
    struct stat info {};
    if (fstat(fd, &info) != 0) return MemmapErrnoError(path, "cannot be read", errno);
    if (!S_ISREG(info.st_mode)) return MemmapError(path, "is no regular file");
    if (info.st_size != bytes) {
      return MemmapError(path, absl::StrCat("has ", info.st_size, " bytes, its shape ",
                                          internal::ToText(sizes), " says ", bytes));
    }
    void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      shared ? MAP_SHARED : MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    if (data == MAP_FAILED) return MemmapErrnoError(path, "cannot be mapped", errno);
    // The context goes with the tensor's memory; MemmapFileOf knows it by its deleter.
    auto mapping = std::make_unique<Mapping>(
        Mapping{.file = shared ? path : std::string(), .data = data, .bytes = static_cast<size_t>(bytes)});
    return at::for_blob(data, sizes)
        .options(options)
        .context(mapping.release(), &DeleteMapping)
        .make_tensor();
  }

  const std::string root_;
  const MapMode mode_;
};

}  // namespace

std::optional<std::string> MemmapFileOf(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || tensor.storage_offset() != 0) return std::nullopt;
  const at::DataPtr& memory = tensor.storage().data_ptr();
  if (memory.get_deleter() != &DeleteMapping) return std::nullopt;
  const auto* mapping = static_cast<const Mapping*>(memory.get_context());
  const auto bytes = static_cast<size_t>(tensor.numel()) * tensor.element_size();
  if (mapping->file.empty() || bytes != mapping->bytes || !tensor.is_contiguous()) return std::nullopt;
  return mapping->file;
}

absl::StatusOr<TensorDict> LoadMemmap(const std::string& path, MapMode mode) {
  if (absl::Status s = internal::CheckPath(path); !s.ok()) return s;
  std::string folder = path;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  std::vector<int64_t> sizes;
  return Loader(folder, mode).LoadNode(folder, 0, &sizes);
}

}  // namespace leafpack
