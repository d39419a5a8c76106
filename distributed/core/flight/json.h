// Writes JSON text. Internal to the flight recorder.
#ifndef LEAFPACK_DISTRIBUTED_CORE_FLIGHT_JSON_H_
#define LEAFPACK_DISTRIBUTED_CORE_FLIGHT_JSON_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace leafpack {

// Commas are put where they belong; that objects and arrays are closed is the caller's business.
class JsonWriter {
 public:
  JsonWriter& Key(std::string_view key);
  void String(std::string_view text);  // bytes that are no UTF-8 become U+FFFD
  void Int(int64_t value);
  void Bool(bool value);
  void Raw(std::string_view json);  // e.g. a number that was formatted
  void BeginObject() { Open('{'); }
  void EndObject() { Close('}'); }
  void BeginArray() { Open('['); }
  void EndArray() { Close(']'); }
  std::string Take() && { return std::move(text_); }

 private:
  void Open(char bracket);
  void Close(char bracket);
  void Comma();
  void Quote(std::string_view text);

  std::string text_;
  bool comma_ = false;  // before the next value or key
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_FLIGHT_JSON_H_
