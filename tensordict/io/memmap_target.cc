#include "tensordict/io/memmap_target.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tensordict/io/atomic_file.h"
#include "tensordict/io/json.h"
#include "tensordict/io/memmap_format.h"

namespace leafpack::internal {
namespace {

// Deeper than any tree.
constexpr int kMaxFolders = 200;

// The entries that a folder may have, and whether they are folders.
using Known = std::map<std::string, bool, std::less<>>;

bool IsNumber(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
}

class Checker {
 public:
  explicit Checker(std::string root) : root_(std::move(root)) {}

  // `inside`: the folder below the root, empty or with a slash at its end.
  absl::Status Check(const std::string& inside, int depth) const {
    const std::string folder = absl::StrCat(root_, "/", inside);
    std::vector<std::string> names;
    std::error_code error;
    for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
         at.increment(error)) {
      names.push_back(at->path().filename().string());
    }
    if (error) return MemmapErrnoError(folder, "cannot be listed", error.value());
    if (names.empty()) return absl::OkStatus();
    std::sort(names.begin(), names.end());
    if (depth > kMaxFolders) return Foreign(inside, names[0]);
    if (!std::binary_search(names.begin(), names.end(), "meta.json")) return Foreign(inside, names[0]);
    const absl::StatusOr<std::string> text = ReadMemmapText(folder + "meta.json");
    if (!text.ok()) return Foreign(inside, "meta.json");
    const absl::StatusOr<Json> meta = ParseJson(*text);
    if (!meta.ok()) return Foreign(inside, "meta.json");
    const Json* type = meta->Find("_type");
    if (type == nullptr) type = meta->Find("type");
    if (type == nullptr || type->text() == nullptr || !type->text()->starts_with("<class '")) {
      return Foreign(inside, "meta.json");
    }
    const bool is_tree = *type->text() == kTreeType;
    if (const Json* shape = meta->Find("shape");
        is_tree && (shape == nullptr || !std::holds_alternative<Json::Array>(shape->value))) {
      return Foreign(inside, "meta.json");
    }
    const bool is_stack = type->text()->find("Stack") != std::string::npos;
    const Known known = Entries(*meta, is_tree);
    for (const std::string& name : names) {
      const auto at = known.find(name);
      const bool is_part = is_stack && IsNumber(name);
      if (at == known.end() && !is_part) return Foreign(inside, name);
      const bool is_folder = is_part || at->second;
      struct stat info {};
      if (lstat((folder + name).c_str(), &info) != 0) {
        return MemmapErrnoError(folder + name, "cannot be looked at", errno);
      }
      if (is_folder ? !S_ISDIR(info.st_mode) : !S_ISREG(info.st_mode)) return Foreign(inside, name);
      if (!is_folder) continue;
      if (absl::Status s = Check(absl::StrCat(inside, name, "/"), depth + 1); !s.ok()) return s;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Foreign(std::string_view inside, std::string_view name) const {
    return absl::FailedPreconditionError(
        absl::StrCat("file ", root_, ": is not replaced, because it has ",
                     absl::Utf8SafeCHexEscape(absl::StrCat(inside, name)),
                     ", which is not of a tree of memory-mapped files"));
  }

  static Known Entries(const Json& meta, bool is_tree) {
    Known known = {{"meta.json", false}};
    if (!is_tree) {  // of tensorclasses and values that are no tensors
      for (const char* file : {"other.pickle", "pickle.pkl", "json_types.json"}) known.emplace(file, false);
      known.emplace("_tensordict", true);
    }
    for (const auto& [key, entry] : std::get<Json::Object>(meta.value)) {
      // Earlier releases of tensordict write names as they are.
      std::vector<std::string> names = {MemmapFileName(key)};
      if (key.find('/') == std::string::npos) names.push_back(key);
      for (const std::string& name : names) {
        if (entry.Find("type") != nullptr) {
          known.emplace(name, true);
        } else if (entry.Find("dtype") != nullptr) {
          known.emplace(name + ".memmap", false);
          known.emplace(name + ".shape.memmap", false);  // of a nested tensor
        }
      }
    }
    return known;
  }

  const std::string root_;
};

}  // namespace

absl::StatusOr<std::string> MemmapTarget(const std::string& path) {
  if (absl::Status s = CheckPath(path); !s.ok()) return s;
  std::string target = path;
  while (target.size() > 1 && target.back() == '/') target.pop_back();
  const std::string last = target.substr(target.rfind('/') + 1);
  if (last.empty() || last == "." || last == "..") {
    return MemmapError(path, "its last component is no name for a folder");
  }
  struct stat info {};
  if (lstat(target.c_str(), &info) != 0) {
    if (errno == ENOENT) return target;
    return MemmapErrnoError(path, "cannot be looked at", errno);
  }
  if (S_ISLNK(info.st_mode)) {
    std::error_code error;
    const std::filesystem::path behind = std::filesystem::canonical(target, error);
    if (error || lstat(behind.c_str(), &info) != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("file ", path, ": is a symbolic link to nothing, and is not replaced"));
    }
    target = behind.string();
  }
  if (!S_ISDIR(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat("file ", path, ": is there, is no folder, and is not replaced"));
  }
  if (absl::Status s = Checker(target).Check("", 0); !s.ok()) return s;
  return target;
}

}  // namespace leafpack::internal
