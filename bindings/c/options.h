// From the structs of leafpack.h to the options of the C++ functions. What is wrong is thrown as a Failure.
#ifndef LEAFPACK_BINDINGS_C_OPTIONS_H_
#define LEAFPACK_BINDINGS_C_OPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/time/time.h"

#include "bindings/c/leafpack.h"
#include "distributed/core/engine.h"
#include "distributed/core/group.h"
#include "distributed/p2p/transfer.h"
#include "distributed/tree/all_reduce_options.h"
#include "distributed/tree/call_options.h"
#include "distributed/tree/tree_work.h"

namespace leafpack::c {

// Copies a struct of the caller, which may be longer or shorter than ours, into `ours` of `size` bytes;
// `smallest` is its size in the first version that had it. Null leaves `ours` as it is.
void ReadStruct(const void* theirs, size_t smallest, size_t size, void* ours, const char* argument);

// The struct_size of a struct that is filled, after a check.
size_t SizeToFill(const void* theirs, size_t smallest, const char* argument);

// The size of a struct in the first version that had it; specialized for those that have grown at their end
// since, so that programs which were compiled before go on.
template <typename Struct>
inline constexpr size_t kFirstSize = sizeof(Struct);
template <>
inline constexpr size_t kFirstSize<leafpack_group_options> =
    offsetof(leafpack_group_options, interrupt);
template <>
inline constexpr size_t kFirstSize<leafpack_call_options> =
    offsetof(leafpack_call_options, refusal);
template <>
inline constexpr size_t kFirstSize<leafpack_reduce_options> =
    offsetof(leafpack_reduce_options, refusal);

template <typename Struct>
Struct CopyStruct(const Struct* theirs, const char* argument) {
  Struct ours = {};
  ReadStruct(theirs, kFirstSize<Struct>, sizeof(Struct), &ours, argument);
  return ours;
}

// Writes as much of `ours` as the caller's struct has room for; its struct_size stays.
template <typename Struct>
void FillStruct(const Struct& ours, Struct* theirs, const char* argument) {
  const size_t room = SizeToFill(theirs, kFirstSize<Struct>, argument);
  const size_t size = room < sizeof(Struct) ? room : sizeof(Struct);
  std::memcpy(reinterpret_cast<char*>(theirs) + sizeof(size_t),
              reinterpret_cast<const char*>(&ours) + sizeof(size_t), size - sizeof(size_t));
}

leafpack_stats StatsOf(const CollectiveStats& stats);

// The options of one call, and where its statistics go.
template <typename Options>
class OptionsOfCall {
 public:
  OptionsOfCall(Options options, leafpack_stats* stats)
      : options_(std::move(options)), stats_(stats) {}

  // For the synchronous call.
  const Options& ForCall() {
    if (stats_ != nullptr) options_.stats = &measured_;
    return options_;
  }
  // For the asynchronous one, which cannot be interrupted and has its statistics in its work.
  const Options& ForStart() {
    options_.interrupt = nullptr;
    return options_;
  }
  // After the synchronous call.
  void FillStats() const {
    if (stats_ != nullptr) FillStruct(StatsOf(measured_), stats_, "options.stats");
  }

 private:
  Options options_;
  leafpack_stats* stats_;
  CollectiveStats measured_;
};

using ReduceCall = OptionsOfCall<AllReduceOptions>;
using MoveCall = OptionsOfCall<CallOptions>;

ReduceCall ReadReduceOptions(const leafpack_reduce_options* options);
MoveCall ReadCallOptions(const leafpack_call_options* options);
TransferOptions ReadTransferOptions(const leafpack_transfer_options* options);
// What is not given is that of `defaults`.
struct GroupCall {
  GroupOptions options;
  InterruptCheck interrupt;  // of the call that makes the group
};
GroupCall ReadGroupOptions(const leafpack_group_options* options, GroupOptions defaults = {});

// Milliseconds, or LEAFPACK_NO_TIMEOUT.
absl::Duration ReadWaitTimeout(int64_t timeout_ms);

}  // namespace leafpack::c

#endif  // LEAFPACK_BINDINGS_C_OPTIONS_H_
