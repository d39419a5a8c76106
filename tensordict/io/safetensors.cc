#include "tensordict/io/safetensors.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "tensordict/dtype.h"
#include "tensordict/io/atomic_file.h"
#include "tensordict/io/safetensors_header.h"
#include "tensordict/nested_key.h"
#include "tensordict/ops/keys.h"
#include "tensordict/ops/walk.h"

namespace leafpack {
namespace {

using internal::AtomicFile;
using internal::SafetensorsEntry;
using internal::SafetensorsHeader;

constexpr int64_t kMaxHeaderBytes = 100'000'000;
constexpr int64_t kStep = int64_t{8} << 20;  // bytes between two calls of progress

absl::Status FileError(const std::string& path, std::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("file ", path, ": ", text));
}

absl::Status ErrnoError(const std::string& path, std::string_view what, int error) {
  return absl::ErrnoToStatus(error, absl::StrCat("file ", path, ": ", what));
}

absl::Status InFile(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("file ", path, ": ", status.message()));
}

// A private map of a whole file. Empty for an empty file.
class FileMap {
 public:
  static absl::StatusOr<std::shared_ptr<FileMap>> Open(const std::string& path) {
    if (absl::Status s = internal::CheckPath(path); !s.ok()) return s;
    // A pipe would wait for a writer.
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return ErrnoError(path, "cannot be opened", errno);
    const absl::Cleanup close_it = [fd] { close(fd); };
    struct stat info {};
    if (fstat(fd, &info) != 0) return ErrnoError(path, "cannot be read", errno);
    if (!S_ISREG(info.st_mode)) return FileError(path, "is no regular file");
    const auto size = static_cast<size_t>(info.st_size);
    void* data = nullptr;
    if (size > 0) {
      data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, 0);
      if (data == MAP_FAILED) return ErrnoError(path, "cannot be mapped", errno);
    }
    return std::make_shared<FileMap>(static_cast<char*>(data), size);
  }

  FileMap(char* data, size_t size) : data_(data), size_(size) {}
  ~FileMap() {
    if (data_ != nullptr) munmap(data_, size_);
  }
  FileMap(const FileMap&) = delete;
  FileMap& operator=(const FileMap&) = delete;

  char* data() const { return data_; }
  int64_t size() const { return static_cast<int64_t>(size_); }

 private:
  char* const data_;
  const size_t size_;
};

struct OpenFile {
  std::shared_ptr<FileMap> map;
  SafetensorsHeader header;
  int64_t values = 0;  // where they begin
};

absl::StatusOr<OpenFile> OpenAndCheck(const std::string& path) {
  absl::StatusOr<std::shared_ptr<FileMap>> map = FileMap::Open(path);
  if (!map.ok()) return map.status();
  OpenFile file;
  file.map = *std::move(map);
  const int64_t size = file.map->size();
  if (size < 8) return FileError(path, absl::StrCat("has ", size, " bytes, too few for a header"));
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) {
    length = length << 8 | static_cast<unsigned char>(file.map->data()[i]);
  }
  if (length > static_cast<uint64_t>(kMaxHeaderBytes)) {
    return FileError(path, absl::StrCat("says that its header has ", length, " bytes; at most ",
                                        kMaxHeaderBytes, " are allowed"));
  }
  file.values = 8 + static_cast<int64_t>(length);
  if (file.values > size) {
    return FileError(path, absl::StrCat("is cut off: its header should end at byte ", file.values,
                                        ", the file at byte ", size));
  }
  absl::StatusOr<SafetensorsHeader> header = internal::ParseSafetensorsHeader(
      std::string_view(file.map->data() + 8, length), size - file.values);
  if (!header.ok()) return InFile(path, header.status());
  file.header = *std::move(header);
  return file;
}

// One leaf to be written.
struct Item {
  SafetensorsEntry entry;
  at::Tensor tensor;
};

// Names, dtypes and offsets of all leaves; or the first that the format cannot hold.
absl::StatusOr<std::vector<Item>> Plan(const TensorDict& tree, const std::string& separator) {
  constexpr std::string_view kOp = "save safetensors";
  std::vector<Item> items;
  for (auto& [path, value] : Items(tree, {.nested = true, .leaves_only = true})) {
    const auto* tensor = std::get_if<at::Tensor>(&value);
    const auto refuse = [&at = path, kOp](std::string_view text) {
      return internal::ErrorAt(kOp, at, text);
    };
    if (tensor == nullptr) return refuse("the format has no values that are no tensors");
    if (!tensor->defined()) return refuse("the format has no undefined tensors");
    if (tensor->is_nested() || tensor->layout() != c10::kStrided) {
      return refuse("the format has only dense tensors");
    }
    if (tensor->is_meta()) return refuse("a meta tensor has no values");
    if (!internal::SafetensorsDtypeName(tensor->scalar_type()).has_value()) {
      return refuse(absl::StrCat("the format has no ", DtypeName(tensor->scalar_type())));
    }
    if (path.size() > 1 && separator.empty()) {
      return refuse("without a separator only trees of one level can be saved");
    }
    Item item;
    for (size_t i = 0; i < path.size(); ++i) {
      if (i > 0) item.entry.name += separator;
      if (path[i].is_position()) {
        absl::StrAppend(&item.entry.name, path[i].position());
      } else {
        item.entry.name += path[i].name();
      }
    }
    if (!internal::IsUtf8(item.entry.name)) return refuse("the name is not UTF-8");
    if (item.entry.name == "__metadata__") return refuse("the format keeps this name for itself");
    item.entry.dtype = tensor->scalar_type();
    item.entry.shape = tensor->sizes().vec();
    item.entry.end = tensor->numel() * static_cast<int64_t>(tensor->element_size());
    item.tensor = *tensor;
    items.push_back(std::move(item));
  }
  std::vector<const std::string*> names;
  for (const Item& item : items) names.push_back(&item.entry.name);
  const auto by_value = [](const std::string* a, const std::string* b) { return *a < *b; };
  std::sort(names.begin(), names.end(), by_value);
  const auto twice =
      std::adjacent_find(names.begin(), names.end(),
                         [](const std::string* a, const std::string* b) { return *a == *b; });
  if (twice != names.end()) {
    return internal::ErrorAt(kOp, NestedKey(**twice), "two paths become this name");
  }
  // Large elements first, so that every tensor is aligned; then by name. As others write it.
  std::sort(items.begin(), items.end(), [](const Item& a, const Item& b) {
    const size_t x = c10::elementSize(a.entry.dtype);
    const size_t y = c10::elementSize(b.entry.dtype);
    return x != y ? x > y : a.entry.name < b.entry.name;
  });
  int64_t at = 0;
  for (Item& item : items) {
    item.entry.begin = at;
    item.entry.end += at;
    at = item.entry.end;
  }
  return items;
}

absl::Status Cancelled(const std::string& path) {
  return absl::CancelledError(absl::StrCat("file ", path, ": given up by the caller"));
}

}  // namespace

absl::Status SaveSafetensors(const TensorDict& tree, const std::string& path,
                             const SaveSafetensorsOptions& options) {
  if (absl::Status s = internal::CheckPath(path); !s.ok()) return s;
  absl::StatusOr<std::vector<Item>> items = Plan(tree, options.separator);
  if (!items.ok()) return InFile(path, items.status());
  for (const auto& [key, value] : options.metadata) {
    if (!internal::IsUtf8(key) || !internal::IsUtf8(value)) {
      return FileError(path, absl::StrCat("the metadata ", NestedKey(key).ToString(),
                                          " is not UTF-8"));
    }
  }
  SafetensorsHeader header;
  header.metadata = options.metadata;
  for (const Item& item : *items) header.entries.push_back(item.entry);
  const std::string text = internal::WriteSafetensorsHeader(header);
  if (static_cast<int64_t>(text.size()) > kMaxHeaderBytes) {
    return FileError(path, absl::StrCat("the header would have ", text.size(),
                                        " bytes; at most ", kMaxHeaderBytes, " are allowed"));
  }
  absl::StatusOr<AtomicFile> file = AtomicFile::Create(path);
  if (!file.ok()) return file.status();
  internal::RemoveLeftovers(file->path(), internal::TemporaryKind::kFile);
  char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
  if (absl::Status s = file->Write(std::string_view(length, 8)); !s.ok()) return s;
  if (absl::Status s = file->Write(text); !s.ok()) return s;
  const int64_t total = header.entries.empty() ? 0 : header.entries.back().end;
  const c10::NoGradGuard no_grad;
  for (const Item& item : *items) {
    at::Tensor values;
    try {
      values = item.tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
    } catch (...) {
      const NestedKey name(item.entry.name);
      return InFile(path, internal::CaughtAt("save safetensors", &name));
    }
    const char* data = static_cast<const char*>(values.const_data_ptr());
    for (int64_t at = item.entry.begin; at < item.entry.end; at += kStep) {
      const int64_t bytes = std::min(kStep, item.entry.end - at);
      if (absl::Status s = file->Write(
              std::string_view(data + (at - item.entry.begin), static_cast<size_t>(bytes)));
          !s.ok()) {
        return s;
      }
      if (options.progress && !options.progress(at + bytes, total)) return Cancelled(path);
    }
  }
  return file->Commit();
}

absl::StatusOr<TensorDict> LoadSafetensors(const std::string& path,
                                           const LoadSafetensorsOptions& options) {
  const absl::StatusOr<OpenFile> file = OpenAndCheck(path);
  if (!file.ok()) return file.status();
  const std::vector<SafetensorsEntry>& entries = file->header.entries;
  const int64_t total = entries.empty() ? 0 : entries.back().end;
  TensorDict flat;
  for (const SafetensorsEntry& entry : entries) {
    char* data = file->map->data() + file->values + entry.begin;
    const int64_t bytes = entry.end - entry.begin;
    const bool aligned =
        reinterpret_cast<uintptr_t>(data) % c10::elementSize(entry.dtype) == 0;
    at::Tensor leaf;
    try {
      const at::TensorOptions tensor_options = at::TensorOptions().dtype(entry.dtype);
      if (bytes > 0 && aligned && options.memory_map) {
        leaf = at::from_blob(
            data, entry.shape, [map = file->map](void*) {}, tensor_options);
      } else {
        leaf = at::empty(entry.shape, tensor_options);
        char* to = static_cast<char*>(leaf.mutable_data_ptr());
        for (int64_t done = 0; done < bytes; done += kStep) {
          std::memcpy(to + done, data + done, static_cast<size_t>(std::min(kStep, bytes - done)));
          if (options.progress &&
              !options.progress(entry.begin + std::min(done + kStep, bytes), total)) {
            return Cancelled(path);
          }
        }
      }
      if (entry.dtype == c10::ScalarType::Bool && bytes > 0) {
        // Other bytes than 0 and 1 would not be a bool.
        const auto* begin = reinterpret_cast<const unsigned char*>(data);
        const auto* bad = std::find_if(begin, begin + bytes, [](unsigned char b) { return b > 1; });
        if (bad != begin + bytes) {
          return FileError(path, absl::StrCat(NestedKey(entry.name).ToString(), ": byte ",
                                              entry.begin + (bad - begin),
                                              " of the values is no bool"));
        }
      }
    } catch (...) {
      const NestedKey name(entry.name);
      return InFile(path, internal::CaughtAt("load safetensors", &name));
    }
    if (absl::Status s = flat.Set(entry.name, std::move(leaf)); !s.ok()) return InFile(path, s);
  }
  if (options.progress && !options.progress(total, total)) return Cancelled(path);
  if (options.separator.empty()) return flat;
  absl::StatusOr<TensorDict> nested = UnflattenKeys(flat, options.separator);
  if (!nested.ok()) {
    return FileError(path, absl::StrCat(nested.status().message(),
                                        "; an empty separator takes the names as they are"));
  }
  return nested;
}

absl::StatusOr<std::map<std::string, std::string>> LoadSafetensorsMetadata(
    const std::string& path) {
  absl::StatusOr<OpenFile> file = OpenAndCheck(path);
  if (!file.ok()) return file.status();
  return std::move(file->header.metadata);
}

}  // namespace leafpack
