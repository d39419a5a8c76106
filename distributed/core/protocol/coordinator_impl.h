// State of the CoordinatorMachine, shared by the files that implement it; not for others.
#ifndef LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_COORDINATOR_IMPL_H_
#define LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_COORDINATOR_IMPL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "distributed/core/protocol/coordinator_machine.h"

namespace leafpack::protocol {

class CoordinatorMachine::Impl {
 public:
  explicit Impl(Options options);

  void OnRecord(uint32_t rank, Record record, SteadyNanos now, CoordinatorActions& out);
  void OnLost(uint32_t rank, LostKind kind, std::string_view reason, uint64_t through,
              SteadyNanos now, CoordinatorActions& out);
  void OnTick(SteadyNanos now, CoordinatorActions& out);
  SteadyNanos NextTimer() const;
  size_t table_size() const {
    return entries_.size() + runs_.size() + committing_.size() + (probe_ ? 1 : 0);
  }

  // What is known about one rank.
  struct Member {
    bool joined = false;
    bool gone = false;
    uint64_t posted = 0;  // last number that it posted or skipped
    size_t undecided = 0;
    size_t undecided_payload = 0;
    std::array<std::pair<uint64_t, Digest128>, kDigestHistory>
        history{};  // [call % size]; zero digest: refused
  };

  enum class PostKind : uint8_t { kNone, kAgree, kError, kWithdrawn, kTold };
  struct Post {
    PostKind kind = PostKind::kNone;
    uint16_t flags = 0;
    uint32_t epoch = 0;
    Digest128 digest;
    Digest128 soft;
    Record record;  // keeps the payload
    std::string_view payload;
    RefuseBody refuse;
  };
  // Ranks that called the same thing, while their descriptions are collected.
  struct Side {
    std::vector<uint32_t> ranks;
    bool asked = false;
    bool complete = false;
    std::string manifest;
  };
  // A call that is not decided.
  struct Entry {
    std::vector<Post> posts;  // by rank
    uint32_t posted = 0;
    std::vector<Side> sides;  // not empty: COLLECTING
    size_t manifest_bytes = 0;
    SteadyNanos collect_until = kNever;
    bool overdue = false;  // kCollectTime has passed: two descriptions are enough
  };
  // Decided calls that some rank has yet to post; all with the same decision, which is never OK.
  struct Run {
    uint64_t last = 0;
    Decision decision = Decision::kLost;
    std::string body;
  };
  // A granted call with a completion round.
  struct Commit {
    std::vector<bool> done;
    uint32_t missing = 0;
  };
  struct Probe {
    FailKind kind = FailKind::kDeadline;  // of the failure that is asked about; or kError
    uint64_t call = 0;
    uint32_t rank = 0;
    std::string reason;
    SteadyNanos until = kNever;
    std::vector<bool> answered;
    std::vector<uint64_t> granted;
  };

  Options options_;
  uint32_t epoch_ = 0;
  std::vector<Member> members_;

 private:
  using Entries = std::map<uint64_t, std::unique_ptr<Entry>>;

  void Send(uint32_t rank, Record record, CoordinatorActions& out);
  void SendToAll(const Record& record, CoordinatorActions& out);
  void Drop(uint32_t rank, std::string_view reason, SteadyNanos now, CoordinatorActions& out);
  std::string Ranks(absl::Span<const uint32_t> ranks) const {
    return RanksText(ranks, options_.name);
  }
  std::vector<uint32_t> Gone() const;

  // Posts and decisions.
  void OnPost(uint32_t rank, Record record, SteadyNanos now, CoordinatorActions& out);
  void AnswerFromTable(uint32_t rank, uint64_t call, const Run& run, CoordinatorActions& out);
  Entries::iterator Open(uint64_t call);
  // Each of these may decide calls; iterators of entries that they decide are dead afterwards.
  void Evaluate(Entries::iterator at, SteadyNanos now, CoordinatorActions& out);
  void Agree(Entries::iterator at, SteadyNanos now, CoordinatorActions& out);
  void DecideRefused(Entries::iterator at, SteadyNanos now, CoordinatorActions& out);
  void Decide(Entries::iterator at, Decision decision, const DecideBody& body, SteadyNanos now,
              CoordinatorActions& out);
  void Remember(uint64_t call, Decision decision, std::string body);
  void TrimRuns();
  uint64_t PostedByAll() const;
  void OnWithdraw(uint32_t rank, const Record& record, SteadyNanos now, CoordinatorActions& out);

  // Differences.
  void Collect(Entries::iterator at, SteadyNanos now, CoordinatorActions& out);
  void CollectNoMore(Entries::iterator at, SteadyNanos now, CoordinatorActions& out);
  static bool CanTell(const Entry& entry);
  void OnManifest(uint32_t rank, Record record, SteadyNanos now, CoordinatorActions& out);
  void DecideMismatch(Entries::iterator at, SteadyNanos now, CoordinatorActions& out);
  std::string WhoIsBehind(uint64_t call, const Entry& entry) const;

  // Faults.
  void OnFail(uint32_t rank, const Record& record, SteadyNanos now, CoordinatorActions& out);
  void OnDone(uint32_t rank, const Record& record, CoordinatorActions& out);
  void OnState(uint32_t rank, const Record& record, SteadyNanos now, CoordinatorActions& out);
  void FinishProbe(bool expired, SteadyNanos now, CoordinatorActions& out);
  void RaiseUnagreed(uint64_t call, uint32_t rank, SteadyNanos now, CoordinatorActions& out);
  void Raise(FailKind kind, uint64_t call, uint32_t rank, AbortBody body, SteadyNanos now,
             CoordinatorActions& out);

  Entries entries_;
  std::vector<std::unique_ptr<Entry>> spare_;
  std::map<uint64_t, Run> runs_;  // by first number
  std::map<uint64_t, Commit> committing_;
  std::optional<Probe> probe_;
  std::string last_abort_;  // text of the last ABORT
  std::string lost_text_;   // why the group is unavailable
  uint32_t gone_ = 0;
  bool gaps_ = false;  // some rank has skipped numbers
};

}  // namespace leafpack::protocol

#endif  // LEAFPACK_DISTRIBUTED_CORE_PROTOCOL_COORDINATOR_IMPL_H_
