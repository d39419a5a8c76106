// TreeExchange: the operation behind all collectives that move trees and reduce nothing. Who sends what
// to whom is the ExchangePart of each rank.
//
// If all ranks have equal layouts (a soft digest says so) data starts right after the agreement, or has
// come with it. Else the data phase begins with three small exchanges: how long each description is,
// the descriptions, and a verdict of each rank; a rank that cannot take what it is sent says so there, and
// then every rank ends the call with one error before a leaf has moved.
#ifndef LEAFPACK_DISTRIBUTED_TREE_TREE_EXCHANGE_H_
#define LEAFPACK_DISTRIBUTED_TREE_TREE_EXCHANGE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/numeric/int128.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "distributed/core/backend.h"
#include "distributed/core/engine.h"
#include "distributed/core/group.h"
#include "distributed/tree/call_arguments.h"
#include "distributed/tree/call_options.h"
#include "distributed/tree/operation.h"
#include "distributed/tree/tree_frame.h"
#include "distributed/tree/tree_plan.h"
#include "distributed/tree/trees.h"

namespace leafpack::internal {

// One rank's part in an exchange.
struct ExchangePart {
  // What must be equal on all ranks.
  enum class Match : uint8_t {
    kLayouts,     // nothing; equal layouts make it fast (trees may be written in place)
    kTrees,       // nothing; equal trees, with nodes and values that are no tensors, make it fast
    kAllLayouts,  // the layouts of all given trees, else the call is a mismatch
  };

  std::vector<CallArgument> arguments{};  // beside collective, name and backend
  Match match = Match::kTrees;
  FrameRouting routing = FrameRouting::kSameToAll;
  int root = -1;   // the only one who gives, or -1: all do
  std::vector<TreeArg> given{};  // what this rank sends: one tree for all, or one per rank
  std::vector<bool> sends_to{};    // by rank
  std::vector<bool> gets_from{};   // by rank; this rank: it takes a copy of its own
  // What the root sends is written here.
  std::optional<TreeArg> in_place{};
  // By rank: what comes from it is written here, leaf by leaf (views into `joined`), all of the layout of
  // given[0]. Empty: each tree is a new one.
  std::vector<FlatTree> into{};
  // Given as the one result where set: what `into` looks into.
  std::optional<ReceivedTree> joined{};
  // given[0] itself is the one result (the root of a broadcast).
  bool returns_given = false;
  // Whether `joined` was the caller's own and is written: checked and told to autograd.
  bool writes_joined = false;
  // Each tree is one leaf of uint8 and is given as TreeResult::bytes.
  bool bytes = false;
};

class TreeExchange : public Operation {
 public:
  // An error of `part` is refused.
  TreeExchange(Group group, CollectiveKind kind, std::string_view kind_name,
               absl::StatusOr<ExchangePart> part, CallOptions options);

  // Of the first tree of this rank.
  std::vector<std::string> skipped_paths() const override;

 protected:
  absl::Status Prepare(CallSpec& spec) override;
  absl::Status FinishFrame(absl::Span<const char> frame) override;
  std::unique_ptr<DataPhase> StartData(DataContext& context,
                                       const InterruptCheck& interrupt) override;

 private:
  class Phase;

  // Where the tree of one rank comes to lie.
  struct Destination {
    std::shared_ptr<const LayoutPlan> plan;
    FlatTree tree;
    std::shared_ptr<const TreeSpec> spec;
    bool written = false;  // it is the caller's
  };

  absl::Status CheckPart() const;
  void CountLeaves(const TreePlan& plan);
  // The soft digest: equal on all ranks exactly if all have equal trees.
  absl::uint128 SoftDigest() const;
  std::optional<std::string> MakeFrame() const;
  // The tree of this rank that goes to `rank`.
  size_t GivenTo(int rank) const {
    return part_->routing == FrameRouting::kByRank ? static_cast<size_t>(rank) : 0;
  }
  int FramesGivers() const { return part_->root >= 0 ? 1 : size(); }
  // The plan of all trees, where all are equal.
  const std::shared_ptr<const TreePlan>& common() const {
    return plans_.empty() ? in_place_plan_ : plans_.front();
  }

  // Fills destinations_[from]: of the common layout, or as the sender described its tree.
  absl::Status Receive(int from);
  absl::Status Receive(int from, std::string_view encoded, absl::uint128 layout_digest);
  absl::Status CopyOwn();
  absl::Status GiveResult();
  absl::Status GiveBytes();
  // Of the caller's leaves that are written.
  const FlatTree* WrittenTree() const;

  absl::StatusOr<ExchangePart> part_;
  const std::string_view kind_name_;
  std::vector<std::shared_ptr<const TreePlan>> plans_;  // of part_->given
  std::shared_ptr<const TreePlan> in_place_plan_;
  std::vector<std::optional<Destination>> destinations_;  // by rank
};

}  // namespace leafpack::internal

#endif  // LEAFPACK_DISTRIBUTED_TREE_TREE_EXCHANGE_H_
