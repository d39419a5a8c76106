// The path of a leaf or a node in a tree of tensors.
//
//   NestedKey key = {"encoder", 3, "weight"};   // a name, a position in a list, a name
//   key.ToString();                             // encoder[3].weight
//   NestedKey one = "a.b";                      // ONE component; dots mean nothing inside a name
#ifndef LEAFPACK_TENSORDICT_NESTED_KEY_H_
#define LEAFPACK_TENSORDICT_NESTED_KEY_H_

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace leafpack {

// One step of a path: a name or a position. A name is any string of bytes, dots, zero bytes and
// the empty string included (UTF-8 by convention; other bytes are kept and compared as they are).
// The name "0" and the position 0 are two different components.
class KeyComponent {
 public:
  // The empty name.
  KeyComponent() = default;

  // A name. Implicit, so that a path can be written as {"a", "b"}.
  KeyComponent(std::string name) : name_(std::move(name)) {}    // NOLINT(runtime/explicit)
  KeyComponent(std::string_view name) : name_(name) {}          // NOLINT(runtime/explicit)
  KeyComponent(const char* name) : name_(name) {}               // NOLINT(runtime/explicit)

  // A position in a list.
  template <std::integral Int>
    requires(!std::same_as<Int, bool> && !std::same_as<Int, char>)
  KeyComponent(Int position)  // NOLINT(runtime/explicit)
      : position_(static_cast<int64_t>(position)), is_position_(true) {}

  bool is_position() const { return is_position_; }
  bool is_name() const { return !is_position_; }

  // The name; empty for a position.
  const std::string& name() const { return name_; }

  // The position; 0 for a name.
  int64_t position() const { return position_; }

  // How the component stands alone: `[3]` for a position; a name as it is if it is plain, else in
  // double quotes with C escapes. Plain is a name that is not empty and has no byte that could be
  // taken for something else: no dot, quote, backslash, bracket, space, control character, invisible
  // mark or invalid UTF-8.
  std::string ToString() const;

  friend bool operator==(const KeyComponent&, const KeyComponent&) = default;

  // Positions come before names; positions by number, names by unsigned bytes.
  friend std::strong_ordering operator<=>(const KeyComponent& a, const KeyComponent& b) {
    if (a.is_position_ != b.is_position_) {
      return a.is_position_ ? std::strong_ordering::less : std::strong_ordering::greater;
    }
    if (a.is_position_) return a.position_ <=> b.position_;
    const int order = a.name_.compare(b.name_);  // char_traits<char> compares unsigned bytes.
    return order <=> 0;
  }

  template <typename H>
  friend H AbslHashValue(H h, const KeyComponent& c) {
    return H::combine(std::move(h), c.is_position_, c.position_, c.name_);
  }

 private:
  std::string name_;
  int64_t position_ = 0;
  bool is_position_ = false;
};

// A path: components from the root down. The empty path is the root itself. Ordered component by
// component; a path comes directly before the paths that begin with it.
class NestedKey {
 public:
  using const_iterator = std::vector<KeyComponent>::const_iterator;

  NestedKey() = default;
  NestedKey(std::initializer_list<KeyComponent> components)  // NOLINT(runtime/explicit)
      : components_(components) {}
  explicit NestedKey(std::vector<KeyComponent> components)
      : components_(std::move(components)) {}

  // One component, whatever bytes the string holds.
  NestedKey(std::string name) { components_.emplace_back(std::move(name)); }  // NOLINT
  NestedKey(std::string_view name) { components_.emplace_back(name); }        // NOLINT
  NestedKey(const char* name) { components_.emplace_back(name); }             // NOLINT
  NestedKey(KeyComponent component) {                                         // NOLINT
    components_.push_back(std::move(component));
  }

  bool empty() const { return components_.empty(); }
  size_t size() const { return components_.size(); }
  const KeyComponent& operator[](size_t i) const { return components_[i]; }
  const KeyComponent& back() const { return components_.back(); }
  const_iterator begin() const { return components_.begin(); }
  const_iterator end() const { return components_.end(); }
  const std::vector<KeyComponent>& components() const { return components_; }

  void push_back(KeyComponent component) { components_.push_back(std::move(component)); }
  void pop_back() { components_.pop_back(); }

  // This path with one component, or another path, behind it.
  NestedKey Child(KeyComponent component) const;
  NestedKey Join(const NestedKey& tail) const;

  // True if `this` is `other` or lies above it.
  bool IsPrefixOf(const NestedKey& other) const;

  // Printable and unambiguous: names are joined by dots, positions stand in brackets, names that are
  // not plain in quotes (see KeyComponent::ToString): `encoder[3]."a.b".""`. The root is `.`.
  std::string ToString() const;

  friend bool operator==(const NestedKey&, const NestedKey&) = default;
  friend auto operator<=>(const NestedKey&, const NestedKey&) = default;

  template <typename H>
  friend H AbslHashValue(H h, const NestedKey& key) {
    return H::combine(std::move(h), key.components_);
  }

  friend std::ostream& operator<<(std::ostream& out, const NestedKey& key) {
    return out << key.ToString();
  }

 private:
  std::vector<KeyComponent> components_;
};

}  // namespace leafpack

#endif  // LEAFPACK_TENSORDICT_NESTED_KEY_H_
