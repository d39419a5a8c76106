#include "tensordict/non_tensor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/base/casts.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "tensordict/digest_builder.h"
#include "tensordict/double_text.h"

namespace leafpack {

struct NonTensor::Rep {
  Kind kind = Kind::kNone;
  int depth = 0;       // of lists below and including this
  int64_t count = 1;   // of values below and including this
  int64_t number = 0;  // int, bool; the bits of a float
  std::string text;    // string, bytes
  std::vector<NonTensor> items;
};

NonTensor::NonTensor(std::shared_ptr<const Rep> rep) : rep_(std::move(rep)) {}

NonTensor::NonTensor(Kind kind, std::string_view text) {
  auto rep = std::make_shared<Rep>();
  rep->kind = kind;
  rep->text = std::string(text);
  rep_ = std::move(rep);
}

NonTensor::NonTensor(Kind kind, int64_t number) {
  auto rep = std::make_shared<Rep>();
  rep->kind = kind;
  rep->number = number;
  rep_ = std::move(rep);
}

NonTensor::NonTensor(Kind kind, double number)
    : NonTensor(kind, absl::bit_cast<int64_t>(
                          std::isnan(number) ? std::numeric_limits<double>::quiet_NaN() : number)) {
}

absl::StatusOr<NonTensor> NonTensor::List(std::vector<NonTensor> items) {
  auto rep = std::make_shared<Rep>();
  rep->kind = Kind::kList;
  rep->depth = 1;
  for (const NonTensor& item : items) {
    rep->count += item.rep_ == nullptr ? 1 : item.rep_->count;
    if (item.rep_ != nullptr) rep->depth = std::max(rep->depth, item.rep_->depth + 1);
  }
  if (rep->count > kMaxItems) {
    return absl::InvalidArgumentError(absl::StrCat("a list would hold more than ", kMaxItems,
                                                   " values, those of its lists counted in"));
  }
  if (rep->depth > kMaxDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("a list of values would nest ", rep->depth, " lists; at most ", kMaxDepth,
                     " are allowed"));
  }
  rep->items = std::move(items);
  return NonTensor(std::shared_ptr<const Rep>(std::move(rep)));
}

NonTensor::Kind NonTensor::kind() const { return rep_ == nullptr ? Kind::kNone : rep_->kind; }

const std::string* NonTensor::AsString() const {
  return kind() == Kind::kString ? &rep_->text : nullptr;
}

const std::string* NonTensor::AsBytes() const {
  return kind() == Kind::kBytes ? &rep_->text : nullptr;
}

const std::vector<NonTensor>* NonTensor::AsList() const {
  return kind() == Kind::kList ? &rep_->items : nullptr;
}

std::optional<int64_t> NonTensor::AsInt() const {
  if (kind() != Kind::kInt) return std::nullopt;
  return rep_->number;
}

std::optional<double> NonTensor::AsFloat() const {
  if (kind() != Kind::kFloat) return std::nullopt;
  return absl::bit_cast<double>(rep_->number);
}

std::optional<bool> NonTensor::AsBool() const {
  if (kind() != Kind::kBool) return std::nullopt;
  return rep_->number != 0;
}

bool operator==(const NonTensor& a, const NonTensor& b) {
  if (a.rep_ == b.rep_) return true;
  if (a.rep_ == nullptr || b.rep_ == nullptr) return false;
  const NonTensor::Rep& x = *a.rep_;
  const NonTensor::Rep& y = *b.rep_;
  return x.kind == y.kind && x.number == y.number && x.text == y.text && x.items == y.items;
}

void NonTensor::Print(std::string& out) const {
  switch (kind()) {
    case Kind::kNone:
      out += "none";
      return;
    case Kind::kString:
      absl::StrAppend(&out, "\"", absl::Utf8SafeCHexEscape(rep_->text), "\"");
      return;
    case Kind::kBytes:
      absl::StrAppend(&out, "b\"", absl::CHexEscape(rep_->text), "\"");
      return;
    case Kind::kInt:
      absl::StrAppend(&out, rep_->number);
      return;
    case Kind::kBool:
      out += rep_->number != 0 ? "true" : "false";
      return;
    case Kind::kFloat: {
      const std::string number = ShortestText(*AsFloat());
      out += number;
      // "1" is the int, "1.0" the float.
      if (number.find_first_not_of("-0123456789") == std::string_view::npos) out += ".0";
      return;
    }
    case Kind::kList: {
      out += "[";
      bool first = true;
      for (const NonTensor& item : rep_->items) {
        if (!first) out += ", ";
        first = false;
        item.Print(out);
      }
      out += "]";
      return;
    }
  }
}

std::string NonTensor::ToString() const {
  constexpr size_t kLongest = 160;
  constexpr size_t kShown = 64;
  std::string text;
  Print(text);
  if (text.size() <= kLongest) return text;
  size_t shown = kShown;
  // No half of a UTF-8 sequence.
  while (shown > 0 && (static_cast<unsigned char>(text[shown]) & 0xC0) == 0x80) --shown;
  return absl::StrCat(text.substr(0, shown), "... (", NonTensorKindName(kind()), ", digest ",
                      digest().ToString(), ")");
}

void NonTensor::AppendTo(DigestBuilder& builder) const {
  builder.U8(static_cast<uint8_t>(kind()));
  switch (kind()) {
    case Kind::kNone:
      return;
    case Kind::kString:
    case Kind::kBytes:
      builder.Bytes(rep_->text);
      return;
    case Kind::kInt:
    case Kind::kFloat:
    case Kind::kBool:
      builder.I64(rep_->number);
      return;
    case Kind::kList:
      builder.U64(rep_->items.size());
      for (const NonTensor& item : rep_->items) item.AppendTo(builder);
      return;
  }
}

Digest128 NonTensor::digest() const {
  DigestBuilder builder("leafpack value 1");
  AppendTo(builder);
  return builder.Finish();
}

std::string_view NonTensorKindName(NonTensor::Kind kind) {
  switch (kind) {
    case NonTensor::Kind::kNone:
      return "none";
    case NonTensor::Kind::kString:
      return "string";
    case NonTensor::Kind::kInt:
      return "int";
    case NonTensor::Kind::kFloat:
      return "float";
    case NonTensor::Kind::kBool:
      return "bool";
    case NonTensor::Kind::kBytes:
      return "bytes";
    case NonTensor::Kind::kList:
      return "list";
  }
  return "of no known kind";
}

}  // namespace leafpack
