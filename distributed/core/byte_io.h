// Plain encoding of what ranks send each other about trees: numbers little endian and of fixed width,
// strings behind their length. The reader believes nothing: past the end it gives zeros and fails.
#ifndef LEAFPACK_DISTRIBUTED_CORE_BYTE_IO_H_
#define LEAFPACK_DISTRIBUTED_CORE_BYTE_IO_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace leafpack {

class ByteWriter {
 public:
  void U8(uint8_t value) { bytes_.push_back(static_cast<char>(value)); }
  void U16(uint16_t value) { Append(value); }
  void U32(uint32_t value) { Append(value); }
  void U64(uint64_t value) { Append(value); }
  void I64(int64_t value) { Append(static_cast<uint64_t>(value)); }
  // The bytes alone, without a length.
  void Raw(std::string_view value) { bytes_.append(value); }
  // u32 length and the bytes; at most 4 GiB - 1.
  void String(std::string_view value) {
    U32(static_cast<uint32_t>(value.size()));
    bytes_.append(value);
  }

  size_t size() const { return bytes_.size(); }
  void Reserve(size_t bytes) { bytes_.reserve(bytes); }
  std::string Take() && { return std::move(bytes_); }

 private:
  template <typename T>
  void Append(T value) {
    char raw[sizeof(T)];
    for (size_t i = 0; i < sizeof(T); ++i) raw[i] = static_cast<char>(value >> (8 * i));
    bytes_.append(raw, sizeof(T));
  }

  std::string bytes_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  uint8_t U8() { return Read<uint8_t>(); }
  uint16_t U16() { return Read<uint16_t>(); }
  uint32_t U32() { return Read<uint32_t>(); }
  uint64_t U64() { return Read<uint64_t>(); }
  int64_t I64() { return static_cast<int64_t>(Read<uint64_t>()); }
  // The next `size` bytes, which live as long as the input; empty after a failure.
  std::string_view Raw(size_t size) {
    if (size > rest_.size()) {
      Fail();
      return {};
    }
    const std::string_view value = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return value;
  }
  std::string_view String() { return Raw(U32()); }

  // Bytes that were not read yet; 0 after a failure.
  size_t remaining() const { return rest_.size(); }
  // False once something was read past the end.
  bool ok() const { return ok_; }

 private:
  template <typename T>
  T Read() {
    if (rest_.size() < sizeof(T)) {
      Fail();
      return 0;
    }
    uint64_t value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      value |= static_cast<uint64_t>(static_cast<uint8_t>(rest_[i])) << (8 * i);
    }
    rest_.remove_prefix(sizeof(T));
    return static_cast<T>(value);
  }
  void Fail() {
    rest_ = {};
    ok_ = false;
  }

  std::string_view rest_;
  bool ok_ = true;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_BYTE_IO_H_
