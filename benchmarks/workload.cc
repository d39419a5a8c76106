#include "benchmarks/workload.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace leafpack {
namespace {

// The subset of JSON that workload files are written in: no escapes, no fractions.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  bool Take(char c) {
    SkipSpace();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  absl::Status Expect(char c) {
    if (Take(c)) return absl::OkStatus();
    return Error(absl::StrCat("want '", std::string_view(&c, 1), "'"));
  }
  absl::StatusOr<std::string> String() {
    if (absl::Status status = Expect('"'); !status.ok()) return status;
    const size_t end = text_.find_first_of("\"\\", at_);
    if (end == std::string_view::npos || text_[end] != '"') return Error("string without end");
    std::string value(text_.substr(at_, end - at_));
    at_ = end + 1;
    return value;
  }
  absl::StatusOr<int64_t> Int() {
    SkipSpace();
    const size_t end = std::min(text_.find_first_not_of("-0123456789", at_), text_.size());
    int64_t value = 0;
    if (!absl::SimpleAtoi(text_.substr(at_, end - at_), &value)) return Error("want a whole number");
    at_ = end;
    return value;
  }
  bool AtEnd() {
    SkipSpace();
    return at_ == text_.size();
  }
  absl::Status Error(std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("workload, byte ", at_, ": ", what));
  }

 private:
  void SkipSpace() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' ||
                                  text_[at_] == '\r')) {
      ++at_;
    }
  }

  std::string_view text_;
  size_t at_ = 0;
};

absl::StatusOr<at::ScalarType> ParseDtype(std::string_view name) {
  if (name == "float32") return at::ScalarType::Float;
  if (name == "float64") return at::ScalarType::Double;
  if (name == "float16") return at::ScalarType::Half;
  if (name == "bfloat16") return at::ScalarType::BFloat16;
  if (name == "int64") return at::ScalarType::Long;
  if (name == "int32") return at::ScalarType::Int;
  if (name == "bool") return at::ScalarType::Bool;
  return absl::InvalidArgumentError(absl::StrCat("unknown dtype '", name, "' in a workload"));
}

// {"name": value, ...}: calls `member(name)` with the reader before each value.
template <typename Member>
absl::Status ReadObject(Reader& reader, Member member) {
  if (absl::Status status = reader.Expect('{'); !status.ok()) return status;
  do {
    absl::StatusOr<std::string> name = reader.String();
    if (!name.ok()) return name.status();
    if (absl::Status status = reader.Expect(':'); !status.ok()) return status;
    if (absl::Status status = member(*name); !status.ok()) return status;
  } while (reader.Take(','));
  return reader.Expect('}');
}

template <typename Element>
absl::Status ReadArray(Reader& reader, Element element) {
  if (absl::Status status = reader.Expect('['); !status.ok()) return status;
  if (reader.Take(']')) return absl::OkStatus();
  do {
    if (absl::Status status = element(); !status.ok()) return status;
  } while (reader.Take(','));
  return reader.Expect(']');
}

absl::Status ReadLeaf(Reader& reader, WorkloadLeaf& leaf) {
  return ReadObject(reader, [&](const std::string& name) -> absl::Status {
    if (name == "shape") {
      return ReadArray(reader, [&]() -> absl::Status {
        absl::StatusOr<int64_t> size = reader.Int();
        if (!size.ok()) return size.status();
        if (*size < 0) return reader.Error("negative size");
        leaf.shape.push_back(*size);
        return absl::OkStatus();
      });
    }
    absl::StatusOr<std::string> value = reader.String();
    if (!value.ok()) return value.status();
    if (name == "key") {
      leaf.key = *std::move(value);
      return absl::OkStatus();
    }
    if (name != "dtype") return reader.Error(absl::StrCat("unknown member '", name, "' of a leaf"));
    absl::StatusOr<at::ScalarType> dtype = ParseDtype(*value);
    if (!dtype.ok()) return dtype.status();
    leaf.dtype = *dtype;
    return absl::OkStatus();
  });
}

}  // namespace

int64_t Workload::bytes() const {
  int64_t total = 0;
  for (const WorkloadLeaf& leaf : leaves) {
    int64_t bytes = static_cast<int64_t>(c10::elementSize(leaf.dtype));
    for (int64_t size : leaf.shape) bytes *= size;
    total += bytes;
  }
  return total;
}

absl::StatusOr<TensorDict> Workload::MakeTree(double value) const {
  TensorDict tree;
  for (const WorkloadLeaf& leaf : leaves) {
    std::vector<KeyComponent> components;
    for (std::string_view part : absl::StrSplit(leaf.key, '.')) {
      components.emplace_back(std::string(part));
    }
    absl::Status status = tree.Set(NestedKey(std::move(components)),
                                   at::full(leaf.shape, value, at::TensorOptions(leaf.dtype)));
    if (!status.ok()) return status;
  }
  return tree;
}

absl::StatusOr<Workload> ParseWorkload(std::string_view json) {
  Reader reader(json);
  Workload workload;
  absl::Status status = ReadObject(reader, [&](const std::string& name) -> absl::Status {
    if (name == "leaves") {
      return ReadArray(reader, [&] { return ReadLeaf(reader, workload.leaves.emplace_back()); });
    }
    absl::StatusOr<std::string> value = reader.String();
    if (!value.ok()) return value.status();
    if (name == "name") workload.name = *std::move(value);
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  if (!reader.AtEnd()) return reader.Error("text after the end");
  return workload;
}

absl::StatusOr<Workload> GridWorkload(std::string_view text) {
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is not COUNTxSIZE, such as 1000x4KiB"));
  const std::vector<std::string_view> parts = absl::StrSplit(text, 'x');
  if (parts.size() != 2) return bad;
  std::string_view size = parts[1];
  int64_t unit = 1;
  if (absl::ConsumeSuffix(&size, "MiB")) {
    unit = 1 << 20;
  } else if (absl::ConsumeSuffix(&size, "KiB")) {
    unit = 1 << 10;
  } else if (!absl::ConsumeSuffix(&size, "B")) {
    return bad;
  }
  int64_t count = 0, number = 0;
  if (!absl::SimpleAtoi(parts[0], &count) || !absl::SimpleAtoi(size, &number) || count < 1 ||
      number < 1 || number * unit % 4 != 0) {
    return bad;
  }
  Workload workload;
  workload.name = std::string(text);
  for (int64_t i = 0; i < count; ++i) {
    workload.leaves.push_back(
        {absl::StrCat("layer.", i), {number * unit / 4}, at::ScalarType::Float});
  }
  return workload;
}

absl::StatusOr<Workload> FindWorkload(const std::string& name) {
  if (absl::StatusOr<Workload> grid = GridWorkload(name); grid.ok()) return grid;
  std::vector<std::string> paths = {absl::StrCat("benchmarks/workloads/", name, ".json"), name};
  // `bazel run` starts programs in their runfiles and tells where the caller stood.
  if (const char* caller = std::getenv("BUILD_WORKING_DIRECTORY"); caller != nullptr) {
    paths.push_back(absl::StrCat(caller, "/", name));
  }
  for (const std::string& path : paths) {
    std::ifstream file(path);
    if (!file) continue;
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    return ParseWorkload(text);
  }
  return absl::NotFoundError(absl::StrCat("no workload '", name,
                                          "': neither COUNTxSIZE, nor a model, nor a file"));
}

std::vector<std::string> GridNames() {
  return {"1x64B", "1x4KiB", "1000x4KiB", "100x100KiB", "16x4MiB", "1x64MiB"};
}

std::vector<std::string> ModelNames() {
  return {"mobilenet-v2", "resnet50", "whisper-tiny", "gpt2"};
}

}  // namespace leafpack
