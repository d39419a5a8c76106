// leafpack_value: leaves that are no tensors.
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "bindings/c/guard.h"
#include "bindings/c/handles.h"
#include "bindings/c/leafpack.h"
#include "tensordict/non_tensor.h"

namespace leafpack::c {
namespace {

static_assert(static_cast<int>(NonTensor::Kind::kNone) == LEAFPACK_VALUE_NONE);
static_assert(static_cast<int>(NonTensor::Kind::kString) == LEAFPACK_VALUE_STRING);
static_assert(static_cast<int>(NonTensor::Kind::kInt) == LEAFPACK_VALUE_INT);
static_assert(static_cast<int>(NonTensor::Kind::kFloat) == LEAFPACK_VALUE_FLOAT);
static_assert(static_cast<int>(NonTensor::Kind::kBool) == LEAFPACK_VALUE_BOOL);
static_assert(static_cast<int>(NonTensor::Kind::kBytes) == LEAFPACK_VALUE_BYTES);
static_assert(static_cast<int>(NonTensor::Kind::kList) == LEAFPACK_VALUE_LIST);

template <typename Make>
leafpack_error* MakeValue(leafpack_value** value, Make&& make) noexcept {
  return Guard([&] {
    NeedPointer(value, "value");
    *value = MakeHandle(leafpack_value{make()});
  });
}

[[noreturn]] void FailKind(const NonTensor& value, const char* expected) {
  FailArgument("value", absl::StrCat("is of kind ", NonTensorKindName(value.kind()), ", not ",
                                     expected));
}

const std::vector<NonTensor>& ListOf(const NonTensor& value) {
  if (value.AsList() == nullptr) FailKind(value, "list");
  return *value.AsList();
}

}  // namespace
}  // namespace leafpack::c

using namespace leafpack::c;  // NOLINT(google-build-using-namespace): the functions of leafpack.h
using leafpack::NonTensor;

leafpack_error* leafpack_value_none(leafpack_value** value) {
  return MakeValue(value, [] { return NonTensor(); });
}

leafpack_error* leafpack_value_string(const char* text, size_t size, leafpack_value** value) {
  return MakeValue(value, [&] { return NonTensor(ReadText(text, size, "text")); });
}

leafpack_error* leafpack_value_int(int64_t number, leafpack_value** value) {
  return MakeValue(value, [&] { return NonTensor(number); });
}

leafpack_error* leafpack_value_float(double number, leafpack_value** value) {
  return MakeValue(value, [&] { return NonTensor(number); });
}

leafpack_error* leafpack_value_bool(int32_t truth, leafpack_value** value) {
  return MakeValue(value, [&] { return NonTensor(truth != 0); });
}

leafpack_error* leafpack_value_bytes(const void* data, size_t size, leafpack_value** value) {
  return MakeValue(value, [&] {
    NeedArray(data, size, "data");
    NeedPossible(size, "data");
    return NonTensor::Bytes({static_cast<const char*>(data), size});
  });
}

leafpack_error* leafpack_value_list(const leafpack_value* const* items, size_t count,
                                    leafpack_value** value) {
  return MakeValue(value, [&] {
    NeedArray(items, count, "items");
    std::vector<NonTensor> list;
    for (size_t i = 0; i < count; ++i) list.push_back(Need(items[i], "items")->value);
    return ValueOf(NonTensor::List(std::move(list)));
  });
}

leafpack_error* leafpack_value_kind(const leafpack_value* value, int32_t* kind) {
  return Guard([&] {
    NeedPointer(kind, "kind");
    *kind = static_cast<int32_t>(Need(value, "value")->value.kind());
  });
}

leafpack_error* leafpack_value_get_int(const leafpack_value* value, int64_t* number) {
  return Guard([&] {
    NeedPointer(number, "number");
    const auto object = Need(value, "value");
    if (!object->value.AsInt().has_value()) FailKind(object->value, "int");
    *number = *object->value.AsInt();
  });
}

leafpack_error* leafpack_value_get_float(const leafpack_value* value, double* number) {
  return Guard([&] {
    NeedPointer(number, "number");
    const auto object = Need(value, "value");
    if (!object->value.AsFloat().has_value()) FailKind(object->value, "float");
    *number = *object->value.AsFloat();
  });
}

leafpack_error* leafpack_value_get_bool(const leafpack_value* value, int32_t* truth) {
  return Guard([&] {
    NeedPointer(truth, "truth");
    const auto object = Need(value, "value");
    if (!object->value.AsBool().has_value()) FailKind(object->value, "bool");
    *truth = *object->value.AsBool() ? 1 : 0;
  });
}

leafpack_error* leafpack_value_get_text(const leafpack_value* value, const char** text,
                                        size_t* size) {
  return Guard([&] {
    NeedPointer(text, "text");
    NeedPointer(size, "size");
    const auto object = Need(value, "value");
    const std::string* held = object->value.AsString();
    if (held == nullptr) held = object->value.AsBytes();
    if (held == nullptr) FailKind(object->value, "string or bytes");
    *text = held->c_str();
    *size = held->size();
  });
}

leafpack_error* leafpack_value_get_size(const leafpack_value* value, size_t* size) {
  return Guard([&] {
    NeedPointer(size, "size");
    *size = ListOf(Need(value, "value")->value).size();
  });
}

leafpack_error* leafpack_value_get_item(const leafpack_value* value, size_t index,
                                        leafpack_value** item) {
  return Guard([&] {
    NeedPointer(item, "item");
    const auto object = Need(value, "value");
    const std::vector<NonTensor>& list = ListOf(object->value);
    if (index >= list.size()) {
      Fail(absl::OutOfRangeError(
          absl::StrCat("index is ", index, " in a list of ", list.size(), " values")));
    }
    *item = MakeHandle(leafpack_value{list[index]});
  });
}

void leafpack_value_free(leafpack_value* value) { FreeHandle(value); }
