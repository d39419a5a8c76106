#include "distributed/tree/tree_exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#include "distributed/core/error.h"
#include "distributed/core/byte_io.h"
#include "distributed/tree/call_plan.h"
#include "distributed/tree/exchange_pipeline.h"
#include "distributed/tree/leaf_rules.h"
#include "distributed/tree/sparse_leaves.h"
#include "distributed/tree/spread_schedule.h"
#include "tensordict/bucket/packer.h"

namespace leafpack::internal {
namespace {

constexpr size_t kHeaderBytes = 40;
constexpr size_t kVerdictBytes = 1024;
constexpr size_t kVerdictPathBytes = 300;
constexpr size_t kVerdictTextBytes = 700;

absl::uint128 ToUint128(const Digest128& digest) { return absl::MakeUint128(digest.hi, digest.lo); }

// A difference of layouts: FailedPrecondition with the first path in its details.
absl::Status Mismatch(const Layout& a, const Layout& b, std::string_view a_name,
                      std::string_view b_name) {
  ErrorDetails details;
  details.kind = ErrorKind::kLayoutMismatch;
  const std::vector<Layout::Entry> of_a = a.Describe();
  const std::vector<Layout::Entry> of_b = b.Describe();
  for (size_t i = 0; i < std::max(of_a.size(), of_b.size()); ++i) {
    if (i < of_a.size() && i < of_b.size() && of_a[i] == of_b[i]) continue;
    details.path = i < of_a.size() ? of_a[i].path : of_b[i].path;
    break;
  }
  return WithErrorDetails(
      absl::FailedPreconditionError(
          Layout::Difference(a, b, a_name, b_name).value_or("the layouts differ")),
      details);
}

}  // namespace

TreeExchange::TreeExchange(Group group, CollectiveKind kind, std::string_view kind_name,
                           absl::StatusOr<ExchangePart> part, CallOptions options)
    : Operation(std::move(group), kind, kind_name, std::move(options)),
      part_(std::move(part)),
      kind_name_(kind_name) {}

std::vector<std::string> TreeExchange::skipped_paths() const {
  std::vector<std::string> paths;
  if (!part_.ok() || common() == nullptr) return paths;
  const FlatTree& tree = part_->given.empty() ? part_->in_place->flat() : part_->given[0].flat();
  for (const NonTensorLeaf& skipped : tree.non_tensors) {
    paths.push_back((*tree.paths)[skipped.leaf].ToString());
  }
  return paths;
}

const FlatTree* TreeExchange::WrittenTree() const {
  if (part_->in_place.has_value()) return &part_->in_place->flat();
  return part_->writes_joined ? &part_->joined->flat : nullptr;
}

absl::uint128 TreeExchange::SoftDigest() const {
  const auto of = [&](const TreePlan& plan) {
    return part_->match == ExchangePart::Match::kTrees ? plan.spec_digest : plan.plan->digest;
  };
  const std::shared_ptr<const TreePlan>& first = common();
  bool one = first != nullptr;
  for (const std::shared_ptr<const TreePlan>& plan : plans_) one = one && of(*plan) == of(*first);
  if (in_place_plan_ != nullptr) one = one && of(*in_place_plan_) == of(*first);
  // Else it must not be equal to that of any other rank.
  return one ? of(*first) : absl::uint128(static_cast<uint64_t>(rank()) + 1);
}

absl::Status TreeExchange::CheckPart() const {
  const FlatTree* written = WrittenTree();
  if (written != nullptr) {
    if (absl::Status status = CheckAutograd(*written); !status.ok()) return status;
  }
  // The root of a scatter may write its own part in place.
  if (in_place_plan_ != nullptr && rank() == part_->root) {
    const TreePlan& own = *plans_[GivenTo(rank())];
    if (own.plan->digest != in_place_plan_->plan->digest) {
      const absl::Status status =
          Mismatch(own.layout(), in_place_plan_->layout(), "the tree for this rank",
                   "the tree to be written in place");
      ErrorDetails details;
      details.path = GetErrorDetails(status).path;
      return WithErrorDetails(absl::InvalidArgumentError(status.message()), details);
    }
  }
  return absl::OkStatus();
}

void TreeExchange::CountLeaves(const TreePlan& plan) {
  const auto skipped = static_cast<int64_t>(plan.layout().num_non_tensors());
  stats_.skipped += skipped;
  stats_.leaves += static_cast<int64_t>(plan.layout().size()) - skipped;
  stats_.bytes += plan.layout().total_bytes();
}

absl::Status TreeExchange::Prepare(CallSpec& spec) {
  if (!part_.ok()) return part_.status();
  const std::shared_ptr<PlanCache> cache = PlanCache::Of(engine());
  for (const TreeArg& tree : part_->given) {
    absl::StatusOr<std::shared_ptr<const TreePlan>> plan = cache->trees().Get(tree, engine());
    if (!plan.ok()) return plan.status();
    if (HasSparse((*plan)->layout())) {
      if (absl::Status status = CheckSparseIndices(tree.flat()); !status.ok()) return status;
    }
    CountLeaves(**plan);
    plans_.push_back(*std::move(plan));
  }
  if (part_->in_place.has_value()) {
    absl::StatusOr<std::shared_ptr<const TreePlan>> plan =
        cache->trees().Get(*part_->in_place, engine());
    if (!plan.ok()) return plan.status();
    if (part_->given.empty()) CountLeaves(**plan);
    in_place_plan_ = *std::move(plan);
  }
  if (absl::Status status = CheckPart(); !status.ok()) return status;
  if (part_->match == ExchangePart::Match::kAllLayouts) {
    if (absl::Status status = CheckJoinable(common()->layout()); !status.ok()) return status;
  }
  destinations_.resize(static_cast<size_t>(size()));

  std::vector<CallArgument> arguments = {{"collective", std::string(kind_name_)},
                                         {"name", options().name},
                                         {"backend", std::string(engine().backend().name())}};
  arguments.insert(arguments.end(), part_->arguments.begin(), part_->arguments.end());
  arguments.push_back({"on_failure",
                       options().on_failure == OnFailure::kRestore ? "restore" : "report"});
  const bool all_layouts = part_->match == ExchangePart::Match::kAllLayouts;
  spec.digest = DigestOfArguments(
      arguments, all_layouts ? common()->layout().digest().ToString() : std::string());
  spec.soft_digest = all_layouts ? absl::uint128(0) : SoftDigest();
  spec.describe = [arguments, plan = all_layouts ? common() : nullptr] {
    std::vector<DescriptionEntry> entries = DescribeArguments(arguments);
    if (plan != nullptr) AppendLayout(plan->layout(), entries);
    return entries;
  };
  spec.restore = options().on_failure == OnFailure::kRestore;
  spec.is_open = true;
  spec.join = MakeFrameJoiner(part_->routing, part_->root);
  if (size() == 1) {
    spec.is_frame = true;  // there is nobody to send to
    spec.join = [](absl::Span<const absl::Span<const char>>) { return std::optional<std::string>(""); };
  } else if (std::optional<std::string> frame = MakeFrame(); frame.has_value()) {
    spec.is_frame = true;
    spec.payload = *std::move(frame);
  }
  return absl::OkStatus();
}

std::optional<std::string> TreeExchange::MakeFrame() const {
  const int64_t limit = MaxJoinedBytes(size()) / FramesGivers();
  TreeFrame frame;
  frame.soft_digest = part_->match == ExchangePart::Match::kAllLayouts ? 0 : SoftDigest();
  if (in_place_plan_ != nullptr) frame.in_place = in_place_plan_->plan->digest;
  int64_t bytes = 64;
  int64_t spec_bytes = 0;
  for (const std::shared_ptr<const TreePlan>& plan : plans_) {
    if (HasSparse(plan->layout())) return std::nullopt;  // it has values beside those counted here
    bytes += plan->layout().total_bytes() + 24;
    spec_bytes += static_cast<int64_t>(plan->encoded.size());
  }
  if (bytes > limit) return std::nullopt;
  frame.has_specs = bytes + spec_bytes <= limit;
  std::string values;
  for (size_t i = 0; i < plans_.size(); ++i) {
    const Layout& layout = plans_[i]->layout();
    if (!AppendValues(layout, part_->given[i].flat(), values).ok()) return std::nullopt;
    frame.given.push_back({.layout_digest = plans_[i]->plan->digest,
                           .spec = frame.has_specs ? plans_[i]->encoded : std::string_view()});
  }
  // The views are set once the run has its final place.
  size_t at = 0;
  for (size_t i = 0; i < plans_.size(); ++i) {
    const auto size = static_cast<size_t>(plans_[i]->layout().total_bytes());
    frame.given[i].values = std::string_view(values).substr(at, size);
    at += size;
  }
  return frame.Encode(values);
}

absl::Status TreeExchange::Receive(int from) {
  Destination& to = destinations_[static_cast<size_t>(from)].emplace();
  const TreePlan& plan = *common();
  to.plan = plan.plan;
  to.spec = plan.spec;
  if (!part_->into.empty()) {
    to.tree = part_->into[static_cast<size_t>(from)];
    to.written = part_->writes_joined;
    return absl::OkStatus();
  }
  if (part_->in_place.has_value()) {
    to.tree = part_->in_place->flat();
    to.plan = in_place_plan_->plan;
    to.spec = in_place_plan_->spec;
    to.written = true;
    return absl::OkStatus();
  }
  if (from == rank()) {
    to.plan = plans_[GivenTo(from)]->plan;
    to.spec = plans_[GivenTo(from)]->spec;
  }
  absl::StatusOr<FlatTree> fresh = AllocateLeaves(*to.spec);
  if (!fresh.ok()) return fresh.status();
  to.tree = *std::move(fresh);
  return absl::OkStatus();
}

absl::Status TreeExchange::Receive(int from, std::string_view encoded,
                                   absl::uint128 layout_digest) {
  const std::string sender = absl::StrCat(
      "rank ", engine().global_rank(GroupRank(from)).value());
  absl::StatusOr<TreeSpec> spec = DecodeTreeSpec(encoded);
  if (!spec.ok()) return AnnotateStatus(spec.status(), absl::StrCat("the tree of ", sender));
  if (part_->in_place.has_value() && in_place_plan_->plan->digest == layout_digest) {
    return Receive(from);
  }
  absl::StatusOr<FlatTree> fresh = AllocateLeaves(*spec);
  if (!fresh.ok()) return AnnotateStatus(fresh.status(), absl::StrCat("the tree of ", sender));
  absl::StatusOr<Layout> layout = Layout::Of(*fresh);
  if (!layout.ok()) return layout.status();
  if (part_->in_place.has_value()) {
    return Mismatch(*layout, in_place_plan_->layout(), sender,
                    absl::StrCat("rank ", group().global_rank().value()));
  }
  if (ToUint128(layout->digest()) != layout_digest) {
    return absl::InternalError(absl::StrCat("the tree of ", sender, " does not fit its description"));
  }
  absl::StatusOr<std::shared_ptr<const LayoutPlan>> plan =
      MakeLayoutPlan(*std::move(layout), engine());
  if (!plan.ok()) return AnnotateStatus(plan.status(), absl::StrCat("the tree of ", sender));
  Destination& to = destinations_[static_cast<size_t>(from)].emplace();
  to.plan = *std::move(plan);
  to.tree = *std::move(fresh);
  to.spec = std::make_shared<const TreeSpec>(*std::move(spec));
  return absl::OkStatus();
}

absl::Status TreeExchange::CopyOwn() {
  const auto self = static_cast<size_t>(rank());
  if (!part_->gets_from[self]) return absl::OkStatus();
  if (absl::Status status = Receive(rank()); !status.ok()) return status;
  const size_t index = GivenTo(rank());
  return CopyValues(plans_[index]->layout(), part_->given[index].flat(),
                    destinations_[self]->tree);
}

absl::Status TreeExchange::GiveResult() {
  if (const FlatTree* written = WrittenTree(); written != nullptr) BumpVersions(*written);
  if (part_->joined.has_value()) {
    result_.trees.push_back(*part_->joined);
    return absl::OkStatus();
  }
  if (part_->returns_given) {
    result_.trees.push_back({.flat = part_->given[0].flat(),
                             .spec = plans_[0]->spec,
                             .dict = part_->given[0].dict()});
    return part_->bytes ? GiveBytes() : absl::OkStatus();
  }
  for (std::optional<Destination>& each : destinations_) {
    if (!each.has_value()) continue;
    ReceivedTree tree{.flat = std::move(each->tree), .spec = std::move(each->spec)};
    if (each->written) tree.dict = part_->in_place->dict();
    result_.trees.push_back(std::move(tree));
  }
  return part_->bytes ? GiveBytes() : absl::OkStatus();
}

absl::Status TreeExchange::GiveBytes() {
  for (const ReceivedTree& tree : std::exchange(result_.trees, {})) {
    const bool fits = tree.flat.size() == 1 && (*tree.flat.paths)[0].empty() &&
                      tree.flat.leaves[0].defined() &&
                      tree.flat.leaves[0].scalar_type() == at::kByte;
    if (!fits) return absl::FailedPreconditionError("another rank gave a tree in place of bytes");
    const at::Tensor& leaf = tree.flat.leaves[0];
    result_.bytes.emplace_back(static_cast<const char*>(leaf.const_data_ptr()), leaf.nbytes());
  }
  return absl::OkStatus();
}

absl::Status TreeExchange::FinishFrame(absl::Span<const char> frame) {
  if (size() > 1) {
    absl::StatusOr<JoinedFrames> joined =
        JoinedFrames::Parse({frame.data(), frame.size()}, size());
    if (!joined.ok()) return joined.status();
    for (int from = 0; from < size(); ++from) {
      const auto index = static_cast<size_t>(from);
      if (!part_->gets_from[index] || from == rank()) continue;
      const auto which = GivenTo(rank());  // of what `from` gave
      std::string_view values;
      absl::Status status;
      if (joined->equal) {
        status = Receive(from);
        if (!status.ok()) return status;
        const auto bytes = static_cast<size_t>(destinations_[index]->plan->layout.total_bytes());
        const std::string_view all = joined->values[index];
        values = all.substr(std::min(all.size(), which * bytes), bytes);
      } else {
        const std::vector<TreeFrame::Given>& given = joined->frames[index].given;
        if (which >= given.size()) return absl::InternalError("a rank gave too few trees");
        status = Receive(from, given[which].spec, given[which].layout_digest);
        if (!status.ok()) return status;
        values = given[which].values;
      }
      const Destination& to = *destinations_[index];
      status = WriteValues(to.plan->layout, values, to.tree);
      if (!status.ok()) return status;
    }
  }
  if (absl::Status status = CopyOwn(); !status.ok()) return status;
  return GiveResult();
}

// The messages of one exchange.
class TreeExchange::Phase : public DataPhase {
 public:
  Phase(TreeExchange& exchange, DataContext& context, ExchangePipeline::Options options)
      : exchange_(exchange),
        packer_(PlanCache::Of(exchange.engine())->pool()),
        context_(context),
        restore_(options.stage),
        waiter_(exchange.call(), options.interrupt, exchange.stats_.communicate),
        pipeline_(packer_, exchange.call(), context, std::move(options), exchange.stats_) {}

  absl::Status Run() override;
  absl::Status Commit() override;
  void Close(bool ran, bool ok) override;
  std::vector<std::string> PathsDone() const override;
  bool TreeUnchanged() const override {
    // With `stage` only Commit writes, and it may fail half-way.
    return exchange_.WrittenTree() == nullptr ||
           (!pipeline_.wrote() && sparse_.leaves_done().empty());
  }

 private:
  struct Header {
    uint64_t spec_bytes = 0;
    absl::uint128 layout_digest = 0;
    uint64_t steps = 0;  // the most that its sender has for any rank
    bool sparse = false;  // whether its sender has sparse leaves for any rank
  };
  enum class Verdict : uint8_t { kFits, kMismatch, kRefused };

  absl::Status MoveSparse();
  // Finds out what the trees are, and whether all ranks can take what they are sent.
  absl::Status Negotiate();
  absl::Status ExchangeHeaders();
  absl::Status ExchangeSpecs();
  absl::Status ExchangeVerdicts(const absl::Status& own);
  // Runs `receive` for every rank that sends something.
  template <typename F>
  absl::Status ForEachSender(F receive) {
    for (int from = 0; from < exchange_.size(); ++from) {
      if (from == exchange_.rank() || !exchange_.part_->gets_from[static_cast<size_t>(from)]) {
        continue;
      }
      if (absl::Status status = receive(from); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  // A buffer of `bytes` for every other rank.
  std::vector<ExchangePipeline::Bytes> ForOthers(std::vector<std::string>& buffers) const;

  TreeExchange& exchange_;
  Packer packer_;
  DataContext& context_;
  const bool restore_;
  DataWaiter waiter_;
  SparseMove sparse_;
  ExchangePipeline pipeline_;
  bool copied_own_ = false;
  std::vector<TreeTransfer> sends_;
  std::vector<TreeTransfer> receives_;
  size_t steps_ = 0;
  bool any_sparse_ = false;  // on any rank
  std::vector<Header> headers_;        // by rank, of what it sends to this one
  std::vector<std::string> specs_;     // by rank
  absl::Status disagreement_;          // the same on all ranks: no leaf has moved
};

std::unique_ptr<DataPhase> TreeExchange::StartData(DataContext& context,
                                                   const InterruptCheck& interrupt) {
  ExchangePipeline::Options pipeline;
  pipeline.stage = options().on_failure == OnFailure::kRestore && WrittenTree() != nullptr;
  pipeline.max_in_flight_bytes = options().max_in_flight_bytes;
  pipeline.interrupt = interrupt;
  return std::make_unique<Phase>(*this, context, std::move(pipeline));
}

absl::Status TreeExchange::Phase::Run() {
  absl::Status status;
  if (exchange_.call().soft_digests_agree()) {
    status = ForEachSender([&](int from) { return exchange_.Receive(from); });
    steps_ = exchange_.common()->plan->steps.size();
    any_sparse_ = HasSparse(exchange_.common()->layout());
  } else {
    status = Negotiate();
  }
  if (!status.ok() || !disagreement_.ok()) return status;
  for (int to = 0; to < exchange_.size(); ++to) {
    if (to == exchange_.rank() || !exchange_.part_->sends_to[static_cast<size_t>(to)]) continue;
    const size_t index = exchange_.GivenTo(to);
    sends_.push_back({to, exchange_.plans_[index]->plan.get(),
                      &exchange_.part_->given[index].flat()});
  }
  status = ForEachSender([&](int from) {
    const Destination& destination = *exchange_.destinations_[static_cast<size_t>(from)];
    receives_.push_back({from, destination.plan.get(), &destination.tree});
    return absl::OkStatus();
  });
  if (any_sparse_) {
    if (status = MoveSparse(); !status.ok()) return status;
  }
  // All ranks know the tree of a broadcast by now, so all of them choose alike.
  const ExchangePart& part = *exchange_.part_;
  if (part.root >= 0 && part.routing == FrameRouting::kSameToAll && exchange_.size() > 2) {
    const TreeTransfer& one = sends_.empty() ? receives_.front() : sends_.front();
    if (one.plan->layout.total_bytes() >= kMinSpreadBytes) {
      return pipeline_.Spread(*one.plan, *one.tree, exchange_.rank(), exchange_.size(), part.root);
    }
  }
  return pipeline_.Run(sends_, receives_, steps_);
}

absl::Status TreeExchange::Phase::MoveSparse() {
  const auto all = [](const std::vector<TreeTransfer>& transfers) {
    std::vector<SparseMove::Tree> trees;
    for (const TreeTransfer& each : transfers) {
      trees.push_back({each.peer, &each.plan->layout, each.tree});
    }
    return trees;
  };
  absl::Status status = sparse_.Run(context_, waiter_, all(sends_), all(receives_));
  return status.ok() && !restore_ ? sparse_.Write() : status;
}

std::vector<ExchangePipeline::Bytes> TreeExchange::Phase::ForOthers(
    std::vector<std::string>& buffers) const {
  std::vector<ExchangePipeline::Bytes> result;
  for (int peer = 0; peer < exchange_.size(); ++peer) {
    if (peer == exchange_.rank()) continue;
    std::string& buffer = buffers[static_cast<size_t>(peer)];
    if (!buffer.empty()) result.push_back({peer, buffer.data(), buffer.size()});
  }
  return result;
}

absl::Status TreeExchange::Phase::ExchangeHeaders() {
  const auto ranks = static_cast<size_t>(exchange_.size());
  uint64_t steps = 0;
  for (size_t to = 0; to < ranks; ++to) {
    if (!exchange_.part_->sends_to[to]) continue;
    const TreePlan& plan = *exchange_.plans_[exchange_.GivenTo(static_cast<int>(to))];
    steps = std::max(steps, uint64_t{plan.plan->steps.size()});
    any_sparse_ = any_sparse_ || HasSparse(plan.layout());
  }
  const bool own_sparse = any_sparse_;
  struct Buffers {
    std::vector<std::string> out, in;
  };
  auto buffers = std::make_shared<Buffers>();
  buffers->out.resize(ranks);
  buffers->in.assign(ranks, std::string(kHeaderBytes, '\0'));
  for (size_t to = 0; to < ranks; ++to) {
    ByteWriter out;
    const bool sends = exchange_.part_->sends_to[to];
    const TreePlan* plan =
        sends ? exchange_.plans_[exchange_.GivenTo(static_cast<int>(to))].get() : nullptr;
    out.U64(sends ? plan->encoded.size() : 0);
    out.U64(sends ? absl::Uint128Low64(plan->plan->digest) : 0);
    out.U64(sends ? absl::Uint128High64(plan->plan->digest) : 0);
    out.U64(steps);
    out.U64(own_sparse ? 1 : 0);
    buffers->out[to] = std::move(out).Take();
  }
  absl::Status status =
      pipeline_.ExchangeBytes(ForOthers(buffers->out), ForOthers(buffers->in), buffers);
  if (!status.ok()) return status;
  headers_.resize(ranks);
  steps_ = steps;
  for (size_t from = 0; from < ranks; ++from) {
    if (static_cast<int>(from) == exchange_.rank()) continue;
    ByteReader in(buffers->in[from]);
    Header& header = headers_[from];
    header.spec_bytes = in.U64();
    const uint64_t low = in.U64();
    const uint64_t high = in.U64();
    header.layout_digest = absl::MakeUint128(high, low);
    header.steps = in.U64();
    header.sparse = in.U64() != 0;
    if (header.spec_bytes > TreeSpecLimits().max_bytes ||
        header.steps > uint64_t{1} << 32) {
      return absl::InternalError("a rank announced more than there can be");
    }
    steps_ = std::max(steps_, static_cast<size_t>(header.steps));
    any_sparse_ = any_sparse_ || header.sparse;
  }
  return absl::OkStatus();
}

absl::Status TreeExchange::Phase::ExchangeSpecs() {
  const auto ranks = static_cast<size_t>(exchange_.size());
  struct Buffers {
    std::vector<std::string> out, in;
  };
  auto buffers = std::make_shared<Buffers>();
  buffers->out.resize(ranks);
  buffers->in.resize(ranks);
  for (size_t peer = 0; peer < ranks; ++peer) {
    if (static_cast<int>(peer) == exchange_.rank()) continue;
    if (exchange_.part_->sends_to[peer]) {
      buffers->out[peer] = exchange_.plans_[exchange_.GivenTo(static_cast<int>(peer))]->encoded;
    }
    buffers->in[peer].resize(headers_[peer].spec_bytes);
  }
  absl::Status status =
      pipeline_.ExchangeBytes(ForOthers(buffers->out), ForOthers(buffers->in), buffers);
  if (status.ok()) specs_ = std::move(buffers->in);
  return status;
}

absl::Status TreeExchange::Phase::Negotiate() {
  if (absl::Status status = ExchangeHeaders(); !status.ok()) return status;
  if (absl::Status status = ExchangeSpecs(); !status.ok()) return status;
  const absl::Status own = ForEachSender([&](int from) {
    const auto index = static_cast<size_t>(from);
    return exchange_.Receive(from, specs_[index], headers_[index].layout_digest);
  });
  return ExchangeVerdicts(own);
}

absl::Status TreeExchange::Phase::ExchangeVerdicts(const absl::Status& own) {
  const auto ranks = static_cast<size_t>(exchange_.size());
  const ErrorDetails own_details = GetErrorDetails(own);
  const Verdict own_verdict = own.ok()                                             ? Verdict::kFits
                              : own_details.kind == ErrorKind::kLayoutMismatch ? Verdict::kMismatch
                                                                               : Verdict::kRefused;
  ByteWriter out;
  out.U8(static_cast<uint8_t>(own_verdict));
  out.String(std::string_view(own_details.path).substr(0, kVerdictPathBytes));
  out.String(own.message().substr(0, kVerdictTextBytes));
  struct Buffers {
    std::vector<std::string> out, in;
  };
  auto buffers = std::make_shared<Buffers>();
  std::string mine = std::move(out).Take();
  mine.resize(kVerdictBytes);
  buffers->out.assign(ranks, mine);
  buffers->in.assign(ranks, std::string(kVerdictBytes, '\0'));
  absl::Status status =
      pipeline_.ExchangeBytes(ForOthers(buffers->out), ForOthers(buffers->in), buffers);
  if (!status.ok()) return status;
  buffers->in[static_cast<size_t>(exchange_.rank())] = mine;

  ErrorDetails details;
  std::string text;
  bool mismatch = true;
  for (size_t rank = 0; rank < ranks; ++rank) {
    ByteReader in(buffers->in[rank]);
    const auto verdict = static_cast<Verdict>(in.U8());
    const std::string_view path = in.String();
    const std::string_view reason = in.String();
    if (verdict == Verdict::kFits) continue;
    const GlobalRank global = exchange_.engine().global_rank(GroupRank(static_cast<int>(rank)));
    if (details.ranks.empty()) {
      details.path = std::string(path);
      mismatch = verdict == Verdict::kMismatch;
      text = mismatch ? std::string(reason)
                      : absl::StrCat("rank ", global.value(), " refused it: ", reason);
    }
    details.ranks.push_back(global);
  }
  if (details.ranks.empty()) return absl::OkStatus();
  std::sort(details.ranks.begin(), details.ranks.end());
  const std::string prefix = absl::StrCat(exchange_.where(), ": call ", exchange_.call().number());
  if (own_verdict == Verdict::kRefused) {
    disagreement_ = AnnotateStatus(own, prefix);
    return absl::OkStatus();
  }
  details.kind = mismatch ? ErrorKind::kLayoutMismatch : ErrorKind::kPeerRefused;
  disagreement_ = WithErrorDetails(
      absl::FailedPreconditionError(absl::StrCat(prefix, ": ", text)), details);
  return absl::OkStatus();
}

absl::Status TreeExchange::Phase::Commit() {
  if (!disagreement_.ok()) return disagreement_;
  if (restore_) {
    if (absl::Status status = sparse_.Write(); !status.ok()) return status;
  }
  if (absl::Status status = pipeline_.Commit(); !status.ok()) return status;
  if (absl::Status status = exchange_.CopyOwn(); !status.ok()) {
    return AnnotateStatus(status, exchange_.where());
  }
  copied_own_ = true;
  return exchange_.GiveResult();
}

void TreeExchange::Phase::Close(bool ran, bool ok) {
  if (!ran) {
    sparse_.Settle();
    pipeline_.Settle();
  }
  // GiveResult did it for calls that went well.
  if (!ok && !TreeUnchanged()) BumpVersions(*exchange_.WrittenTree());
}

std::vector<std::string> TreeExchange::Phase::PathsDone() const {
  std::vector<std::string> paths;
  const FlatTree* written = exchange_.WrittenTree();
  // The own part of a joined tree is written last, in Commit.
  if (written == nullptr || (exchange_.part_->writes_joined && !copied_own_)) return paths;
  // A leaf is done once all that is written to it has come.
  std::vector<size_t> parts(written->size(), 0);
  for (const auto& [tree, leaf] : sparse_.leaves_done()) ++parts[leaf];
  for (const auto& [tree, leaf] : pipeline_.leaves_done()) ++parts[leaf];
  const Layout& layout = exchange_.common()->layout();
  for (size_t i = 0; i < parts.size(); ++i) {
    const int64_t alias = layout.leaf(i).alias_of;
    if (parts[alias < 0 ? i : static_cast<size_t>(alias)] == receives_.size()) {
      paths.push_back((*written->paths)[i].ToString());
    }
  }
  return receives_.empty() ? std::vector<std::string>() : paths;
}

}  // namespace leafpack::internal
