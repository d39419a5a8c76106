#include "tensordict/io/memmap.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tensordict/dtype.h"
#include "tensordict/io/atomic_file.h"
#include "tensordict/io/json.h"
#include "tensordict/io/safetensors_header.h"
#include "tensordict/nested_key.h"
#include "tensordict/non_tensor.h"
#include "tensordict/ops/walk.h"

namespace leafpack {
namespace {

using internal::ErrorAt;
using internal::Json;
using internal::Node;
using internal::TreeAccess;

constexpr std::string_view kSave = "save memmap";
constexpr int64_t kStep = int64_t{8} << 20;           // bytes between two calls of progress
constexpr int64_t kMaxMetadataBytes = 100'000'000;
constexpr std::string_view kFormatNames[] = {"shape",           "device", "_type",
                                             "_format_version", "_class", "_names"};
constexpr at::ScalarType kDtypes[] = {
    at::kBool,   at::kByte,     at::kChar,         at::kShort,         at::kUInt16,
    at::kInt,    at::kUInt32,   at::kLong,         at::kUInt64,        at::kHalf,
    at::kFloat,  at::kBFloat16, at::kDouble,       at::kComplexFloat,  at::kComplexDouble,
    at::kFloat8_e4m3fn,         at::kFloat8_e5m2,
};

absl::Status FileError(const std::string& path, std::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("file ", path, ": ", text));
}

absl::Status ErrnoError(const std::string& path, std::string_view what, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat("file ", path, ": ", what));
}

bool IsFormatName(std::string_view name) {
  return std::find(std::begin(kFormatNames), std::end(kFormatNames), name) !=
         std::end(kFormatNames);
}

// The file name of a key: bytes that a file system could take for something else as %XX; the empty
// key as %.
std::string FileName(std::string_view key) {
  if (key.empty()) return "%";
  if (key == "." || key == "..") return key.size() == 1 ? "%2E" : "%2E%2E";
  constexpr std::string_view kUnsafe = "/<>:\"|?*\\ %\x7f";
  std::string name;
  for (const char c : key) {
    if (static_cast<unsigned char>(c) < 32 || kUnsafe.find(c) != std::string_view::npos) {
      absl::StrAppendFormat(&name, "%%%02X", static_cast<unsigned char>(c));
    } else {
      name.push_back(c);
    }
  }
  return name;
}

// ---- Writing.

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
  absl::Status Plan(const Node& node, const NestedKey& path, const std::string& folder) {
    if (path.size() > static_cast<size_t>(kMaxTreeDepth)) {
      return ErrorAt(kSave, NestedKey(),
                     absl::StrCat("a path has more than ", kMaxTreeDepth, " components"));
    }
    Json::Object meta;
    for (const auto& [key, value] : node.children) {
      const NestedKey at = path.Child(key);
      if (key.is_position()) return ErrorAt(kSave, at, "the format has no positions");
      if (!internal::IsUtf8(key.name())) return ErrorAt(kSave, at, "the name is not UTF-8");
      if (IsFormatName(key.name())) {
        return ErrorAt(kSave, at, "the format keeps this name for itself");
      }
      const std::string file = absl::StrCat(folder, FileName(key.name()));
      if (FileName(key.name()).size() > 240) return ErrorAt(kSave, at, "the name is too long");
      if (const auto* dict = std::get_if<TensorDict>(&value)) {
        meta.emplace_back(key.name(), Type("TensorDict"));
        tasks_.push_back({.path = file, .is_folder = true, .key = at});
        if (absl::Status s = Plan(TreeAccess::node(*dict), at, file + "/"); !s.ok()) return s;
      } else if (const auto* leaf = std::get_if<at::Tensor>(&value)) {
        if (absl::Status s = CheckLeaf(*leaf, at); !s.ok()) return s;
        meta.emplace_back(
            key.name(),
            Json{Json::Object{{"device", Json{std::string("cpu")}},
                              {"shape", ToJson(leaf->sizes())},
                              {"dtype", Json{absl::StrCat("torch.",
                                                          DtypeName(leaf->scalar_type()))}},
                              {"is_nested", Json{false}}}});
        if (leaf->numel() == 0) continue;
        total_ += leaf->numel() * static_cast<int64_t>(leaf->element_size());
        tasks_.push_back({.path = file + ".memmap", .tensor = *leaf, .key = at});
      } else {
        std::optional<Json> data = ToJson(std::get<NonTensor>(value));
        if (!data.has_value()) {
          return ErrorAt(kSave, at, "the format has no bytes, nor text that is not UTF-8");
        }
        meta.emplace_back(key.name(), Type("NonTensorData"));
        tasks_.push_back({.path = file, .is_folder = true, .key = at});
        tasks_.push_back(
            {.path = file + "/meta.json",
             .text = internal::WriteJson(Json{Json::Object{
                 {"_type",
                  Json{std::string("<class 'tensordict.tensorclass.NonTensorData'>")}},
                 {"data", *std::move(data)},
                 {"_metadata", Json{}},
                 {"_is_non_tensor", Json{true}}}}),
             .key = at});
      }
    }
    meta.emplace_back("shape", ToJson(node.batch_size));
    meta.emplace_back("device", Json{std::string("cpu")});
    meta.emplace_back("_type", Json{std::string("<class 'tensordict._td.TensorDict'>")});
    meta.emplace_back("_format_version", Json{int64_t{1}});
    meta.emplace_back("_class", Json{std::string("tensordict:TensorDict")});
    if (!node.names.empty()) {
      Json::Array names;
      for (const std::string& name : node.names) {
        if (!internal::IsUtf8(name)) return ErrorAt(kSave, path, "a dimension's name is not UTF-8");
        names.push_back(name.empty() ? Json{} : Json{name});
      }
      meta.emplace_back("_names", Json{std::move(names)});
    }
    tasks_.push_back({.path = folder + "meta.json",
                      .text = internal::WriteJson(Json{std::move(meta)}),
                      .key = path});
    return absl::OkStatus();
  }

  const std::vector<Task>& tasks() const { return tasks_; }
  int64_t total() const { return total_; }

 private:
  static Json Type(std::string name) {
    return Json{Json::Object{{"type", Json{std::move(name)}}}};
  }

  static absl::Status CheckLeaf(const at::Tensor& leaf, const NestedKey& at) {
    if (!leaf.defined()) return ErrorAt(kSave, at, "the format has no undefined tensors");
    if (leaf.is_nested() || leaf.layout() != c10::kStrided) {
      return ErrorAt(kSave, at, "only dense tensors can be saved");
    }
    if (leaf.is_meta()) return ErrorAt(kSave, at, "a meta tensor has no values");
    if (std::find(std::begin(kDtypes), std::end(kDtypes), leaf.scalar_type()) ==
        std::end(kDtypes)) {
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
      if (mkdir(path.c_str(), 0777) != 0) return ErrnoError(path, "cannot be made", errno);
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

// ---- Reading.

absl::StatusOr<std::string> ReadText(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return ErrnoError(path, "cannot be opened", errno);
  const absl::Cleanup close_it = [fd] { close(fd); };
  struct stat info {};
  if (fstat(fd, &info) != 0) return ErrnoError(path, "cannot be read", errno);
  if (!S_ISREG(info.st_mode)) return FileError(path, "is no regular file");
  if (info.st_size > kMaxMetadataBytes) {
    return FileError(path, absl::StrCat("has ", info.st_size, " bytes; at most ",
                                        kMaxMetadataBytes, " are allowed"));
  }
  std::string text(static_cast<size_t>(info.st_size), '\0');
  size_t at = 0;
  while (at < text.size()) {
    const ssize_t got = read(fd, text.data() + at, text.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError(path, "cannot be read", errno);
    if (got == 0) break;
    at += static_cast<size_t>(got);
  }
  text.resize(at);
  return text;
}

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

class Loader {
 public:
  explicit Loader(MapMode mode) : mode_(mode) {}

  absl::StatusOr<TensorDict> Load(const std::string& folder, const Json& meta, int depth) {
    const std::string file = folder + "/meta.json";
    if (depth > kMaxTreeDepth) {
      return FileError(file, absl::StrCat("lies deeper than ", kMaxTreeDepth, " folders"));
    }
    const auto* entries = std::get_if<Json::Object>(&meta.value);
    if (entries == nullptr) return FileError(file, "is no JSON object");
    const absl::StatusOr<std::vector<int64_t>> batch =
        ReadSizes(meta.Find("shape"), absl::StrCat("file ", file, ": the node"));
    if (!batch.ok()) return batch.status();
    TensorDict tree(*batch);
    if (const Json* names = meta.Find("_names"); names != nullptr) {
      const auto* items = std::get_if<Json::Array>(&names->value);
      std::vector<std::string> text;
      for (const Json& item : items == nullptr ? Json::Array() : *items) {
        text.push_back(item.text() == nullptr ? std::string() : *item.text());
      }
      if (absl::Status s = tree.SetNames(std::move(text)); !s.ok()) {
        return FileError(file, s.message());
      }
    }
    for (const auto& [key, entry] : *entries) {
      if (IsFormatName(key)) continue;
      if (absl::Status s = LoadEntry(folder, key, entry, depth, tree); !s.ok()) return s;
    }
    return tree;
  }

  absl::StatusOr<Json> ReadMeta(const std::string& folder) {
    const std::string file = folder + "/meta.json";
    const absl::StatusOr<std::string> text = ReadText(file);
    if (!text.ok()) return text.status();
    absl::StatusOr<Json> json = internal::ParseJson(*text);
    if (!json.ok()) return FileError(file, json.status().message());
    return json;
  }

 private:
  absl::Status LoadEntry(const std::string& folder, const std::string& key, const Json& entry,
                         int depth, TensorDict& tree) {
    const std::string where =
        absl::StrCat("file ", folder, "/meta.json: ", NestedKey(key).ToString());
    if (const Json* type = entry.Find("type"); type != nullptr) {
      const std::string below = absl::StrCat(folder, "/", FileName(key));
      struct stat info {};
      if (lstat(below.c_str(), &info) == 0 && S_ISLNK(info.st_mode)) {
        return FileError(below, "is a link");
      }
      absl::StatusOr<Json> meta = ReadMeta(below);
      if (!meta.ok()) return meta.status();
      const Json* data = meta->Find("data");
      const Json* plain = meta->Find("_is_non_tensor");
      if (plain != nullptr && std::get_if<bool>(&plain->value) != nullptr && data != nullptr) {
        absl::StatusOr<NonTensor> value = FromJson(*data);
        if (!value.ok()) {
          return absl::Status(value.status().code(),
                              absl::StrCat(where, ": ", value.status().message()));
        }
        return Put(tree, key, *std::move(value), where);
      }
      if (type->text() == nullptr || *type->text() != "TensorDict") {
        return absl::UnimplementedError(
            absl::StrCat(where, ": a node of the kind ", internal::WriteJson(*type),
                         " cannot be read; TensorDict and plain values can"));
      }
      absl::StatusOr<TensorDict> node = Load(below, *meta, depth + 1);
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
        std::begin(kDtypes), std::end(kDtypes), [&](at::ScalarType known) {
          return dtype_name != nullptr && dtype_name->text() != nullptr &&
                 *dtype_name->text() == absl::StrCat("torch.", DtypeName(known));
        });
    if (dtype == std::end(kDtypes)) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, " has the dtype ",
          dtype_name == nullptr ? std::string("none") : internal::WriteJson(*dtype_name),
          ", which is unknown"));
    }
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
      return Map(absl::StrCat(folder, "/", FileName(key), ".memmap"), *sizes, bytes, options);
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
    if (fd < 0) return ErrnoError(path, "cannot be opened", errno);
    const absl::Cleanup close_it = [fd] { close(fd); };
    struct stat info {};
    if (fstat(fd, &info) != 0) return ErrnoError(path, "cannot be read", errno);
    if (!S_ISREG(info.st_mode)) return FileError(path, "is no regular file");
    if (info.st_size != bytes) {
      return FileError(path, absl::StrCat("has ", info.st_size, " bytes, its shape ",
                                          internal::ToText(sizes), " says ", bytes));
    }
    void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                      shared ? MAP_SHARED : MAP_PRIVATE | MAP_NORESERVE, fd, 0);
    if (data == MAP_FAILED) return ErrnoError(path, "cannot be mapped", errno);
    return at::from_blob(
        data, sizes, [bytes](void* begin) { munmap(begin, static_cast<size_t>(bytes)); },
        options);
  }

  const MapMode mode_;
};

}  // namespace

absl::Status SaveMemmap(const TensorDict& tree, const std::string& path,
                        const SaveMemmapOptions& options) {
  Planner plan;
  if (absl::Status s = plan.Plan(TreeAccess::node(tree), NestedKey(), ""); !s.ok()) {
    return absl::Status(s.code(), absl::StrCat("file ", path, ": ", s.message()));
  }
  std::string target = path;
  while (target.size() > 1 && target.back() == '/') target.pop_back();
  std::error_code ignored;
  if (!options.overwrite && std::filesystem::exists(target, ignored)) {
    return absl::AlreadyExistsError(absl::StrCat("file ", target, ": is there already"));
  }
  static std::atomic<uint64_t> next{0};
  const std::string folder = absl::StrCat(target, ".", getpid(), ".", next.fetch_add(1), ".tmp");
  if (mkdir(folder.c_str(), 0777) != 0) return ErrnoError(folder, "cannot be made", errno);
  const absl::Cleanup remove = [&folder] {
    std::error_code error;
    std::filesystem::remove_all(folder, error);
  };
  if (absl::Status s = WriteAll(plan, folder, options, target); !s.ok()) return s;
  // In place of an old one by an exchange; then the old one has the new one's name, and goes.
  if (renameat2(AT_FDCWD, folder.c_str(), AT_FDCWD, target.c_str(), RENAME_NOREPLACE) == 0) {
    return absl::OkStatus();
  }
  if (errno != EEXIST) return ErrnoError(target, "cannot be put in its place", errno);
  if (!options.overwrite) {
    return absl::AlreadyExistsError(absl::StrCat("file ", target, ": is there already"));
  }
  if (renameat2(AT_FDCWD, folder.c_str(), AT_FDCWD, target.c_str(), RENAME_EXCHANGE) != 0) {
    return ErrnoError(target, "cannot be put in its place", errno);
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorDict> LoadMemmap(const std::string& path, MapMode mode) {
  std::string folder = path;
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  Loader loader(mode);
  const absl::StatusOr<Json> meta = loader.ReadMeta(folder);
  if (!meta.ok()) return meta.status();
  const Json* type = meta->Find("_type");
  if (type == nullptr || type->text() == nullptr ||
      type->text()->find("TensorDict'") == std::string::npos ||
      type->text()->find("Lazy") != std::string::npos) {
    return absl::UnimplementedError(absl::StrCat(
        "file ", folder, "/meta.json: the folder is of the kind ",
        type == nullptr ? std::string("none") : internal::WriteJson(*type),
        ", which cannot be read; TensorDict can"));
  }
  return loader.Load(folder, *meta, 0);
}

}  // namespace leafpack
