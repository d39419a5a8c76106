// NonTensor: a value in a tree that is no tensor: a text, a number, a flag, bytes, or a list of these.
//
//   tree.Set("step", 12);                       // the conversions are implicit
//   tree.Set("name", "resnet50");
//   tree.Set("mean", *leafpack::NonTensor::List({0.4, 0.5}));
//   tree.GetNonTensor("step")->AsInt();         // 12
#ifndef LEAFPACK_TENSORDICT_NON_TENSOR_H_
#define LEAFPACK_TENSORDICT_NON_TENSOR_H_

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/status/statusor.h"
#include "tensordict/digest128.h"

namespace leafpack {

class DigestBuilder;

// Immutable; copies share one body. Threads: any.
class NonTensor {
 public:
  // The numbers are part of digests and wire formats.
  enum class Kind : uint8_t {
    kNone = 0,  // no value
    kString = 1,
    kInt = 2,
    kFloat = 3,
    kBool = 4,
    kBytes = 5,
    kList = 6,
  };
  // Lists may nest, but no deeper than this.
  static constexpr int kMaxDepth = 64;
  // Values in a list, those of its lists counted in: at most this many.
  static constexpr int64_t kMaxItems = int64_t{1} << 20;

  // No value.
  NonTensor() = default;

  // A text: UTF-8 by convention; other bytes are kept and compared as they are.
  template <typename Text>
    requires std::convertible_to<const Text&, std::string_view> &&
             (!std::same_as<std::decay_t<Text>, std::nullptr_t>)
  NonTensor(const Text& text)  // NOLINT(runtime/explicit)
      : NonTensor(Kind::kString, std::string_view(text)) {}

  // A whole number of at most 64 signed bits.
  template <std::integral Int>
    requires(!std::same_as<Int, bool> && !std::same_as<Int, char> &&
             (std::signed_integral<Int> || sizeof(Int) < sizeof(int64_t)))
  NonTensor(Int value) : NonTensor(Kind::kInt, static_cast<int64_t>(value)) {}  // NOLINT

  // A double. All NaNs are one NaN; 0.0 and -0.0 are two values.
  template <std::floating_point Float>
  NonTensor(Float value) : NonTensor(Kind::kFloat, static_cast<double>(value)) {}  // NOLINT

  template <typename Bool>
    requires std::same_as<Bool, bool>
  NonTensor(Bool value) : NonTensor(Kind::kBool, int64_t{value}) {}  // NOLINT

  static NonTensor Bytes(std::string_view bytes) { return NonTensor(Kind::kBytes, bytes); }
  // InvalidArgument if it would pass kMaxDepth or kMaxItems.
  static absl::StatusOr<NonTensor> List(std::vector<NonTensor> items);

  Kind kind() const;
  bool is_none() const { return rep_ == nullptr; }

  // The value if it is of this kind, else null or nullopt. Pointers live as long as a copy of this.
  const std::string* AsString() const;
  const std::string* AsBytes() const;
  const std::vector<NonTensor>* AsList() const;
  std::optional<int64_t> AsInt() const;
  std::optional<double> AsFloat() const;
  std::optional<bool> AsBool() const;

  // Equal kinds and values; floats by their bits.
  friend bool operator==(const NonTensor& a, const NonTensor& b);

  // Unambiguous: none, "text", 3, 2.5, 2.0, true, b"\x00", ["a", [1, 2]]. Ends of long values are
  // replaced by a digest, so that two texts are equal exactly if the values are.
  std::string ToString() const;

  // The same in every process and on every platform.
  Digest128 digest() const;
  // Writes kind and value.
  void AppendTo(DigestBuilder& builder) const;

 private:
  struct Rep;

  NonTensor(Kind kind, std::string_view text);
  NonTensor(Kind kind, int64_t number);
  NonTensor(Kind kind, double number);
  explicit NonTensor(std::shared_ptr<const Rep> rep);

  void Print(std::string& out) const;

  std::shared_ptr<const Rep> rep_;  // null: kNone
};

// "none", "string", "int", "float", "bool", "bytes", "list".
std::string_view NonTensorKindName(NonTensor::Kind kind);

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_NON_TENSOR_H_
