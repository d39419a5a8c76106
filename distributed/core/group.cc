#include "distributed/core/group.h"

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "distributed/core/engine.h"
#include "distributed/core/engine_impl.h"
#include "distributed/core/engine_store.h"
#include "distributed/core/error.h"
#include "distributed/core/exit.h"
#include "distributed/core/flight/dump.h"
#include "distributed/core/solo_engine.h"

namespace leafpack {
namespace {

// What the last handle of a group gives its calls.
constexpr absl::Duration kLastHandlePatience = absl::Seconds(5);

}  // namespace

absl::StatusOr<Group> Group::Create(c10::intrusive_ptr<c10d::Store> store, std::string_view prefix,
                                    GroupRank rank, int size, std::vector<GlobalRank> global_ranks,
                                    GroupOptions options) {
  if (size < 1) return absl::InvalidArgumentError(absl::StrCat("a group of ", size, " ranks"));
  if (rank.value() < 0 || rank.value() >= size) {
    return absl::InvalidArgumentError(
        absl::StrCat("group rank ", rank.value(), " in a group of ", size, " ranks"));
  }
  if (store == nullptr) return absl::InvalidArgumentError("a group needs a store");
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the timeout of a group must be positive, not ", absl::FormatDuration(options.timeout)));
  }
  if (global_ranks.empty()) {
    for (int i = 0; i < size; ++i) global_ranks.emplace_back(i);
  }
  if (global_ranks.size() != static_cast<size_t>(size)) {
    return absl::InvalidArgumentError(absl::StrCat(global_ranks.size(),
                                                   " global ranks for a group of ", size, " ranks"));
  }
  std::set<int> seen;
  for (GlobalRank global : global_ranks) {
    if (global.value() < 0 || !seen.insert(global.value()).second) {
      return absl::InvalidArgumentError(absl::StrCat(
          "global rank ", global.value(), " is negative or stands twice in the group"));
    }
  }
  absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend(options.backend);
  if (!backend.ok()) return backend.status();

  EngineConfig config;
  config.store = std::make_shared<const StoreHolder>(StoreHolder{std::move(store)});
  config.prefix = std::string(prefix);
  config.rank = rank;
  config.size = size;
  config.global_ranks = std::move(global_ranks);
  config.options = std::move(options);
  config.backend = *std::move(backend);
  FlightRecorder::Info flight;
  flight.group = config.prefix;
  flight.rank = rank.value();
  for (GlobalRank global : config.global_ranks) flight.global_ranks.push_back(global.value());
  flight.backend = config.options.backend;
  config.flight = NewFlightRecorder(std::move(flight));
  std::shared_ptr<Engine> engine =
      size == 1 ? NewSoloEngine(std::move(config)) : EngineImpl::Create(std::move(config));
  // Calls keep the engine alive; the last handle of the group shuts it down.
  Engine* raw = engine.get();
  return Group(std::shared_ptr<Engine>(raw, [engine = std::move(engine)](Engine*) {
    engine->Shutdown(kLastHandlePatience).IgnoreError();
  }));
}

GroupRank Group::rank() const { return engine_->rank(); }
int Group::size() const { return engine_->size(); }
GlobalRank Group::global_rank() const { return engine_->global_rank(engine_->rank()); }
const GroupOptions& Group::options() const { return engine_->options(); }
Backend& Group::backend() const { return engine_->backend(); }
Engine& Group::engine() const { return *engine_; }

absl::StatusOr<GlobalRank> Group::ToGlobal(GroupRank rank) const {
  if (rank.value() < 0 || rank.value() >= size()) {
    return absl::OutOfRangeError(
        absl::StrCat("group rank ", rank.value(), " in a group of ", size(), " ranks"));
  }
  return engine_->global_rank(rank);
}

absl::StatusOr<GroupRank> Group::ToGroup(GlobalRank rank) const {
  std::vector<GlobalRank> members;
  for (int i = 0; i < size(); ++i) {
    members.push_back(engine_->global_rank(GroupRank(i)));
    if (members.back() == rank) return GroupRank(i);
  }
  return absl::NotFoundError(absl::StrCat("global rank ", rank.value(),
                                          " is not in the group of ", FormatRanks(members)));
}

absl::Status Group::Shutdown(absl::Duration timeout) { return engine_->Shutdown(timeout); }

bool AwaitIdle(const Group& group, absl::Time until, const InterruptCheck& interrupt) {
  // A group of one has no call that outlasts its Post.
  auto* engine = dynamic_cast<EngineImpl*>(&group.engine());
  return engine == nullptr || engine->AwaitIdle(until, interrupt);
}

}  // namespace leafpack
