#include "distributed/core/channel/key_value_store.h"

#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

namespace leafpack {
namespace {

struct Values {
  absl::Mutex mutex;
  std::map<std::string, std::string, std::less<>> map ABSL_GUARDED_BY(mutex);
};

class InMemoryStore : public KeyValueStore {
 public:
  explicit InMemoryStore(std::shared_ptr<Values> values) : values_(std::move(values)) {}

  absl::StatusOr<bool> Check(std::string_view key) override {
    absl::MutexLock lock(&values_->mutex);
    return values_->map.contains(key);
  }

  absl::StatusOr<std::string> Get(std::string_view key) override {
    absl::MutexLock lock(&values_->mutex);
    const auto it = values_->map.find(key);
    if (it == values_->map.end()) return absl::NotFoundError(absl::StrCat("the store has no key '", key, "'"));
    return it->second;
  }

  absl::Status Set(std::string_view key, std::string_view value) override {
    absl::MutexLock lock(&values_->mutex);
    values_->map.insert_or_assign(std::string(key), std::string(value));
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<KeyValueStore>> Clone() override {
    return std::make_unique<InMemoryStore>(values_);
  }

 private:
  const std::shared_ptr<Values> values_;
};

}  // namespace

std::unique_ptr<KeyValueStore> NewInMemoryStore() {
  return std::make_unique<InMemoryStore>(std::make_shared<Values>());
}

}  // namespace leafpack
