// The flight recorder: what the last calls of each group did, and when. It is on by default and
// costs a few tens of nanoseconds for each change of a call's state (docs/flight.md).
//
// The engine records collectives. Whatever else moves between ranks (point-to-point transfers) does so
// by itself:
//
//   FlightRecorder& flight = group.engine().flight();
//   FlightRecorder::Ticket ticket = flight.Begin({.kind = "send", .number = n, .peer = 3, .tag = 7,
//                                                 .leaves = 12, .bytes = 4096});
//   flight.Advance(ticket, FlightState::kAgreed);   // matched with its other side
//   flight.Advance(ticket, FlightState::kInData);
//   flight.End(ticket, status);                     // done, or failed and why
#ifndef LEAFPACK_DISTRIBUTED_CORE_FLIGHT_RECORDER_H_
#define LEAFPACK_DISTRIBUTED_CORE_FLIGHT_RECORDER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"

namespace leafpack {

enum class FlightState : uint8_t {
  kPosted = 0,  // issued here; the other ranks have not agreed
  kAgreed = 1,  // granted: all ranks are in it
  kInData = 2,  // its data may be on the way
  kDone = 3,
  kFailed = 4,
};
std::string_view FlightStateName(FlightState state);  // "posted", "agreed", "in data", ...

// One call as it was recorded. Times are nanoseconds of CLOCK_MONOTONIC, 0: not reached.
struct FlightCall {
  uint64_t index = 0;   // 1, 2, 3, ... in the order of recording
  uint64_t number = 0;  // among the collectives of the group (equal on all ranks), or of the transfer
  std::string kind;
  std::string name;
  std::string reason;  // of a failure
  int peer = -1;       // group rank of a transfer's other side; -1: none, or any
  int64_t tag = -1;
  int64_t leaves = 0;
  int64_t bytes = 0;
  absl::uint128 digest = 0;
  uint32_t epoch = 0;
  bool async = false;
  bool frame = false;  // rode with its agreement
  FlightState state = FlightState::kPosted;
  int64_t posted = 0;
  int64_t agreed = 0;
  int64_t in_data = 0;
  int64_t ended = 0;
};

// The last calls of one group on one rank. Thread-safe; nothing here waits for anything but, for
// nanoseconds, another thread in the same entry. Not to be used in a forked child.
class FlightRecorder {
 public:
  static constexpr size_t kCalls = 1000;
  static constexpr size_t kMaxName = 256;    // bytes kept of a name
  static constexpr size_t kMaxReason = 512;  // bytes kept of a reason

  struct Info {
    std::string group = {};  // equal on all members: the prefix of the group's keys
    int rank = 0;       // in the group
    std::vector<int> global_ranks = {};
    std::string backend = {};
  };
  // What is known of a call when it begins.
  struct Begun {
    std::string_view kind;  // a literal: it is kept as a pointer
    std::string_view name = {};
    uint64_t number = 0;
    int peer = -1;
    int64_t tag = -1;
    int64_t leaves = 0;
    int64_t bytes = 0;
    absl::uint128 digest = 0;
    uint32_t epoch = 0;
    bool async = false;
    bool frame = false;
  };
  // Names an entry. 0: the recorder was off; the calls below do nothing then, nor where the entry was
  // overwritten since.
  using Ticket = uint64_t;

  // Dumps know it as long as it lives, and the last few that are gone.
  static std::shared_ptr<FlightRecorder> Create(Info info);
  explicit FlightRecorder(Info info) : info_(std::move(info)) {}
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // For all recorders of the process. On, unless the environment has LEAFPACK_FLIGHT=0.
  static void SetEnabled(bool enabled);
  static bool enabled();

  // `now`: the monotonic clock in nanoseconds where the caller knows it; 0: it is read.
  Ticket Begin(const Begun& begun, int64_t now = 0);
  void Advance(Ticket ticket, FlightState state, int64_t now = 0);
  // The same, with the epoch in which its data moves.
  void Advance(Ticket ticket, FlightState state, uint32_t epoch, int64_t now);
  // Done if `status` is OK; else failed, with its message.
  void End(Ticket ticket, const absl::Status& status, int64_t now = 0);
  void EndWith(Ticket ticket, bool ok, std::string_view reason, int64_t now = 0);

  // What keeps two groups apart whose keys had equal prefixes in different stores or at different
  // times; known once the ranks are connected.
  void set_session(std::string_view session);
  // Its group was shut down.
  void set_closed() { closed_.store(true, std::memory_order_relaxed); }

  const Info& info() const { return info_; }
  std::string session() const;
  bool closed() const { return closed_.load(std::memory_order_relaxed); }
  // All that were ever recorded.
  uint64_t total() const { return next_.load(std::memory_order_relaxed); }
  // The last kCalls, oldest first.
  std::vector<FlightCall> Calls() const;

 private:
  struct Slot;
  static constexpr size_t kChunk = 100;
  static_assert(kCalls % kChunk == 0);

  Slot* Find(Ticket ticket, bool make);
  template <typename F>
  void Change(Ticket ticket, F change);

  const Info info_;
  std::atomic<uint64_t> next_{0};
  std::atomic<bool> closed_{false};
  // Made when they are first needed: most groups of a job make few calls.
  std::array<std::atomic<Slot*>, kCalls / kChunk> chunks_{};
  mutable std::atomic<bool> session_busy_{false};
  std::string session_;
};

// The recorders that dumps know, in the order in which they were made.
std::vector<std::shared_ptr<const FlightRecorder>> FlightRecorders();

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_FLIGHT_RECORDER_H_
