// The one file of the channel that knows c10d, and where what it throws is caught.
#include "distributed/core/channel/c10d_key_value_store.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace leafpack {
namespace {

class C10dKeyValueStore : public KeyValueStore {
 public:
  C10dKeyValueStore(c10::intrusive_ptr<c10d::Store> original, std::string prefix)
      : original_(std::move(original)), prefix_(std::move(prefix)) {}

  absl::StatusOr<bool> Check(std::string_view key) override {
    return Run<bool>("check", key, [&](c10d::Store& store) { return store.check({std::string(key)}); });
  }

  absl::StatusOr<std::string> Get(std::string_view key) override {
    return Run<std::string>("get", key, [&](c10d::Store& store) {
      const std::vector<uint8_t> value = store.get(std::string(key));
      return std::string(value.begin(), value.end());
    });
  }

  absl::Status Set(std::string_view key, std::string_view value) override {
    return Run<bool>("set", key, [&](c10d::Store& store) {
             store.set(std::string(key), std::vector<uint8_t>(value.begin(), value.end()));
             return true;
           })
        .status();
  }

  absl::StatusOr<std::unique_ptr<KeyValueStore>> Clone() override {
    return std::make_unique<C10dKeyValueStore>(original_, prefix_);
  }

 private:
  template <typename T, typename F>
  absl::StatusOr<T> Run(std::string_view what, std::string_view key, F body) {
    try {
      if (!store_) store_ = c10::make_intrusive<c10d::PrefixStore>(prefix_, original_->clone());
      return body(*store_);
    } catch (const std::exception& error) {
      // c10 appends a stack trace to what it says.
      std::string text = error.what();
      text.resize(std::min(text.find('\n'), text.size()));
      return absl::UnavailableError(absl::StrCat(what, " of '", key, "': ", text));
    }
  }

  const c10::intrusive_ptr<c10d::Store> original_;
  const std::string prefix_;
  c10::intrusive_ptr<c10d::Store> store_;
};

}  // namespace

std::unique_ptr<KeyValueStore> WrapC10dStore(c10::intrusive_ptr<c10d::Store> store, std::string_view prefix) {
  return std::make_unique<C10dKeyValueStore>(std::move(store), std::string(prefix));
}

}  // namespace leafpack
