#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tensordict/dtype.h"
#include "tensordict/io/atomic_file.h"
#include "tensordict/io/json.h"
#include "tensordict/io/memmap.h"
#include "tensordict/io/memmap_format.h"
#include "tensordict/io/memmap_target.h"
#include "tensordict/io/safetensors_header.h"
#include "tensordict/nested_key.h"
#include "tensordict/non_tensor.h"
#include "tensordict/ops/walk.h"

namespace leafpack {
namespace {

using internal::ErrorAt;
using internal::IsMemmapName;
using internal::Json;
using internal::kMemmapDtypes;
using internal::MemmapErrnoError;
using internal::MemmapError;
using internal::MemmapFileName;
using internal::Node;
using internal::TreeAccess;

constexpr std::string_view kSave = "save memmap";
constexpr int64_t kStep = int64_t{8} << 20;  // bytes between two calls of progress

// nullopt if JSON cannot say it: bytes.
std::optional<Json> ToJson(const NonTensor& value) {
  switch (value.kind()) {
    case NonTensor::Kind::kNone:
      return Json{};
    case NonTensor::Kind::kString:
      if (!internal::IsUtf8(*value.AsString())) return std::nullopt;
      return Json{*value.AsString()};
    case NonTensor::Kind::kInt:
      return Json{*value.AsInt()};
    case NonTensor::Kind::kFloat:
      return Json{*value.AsFloat()};
    case NonTensor::Kind::kBool:
      return Json{*value.AsBool()};
    case NonTensor::Kind::kBytes:
      return std::nullopt;
    case NonTensor::Kind::kList: {
      Json::Array items;
      for (const NonTensor& item : *value.AsList()) {
        std::optional<Json> json = ToJson(item);
        if (!json.has_value()) return std::nullopt;
        items.push_back(*std::move(json));
      }
      return Json{std::move(items)};
    }
  }
  return std::nullopt;
}

Json ToJson(at::IntArrayRef sizes) {
  Json::Array items;
  for (const int64_t size : sizes) items.push_back(Json{size});
  return Json{std::move(items)};
}

// One file or folder to be made; paths are relative to the tree's folder.
struct Task {
  std::string path;
  bool is_folder = false;
  std::string text{};   // of meta.json
  at::Tensor tensor{};  // of a leaf
  NestedKey key{};
};

class Planner {
 public:
  // `folder` is empty or ends with a slash.
  absl::Status Plan(const Node& node, const NestedKey& path, const std::string& folder) {
    if (path.size() > static_cast<size_t>(kMaxTreeDepth)) {
      return ErrorAt(kSave, NestedKey(),
                     absl::StrCat("a path has more than ", kMaxTreeDepth, " components"));
    }
    if (HasPositions(node)) return PlanStack(node, path, folder);
    if (absl::Status s = CheckNames(node, path); !s.ok()) return s;
    Json::Object meta;
    for (const auto& [key, value] : node.children) {
      const NestedKey at = path.Child(key);
      if (key.is_position()) return ErrorAt(kSave, at, kPositions);
      if (!internal::IsUtf8(key.name())) return ErrorAt(kSave, at, "the name is not UTF-8");
      if (IsMemmapName(key.name())) {
        return ErrorAt(kSave, at, "the format keeps this name for itself");
      }
      const std::string file = absl::StrCat(folder, MemmapFileName(key.name()));
      if (MemmapFileName(key.name()).size() > 240) {
        return ErrorAt(kSave, at, "the name is too long");
      }
      if (const auto* dict = std::get_if<TensorDict>(&value)) {
        const Node& below = TreeAccess::node(*dict);
        tasks_.push_back({.path = file, .is_folder = true, .key = at});
        if (std::optional<Json> values = Values(below, node.batch_size); values.has_value()) {
          meta.emplace_back(key.name(), Kind(internal::kValuesKind));
          AddValues(*std::move(values), file, at);
          continue;
        }
        meta.emplace_back(key.name(),
                          Kind(HasPositions(below) ? internal::kStackKind : "TensorDict"));
        if (absl::Status s = Plan(below, at, file + "/"); !s.ok()) return s;
      } else if (const auto* leaf = std::get_if<at::Tensor>(&value)) {
        if (absl::Status s = CheckLeaf(*leaf, at); !s.ok()) return s;
        meta.emplace_back(
            key.name(),
            Json{Json::Object{{"device", Text("cpu")},
                              {"shape", ToJson(leaf->sizes())},
                              {"dtype", Text(absl::StrCat("torch.",
                                                          DtypeName(leaf->scalar_type())))},
                              {"is_nested", Json{false}}}});
        if (leaf->numel() == 0) continue;
        total_ += leaf->numel() * static_cast<int64_t>(leaf->element_size());
        tasks_.push_back({.path = file + ".memmap", .tensor = *leaf, .key = at});
      } else {
        std::optional<Json> data = ToJson(std::get<NonTensor>(value));
        if (!data.has_value()) {
          return ErrorAt(kSave, at, "the format has no bytes, nor text that is not UTF-8");
        }
        meta.emplace_back(key.name(), Kind("NonTensorData"));
        tasks_.push_back({.path = file, .is_folder = true, .key = at});
        AddMeta(file + "/", at,
                {{"_type", Text(internal::kValueType)},
                 {"data", *std::move(data)},
                 {"_metadata", Json{}},
                 {"_is_non_tensor", Json{true}}});
      }
    }
    meta.emplace_back("shape", ToJson(node.batch_size));
    meta.emplace_back("device", Text("cpu"));
    meta.emplace_back("_type", Text(internal::kTreeType));
    meta.emplace_back("_format_version", Json{internal::kMemmapVersion});
    meta.emplace_back("_class", Text(internal::kTreeClass));
    if (!node.names.empty()) {
      Json::Array names;
      for (const std::string& name : node.names) {
        if (!internal::IsUtf8(name)) return ErrorAt(kSave, path, "a dimension's name is not UTF-8");
        names.push_back(name.empty() ? Json{} : Json{name});
      }
      meta.emplace_back("_names", Json{std::move(names)});
    }
    AddMeta(folder, path, std::move(meta));
    return absl::OkStatus();
  }

  const std::vector<Task>& tasks() const { return tasks_; }
  int64_t total() const { return total_; }

 private:
  static constexpr std::string_view kPositions =
      "the format has no positions but those of trees side by side, of one batch size";

  static Json Text(std::string_view text) { return Json{std::string(text)}; }
  static Json Kind(std::string_view name) { return Json{Json::Object{{"type", Text(name)}}}; }

  void AddMeta(const std::string& folder, const NestedKey& key, Json::Object meta) {
    tasks_.push_back({.path = folder + "meta.json",
                      .text = internal::WriteJson(Json{std::move(meta)}),
                      .key = key});
  }

  // No folder may have the name of a file beside it.
  static absl::Status CheckNames(const Node& node, const NestedKey& path) {
    constexpr std::string_view kSuffix = ".memmap";
    for (const auto& [key, value] : node.children) {
      if (key.is_position() || std::holds_alternative<at::Tensor>(value)) continue;
      const std::string name = MemmapFileName(key.name());
      if (name == "meta.json") return ErrorAt(kSave, path.Child(key), "the format keeps this name for itself");
      if (!name.ends_with(kSuffix)) continue;
      for (const auto& [other, leaf] : node.children) {
        if (other.is_position() || !std::holds_alternative<at::Tensor>(leaf) ||
            absl::StrCat(MemmapFileName(other.name()), kSuffix) != name) {
          continue;
        }
        return ErrorAt(kSave, path.Child(key),
                       absl::StrCat("its folder would have the name of the file of ",
                                    path.Child(other).ToString()));
      }
    }
    return absl::OkStatus();
  }

  // Whether the keys are the positions 0, 1, ... and nothing else.
  static bool HasPositions(const Node& node) {
    int64_t next = 0;
    for (const auto& [key, value] : node.children) {
      if (!key.is_position() || key.position() != next++) return false;
    }
    return next > 0;
  }

  // Trees at the positions of a node: side by side, behind the node's batch dimensions. Their common
  // batch size, with the number of trees in its place; nullopt if they are no such trees.
  static std::optional<std::vector<int64_t>> StackSizes(const Node& node) {
    std::optional<std::vector<int64_t>> sizes;
    for (const auto& [key, value] : node.children) {
      const auto* dict = std::get_if<TensorDict>(&value);
      if (dict == nullptr) return std::nullopt;
      const Node& below = TreeAccess::node(*dict);
      std::optional<std::vector<int64_t>> part;
      if (HasPositions(below)) {
        part = StackSizes(below);
      } else {
        part.emplace(below.batch_size.begin(), below.batch_size.end());
      }
      if (!part.has_value() || (sizes.has_value() && *sizes != *part)) return std::nullopt;
      sizes = std::move(part);
    }
    sizes->insert(sizes->begin() + static_cast<long>(node.batch_size.size()),
                  static_cast<int64_t>(node.children.size()));
    return sizes;
  }

  absl::Status PlanStack(const Node& node, const NestedKey& path, const std::string& folder) {
    if (!StackSizes(node).has_value()) return ErrorAt(kSave, path.Child(0), kPositions);
    for (const auto& [key, value] : node.children) {
      const std::string file = absl::StrCat(folder, key.position());
      const NestedKey at = path.Child(key);
      tasks_.push_back({.path = file, .is_folder = true, .key = at});
      const Node& below = TreeAccess::node(std::get<TensorDict>(value));
      if (absl::Status s = Plan(below, at, file + "/"); !s.ok()) return s;
    }
    AddMeta(folder, path,
            {{"_type", Text(internal::kStackType)},
             {"_format_version", Json{internal::kMemmapVersion}},
             {"_class", Text(internal::kStackClass)},
             {"stack_dim", Json{static_cast<int64_t>(node.batch_size.size())}},
             {"stack_dim_name", Json{}}});
    return absl::OkStatus();
  }

  // The values at the positions of a node as nested lists, if there is one for each element of
  // `batch`.
  static std::optional<Json> Values(const Node& node, at::IntArrayRef batch) {
    if (batch.empty() || !HasPositions(node) ||
        static_cast<int64_t>(node.children.size()) != batch[0]) {
      return std::nullopt;
    }
    Json::Array items;
    for (const auto& [key, value] : node.children) {
      std::optional<Json> item;
      if (const auto* plain = std::get_if<NonTensor>(&value)) {
        // A list among them could not be told from one more dimension.
        if (plain->kind() != NonTensor::Kind::kList && batch.size() == 1) item = ToJson(*plain);
      } else if (const auto* dict = std::get_if<TensorDict>(&value)) {
        item = Values(TreeAccess::node(*dict), batch.slice(1));
      }
      if (!item.has_value()) return std::nullopt;
      items.push_back(*std::move(item));
    }
    return Json{std::move(items)};
  }

  void AddValues(Json values, const std::string& folder, const NestedKey& key) {
    AddMeta(folder + "/", key,
            {{"_type", Text(internal::kValuesType)},
             {"_format_version", Json{internal::kMemmapVersion}},
             {"_class", Text(internal::kValuesClass)},
             {"stack_dim", Json{int64_t{0}}},
             {"device", Json{}},
             {"data", std::move(values)}});
  }

  static absl::Status CheckLeaf(const at::Tensor& leaf, const NestedKey& at) {
    if (!leaf.defined()) return ErrorAt(kSave, at, "the format has no undefined tensors");
    if (leaf.is_nested() || leaf.layout() != c10::kStrided) {
      return ErrorAt(kSave, at, "only dense tensors can be saved");
    }
    if (leaf.is_meta()) return ErrorAt(kSave, at, "a meta tensor has no values");
    if (std::find(std::begin(kMemmapDtypes), std::end(kMemmapDtypes), leaf.scalar_type()) ==
        std::end(kMemmapDtypes)) {
      return ErrorAt(kSave, at,
                     absl::StrCat(DtypeName(leaf.scalar_type()), " tensors cannot be saved"));
    }
    return absl::OkStatus();
  }

  std::vector<Task> tasks_;
  int64_t total_ = 0;
};

// Writes all tasks into an empty folder.
absl::Status WriteAll(const Planner& plan, const std::string& folder,
                      const SaveMemmapOptions& options, const std::string& shown) {
  int64_t done = 0;
  const c10::NoGradGuard no_grad;
  for (const Task& task : plan.tasks()) {
    const std::string path = absl::StrCat(folder, "/", task.path);
    if (task.is_folder) {
      if (mkdir(path.c_str(), 0777) != 0) return MemmapErrnoError(path, "cannot be made", errno);
      continue;
    }
    absl::StatusOr<internal::AtomicFile> file = internal::AtomicFile::Create(path);
    if (!file.ok()) return file.status();
    if (!task.tensor.defined()) {
      if (absl::Status s = file->Write(task.text); !s.ok()) return s;
    } else {
      at::Tensor values;
      try {
        values = task.tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
      } catch (...) {
        return internal::CaughtAt(kSave, &task.key);
      }
      const char* data = static_cast<const char*>(values.const_data_ptr());
      const int64_t bytes = values.numel() * static_cast<int64_t>(values.element_size());
      for (int64_t at = 0; at < bytes; at += kStep) {
        const int64_t part = std::min(kStep, bytes - at);
        if (absl::Status s =
                file->Write(std::string_view(data + at, static_cast<size_t>(part)));
            !s.ok()) {
          return s;
        }
        done += part;
        if (options.progress && !options.progress(done, plan.total())) {
          return absl::CancelledError(absl::StrCat("file ", shown, ": given up by the caller"));
        }
      }
    }
    if (absl::Status s = file->Commit(); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SaveMemmap(const TensorDict& tree, const std::string& path,
                        const SaveMemmapOptions& options) {
  if (absl::Status s = internal::CheckPath(path); !s.ok()) return s;
  Planner plan;
  if (absl::Status s = plan.Plan(TreeAccess::node(tree), NestedKey(), ""); !s.ok()) {
    return absl::Status(s.code(), absl::StrCat("file ", path, ": ", s.message()));
  }
  struct stat old {};
  if (!options.overwrite && lstat(path.c_str(), &old) == 0) {
    return absl::AlreadyExistsError(absl::StrCat("file ", path, ": is there already"));
  }
  const absl::StatusOr<std::string> found = internal::MemmapTarget(path);
  if (!found.ok()) return found.status();
  const std::string& target = *found;
  internal::RemoveLeftovers(target, internal::TemporaryKind::kFolder);
  const absl::StatusOr<std::string> made = internal::MakeTemporaryFolder(target);
  if (!made.ok()) return made.status();
  const std::string& folder = *made;
  const int lock = internal::LockTemporary(folder);
  const absl::Cleanup remove = [&folder, lock] {
    std::error_code error;
    std::filesystem::remove_all(folder, error);
    if (lock >= 0) close(lock);
  };
  if (absl::Status s = WriteAll(plan, folder, options, target); !s.ok()) return s;
  // What came there meanwhile is no less precious.
  if (absl::StatusOr<std::string> still = internal::MemmapTarget(target); !still.ok()) return still.status();
  // In place of an old one by an exchange; then the old one has the new one's name, and goes.
  return internal::PutFolder(folder, target, options.overwrite);
}

}  // namespace leafpack
