#include "bindings/c/options.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "bindings/c/guard.h"
#include "distributed/core/reduce_op.h"
#include "distributed/tree/filter.h"
#include "tensordict/bucket/bucket_plan.h"

namespace leafpack::c {
namespace {

// No struct of this interface will ever be larger: what says so is no struct.
constexpr size_t kLargestStruct = 4096;

int ReadChoice(int32_t value, int32_t last, const char* member) {
  if (value < 0 || value > last) {
    FailArgument(member, absl::StrCat("is ", value, "; its constants end at ", last));
  }
  return value;
}

void NeedZero(int32_t reserved, const char* member) {
  if (reserved != 0) FailArgument(member, absl::StrCat("is ", reserved, "; it must be 0"));
}

absl::Duration ReadTimeout(int64_t timeout_ms) {
  return timeout_ms == 0 ? absl::InfiniteDuration() : absl::Milliseconds(timeout_ms);
}

InterruptCheck ReadInterrupt(int32_t (*interrupt)(void*), void* context) {
  if (interrupt == nullptr) return nullptr;
  return [interrupt, context] {
    try {
      return interrupt(context) != 0;
    } catch (...) {  // nothing that waits is ready for it
      LogThrown("options.interrupt");
      return true;
    }
  };
}

std::string ReadName(const char* name) { return name == nullptr ? "" : name; }

// The members that collectives share, whichever struct they stand in.
template <typename Struct, typename Options>
void ReadCommon(const Struct& given, Options* options) {
  constexpr CheckMode kChecks[] = {CheckMode::kAlways, CheckMode::kFirst, CheckMode::kOff};
  options->timeout = ReadTimeout(given.timeout_ms);
  options->name = ReadName(given.name);
  options->on_failure = ReadChoice(given.on_failure, LEAFPACK_RESTORE, "options.on_failure") == 0
                            ? OnFailure::kReport
                            : OnFailure::kRestore;
  options->check = kChecks[ReadChoice(given.check, LEAFPACK_OFF, "options.check")];
  if (given.max_in_flight_bytes != 0) options->max_in_flight_bytes = given.max_in_flight_bytes;
  options->interrupt = ReadInterrupt(given.interrupt, given.interrupt_context);
  if (given.stats != nullptr) SizeToFill(given.stats, kFirstSize<leafpack_stats>, "options.stats");
}

Bucketing ReadBucketing(const leafpack_reduce_options& given) {
  const int mode = ReadChoice(given.bucketing, LEAFPACK_MAX_BYTES, "options.bucketing");
  if (mode == LEAFPACK_MAX_BYTES) return Bucketing::MaxBytes(given.bucket_bytes);
  if (given.bucket_bytes != 0) {
    FailArgument("options.bucket_bytes", "is given without LEAFPACK_MAX_BYTES");
  }
  return mode == LEAFPACK_PER_LEAF ? Bucketing::PerLeaf() : Bucketing::Auto();
}

LeafFilter ReadLeaves(const leafpack_reduce_options& given) {
  const int choice = ReadChoice(given.leaves, LEAFPACK_CHOSEN_LEAVES, "options.leaves");
  if (choice == LEAFPACK_FLOATING_LEAVES) return LeafFilter::Floating();
  if (choice == LEAFPACK_ALL_LEAVES) return LeafFilter::All();
  NeedPointer(given.takes_leaf, "options.takes_leaf");
  return LeafFilter::Where([takes = given.takes_leaf, context = given.takes_leaf_context](
                               const NestedKey& key, const at::Tensor&) {
    const std::vector<leafpack_component> path = PathOf(key);
    return takes(context, key.ToString().c_str(), path.data(), path.size()) != 0;
  });
}

constexpr ReduceOpKind kOps[] = {
    ReduceOpKind::kSum,  ReduceOpKind::kAvg, ReduceOpKind::kProduct, ReduceOpKind::kMin,
    ReduceOpKind::kMax,  ReduceOpKind::kBand, ReduceOpKind::kBor,    ReduceOpKind::kBxor,
    ReduceOpKind::kPremulSum};
static_assert(kOps[LEAFPACK_PREMUL_SUM] == ReduceOpKind::kPremulSum);
static_assert(kOps[LEAFPACK_BXOR] == ReduceOpKind::kBxor);
static_assert(kOps[LEAFPACK_MAX] == ReduceOpKind::kMax);

size_t ReadSize(const void* theirs, size_t smallest, const char* argument) {
  size_t size = 0;
  std::memcpy(&size, theirs, sizeof(size));
  if (size < smallest || size > kLargestStruct) {
    FailArgument(argument, absl::StrCat("has struct_size ", size, "; it must be at least ", smallest,
                                        ", set by the _INIT macro of its struct"));
  }
  return size;
}

}  // namespace

void ReadStruct(const void* theirs, size_t smallest, size_t size, void* ours,
                const char* argument) {
  if (theirs == nullptr) return;
  const size_t given = ReadSize(theirs, smallest, argument);
  const char* const bytes = static_cast<const char*>(theirs);
  std::memcpy(ours, bytes, std::min(given, size));
  if (std::any_of(bytes + std::min(given, size), bytes + given, [](char c) { return c != 0; })) {
    FailArgument(argument, absl::StrCat("has members behind its first ", size,
                                        " bytes, which this version (", leafpack_version(),
                                        ") does not know"));
  }
}

size_t SizeToFill(const void* theirs, size_t smallest, const char* argument) {
  return ReadSize(NeedPointer(theirs, argument), smallest, argument);
}

leafpack_stats StatsOf(const CollectiveStats& stats) {
  leafpack_stats result = LEAFPACK_STATS_INIT;
  result.prepare = stats.prepare;
  result.agree = stats.agree;
  result.pack = stats.pack;
  result.communicate = stats.communicate;
  result.unpack = stats.unpack;
  result.total = stats.total;
  result.leaves = stats.leaves;
  result.skipped = stats.skipped;
  result.bytes = stats.bytes;
  result.messages = stats.buckets;
  return result;
}

ReduceCall ReadReduceOptions(const leafpack_reduce_options* options) {
  const leafpack_reduce_options given = CopyStruct(options, "options");
  AllReduceOptions result;
  ReadCommon(given, &result);
  NeedZero(given.reserved, "options.reserved");
  result.op.kind = kOps[ReadChoice(given.op, LEAFPACK_PREMUL_SUM, "options.op")];
  if (result.op.kind == ReduceOpKind::kPremulSum) result.op.factor = given.factor;
  result.bucketing = ReadBucketing(given);
  result.leaves = ReadLeaves(given);
  return ReduceCall(std::move(result), given.stats);
}

MoveCall ReadCallOptions(const leafpack_call_options* options) {
  const leafpack_call_options given = CopyStruct(options, "options");
  CallOptions result;
  ReadCommon(given, &result);
  return MoveCall(std::move(result), given.stats);
}

TransferOptions ReadTransferOptions(const leafpack_transfer_options* options) {
  const leafpack_transfer_options given = CopyStruct(options, "options");
  TransferOptions result;
  result.tag = given.tag;
  result.timeout = ReadTimeout(given.timeout_ms);
  result.name = ReadName(given.name);
  if (given.max_bytes != 0) result.max_bytes = given.max_bytes;
  result.interrupt = ReadInterrupt(given.interrupt, given.interrupt_context);
  return result;
}

GroupCall ReadGroupOptions(const leafpack_group_options* options, GroupOptions defaults) {
  const leafpack_group_options given = CopyStruct(options, "options");
  if (given.refusal != nullptr) Fail(absl::InvalidArgumentError(given.refusal));
  if (given.backend != nullptr) defaults.backend = given.backend;
  if (given.timeout_ms != 0) defaults.timeout = absl::Milliseconds(given.timeout_ms);
  if (given.interface_name != nullptr) defaults.interface_name = given.interface_name;
  return {std::move(defaults), ReadInterrupt(given.interrupt, given.interrupt_context)};
}

absl::Duration ReadWaitTimeout(int64_t timeout_ms) {
  if (timeout_ms == LEAFPACK_NO_TIMEOUT) return absl::InfiniteDuration();
  if (timeout_ms < 0) {
    FailArgument("timeout_ms",
                 absl::StrCat("is ", timeout_ms, "; it must be at least 0 or LEAFPACK_NO_TIMEOUT"));
  }
  return absl::Milliseconds(timeout_ms);
}

}  // namespace leafpack::c
