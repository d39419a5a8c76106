#include "distributed/p2p/transfer.h"

#include <cstddef>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/numeric/int128.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "distributed/core/error.h"
#include "distributed/mailbox/mailbox.h"
#include "distributed/p2p/tree_memory.h"
#include "distributed/tree/leaf_rules.h"
#include "distributed/tree/sparse_leaves.h"
#include "distributed/tree/tree_spec.h"
#include "tensordict/flat_tree.h"
#include "tensordict/layout.h"

namespace leafpack {
namespace internal {

using mailbox::Mailbox;
using mailbox::PayloadKind;
using mailbox::Segment;
using mailbox::TransferPtr;
using mailbox::TransferSpec;
using p2p::TreeMemory;

// What a receive into nothing has made. Written by the transfer's functions, read after its end.
struct Incoming {
  std::optional<ReceivedTree> tree;
  std::optional<std::string> bytes;
};

class TransferHandle {
 public:
  TransferHandle(std::shared_ptr<Mailbox> mailbox, TransferPtr transfer, bool is_send,
                 std::shared_ptr<Incoming> incoming)
      : mailbox_(std::move(mailbox)),
        transfer_(std::move(transfer)),
        is_send_(is_send),
        incoming_(std::move(incoming)) {}

  ~TransferHandle() {
    if (!mailbox_->forked()) return;
    // Its locks may be held by threads that a forked child does not have: left alone there.
    new std::shared_ptr<Mailbox>(std::move(mailbox_));
    new TransferPtr(std::move(transfer_));
    new std::shared_ptr<Incoming>(std::move(incoming_));
  }

  absl::Status Wait(absl::Duration timeout, const InterruptCheck& interrupt) {
    const std::optional<absl::Status> result =
        mailbox_->WaitUntil(*transfer_, absl::Now() + timeout, interrupt);
    if (result.has_value()) return *result;
    return absl::DeadlineExceededError(
        absl::StrCat("the transfer is not over after a wait of ", absl::FormatDuration(timeout),
                     "; it goes on, and its own deadline still holds"));
  }
  bool IsDone() { return mailbox_->IsDone(*transfer_); }
  void Cancel() { mailbox_->Cancel(transfer_); }

  // OK once the transfer has ended well.
  absl::Status Ended() {
    const std::optional<absl::Status> result =
        mailbox_->WaitUntil(*transfer_, absl::InfinitePast(), nullptr);
    return result.has_value() ? *result : absl::FailedPreconditionError("the transfer is not over");
  }
  GroupRank source() const { return GroupRank(mailbox_->source(*transfer_)); }
  bool is_send() const { return is_send_; }
  const std::shared_ptr<Incoming>& incoming() const { return incoming_; }

 private:
  std::shared_ptr<Mailbox> mailbox_;
  TransferPtr transfer_;
  const bool is_send_;
  std::shared_ptr<Incoming> incoming_;
};

struct TransferAccess {
  static TransferWork Make(std::shared_ptr<TransferHandle> handle) {
    return TransferWork(std::move(handle));
  }
};

namespace {

// Layouts of trees that were sent or received lately: finding one is much cheaper than making it.
class LayoutCache {
 public:
  static std::shared_ptr<LayoutCache> Of(Mailbox& mailbox) {
    return std::static_pointer_cast<LayoutCache>(
        mailbox.Attachment([] { return std::make_shared<LayoutCache>(); }));
  }

  absl::StatusOr<Layout> Get(const FlatTree& tree) {
    {
      absl::MutexLock lock(&mutex_);
      for (size_t i = 0; i < layouts_.size(); ++i) {
        if (!layouts_[i].Matches(tree)) continue;
        std::rotate(layouts_.begin(), layouts_.begin() + static_cast<std::ptrdiff_t>(i),
                    layouts_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        return layouts_[0];
      }
    }
    absl::StatusOr<Layout> layout = Layout::Of(tree);
    if (!layout.ok()) return layout;
    absl::MutexLock lock(&mutex_);
    if (layouts_.size() == kMost) layouts_.pop_back();
    layouts_.insert(layouts_.begin(), *layout);
    return layout;
  }

 private:
  static constexpr size_t kMost = 16;
  absl::Mutex mutex_;
  std::vector<Layout> layouts_ ABSL_GUARDED_BY(mutex_);
};

// A transfer that is about to be posted.
struct Prepared {
  TransferSpec spec;
  std::shared_ptr<Incoming> incoming;
};

// The memory of a tree in flight, and what it hangs on.
struct TreeInFlight {
  FlatTree tree;
  Layout layout;
  TreeMemory memory;
};

absl::uint128 ToNumber(const Digest128& digest) { return absl::MakeUint128(digest.hi, digest.lo); }

// "rank 3" for each group rank: functions of a transfer must not hold the group.
std::vector<std::string> NamesOfRanks(const Group& group) {
  std::vector<std::string> names;
  for (int i = 0; i < group.size(); ++i) {
    names.push_back(absl::StrCat("rank ", group.engine().global_rank(GroupRank(i)).value()));
  }
  return names;
}

absl::Status SayWhere(const absl::Status& status, std::string_view verb, const Group& group) {
  return AnnotateStatus(status, absl::StrCat(verb, " on rank ", group.global_rank().value()));
}

// What all transfers have in common.
absl::StatusOr<Prepared> Prepare(bool is_send, PayloadKind kind, std::optional<PeerRank> peer,
                                 const Group& group, const TransferOptions& options, bool async) {
  Prepared prepared;
  TransferSpec& spec = prepared.spec;
  spec.is_send = is_send;
  spec.async = async;
  spec.name = is_send ? "send" : "recv";
  if (!options.name.empty()) {
    absl::StrAppend(&spec.name, " '", absl::Utf8SafeCEscape(options.name), "'");
  }
  spec.offer.kind = kind;
  spec.offer.tag = options.tag;
  spec.offer.label = options.name;
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout must be > 0, got ", absl::FormatDuration(options.timeout)));
  }
  if (options.name.size() > mailbox::kMaxLabelBytes) {
    return absl::InvalidArgumentError(absl::StrCat("name has ", options.name.size(),
                                                   " bytes; at most ", mailbox::kMaxLabelBytes,
                                                   " are allowed"));
  }
  if (options.max_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_bytes must not be negative, got ", options.max_bytes));
  }
  spec.timeout =
      options.timeout == absl::InfiniteDuration() ? group.options().timeout : options.timeout;
  if (peer.has_value()) {
    absl::StatusOr<GroupRank> rank = peer->In(group);
    if (!rank.ok()) return rank.status();
    if (*rank == group.rank()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", group.global_rank().value(), " cannot ", is_send ? "send to" : "receive from",
          " itself"));
    }
    spec.peer = rank->value();
  } else if (group.size() == 1) {
    return absl::InvalidArgumentError("there is no other rank in the group");
  }
  return prepared;
}

// Flattens, checks and lays out a tree.
absl::StatusOr<std::shared_ptr<TreeInFlight>> TakeTree(FlatTree tree, Mailbox& mailbox,
                                                       bool is_send) {
  absl::StatusOr<Layout> layout = LayoutCache::Of(mailbox)->Get(tree);
  if (!layout.ok()) return layout.status();
  if (absl::Status s = p2p::CheckDevices(*layout); !s.ok()) return s;
  if (!is_send) {
    if (absl::Status s = CheckAutograd(tree); !s.ok()) return s;
  }
  auto flight = std::make_shared<TreeInFlight>();
  flight->tree = std::move(tree);
  flight->layout = *std::move(layout);
  return flight;
}

absl::StatusOr<Prepared> PrepareSend(const TreeArg& tree, PeerRank to, const Group& group,
                                     const TransferOptions& options, bool async,
                                     Mailbox& mailbox) {
  absl::StatusOr<Prepared> prepared =
      Prepare(true, PayloadKind::kTree, to, group, options, async);
  if (!prepared.ok()) return prepared;
  absl::StatusOr<std::shared_ptr<TreeInFlight>> flight = TakeTree(tree.flat(), mailbox, true);
  if (!flight.ok()) return flight.status();
  absl::StatusOr<TreeMemory> memory =
      TreeMemory::Of((*flight)->tree, (*flight)->layout, /*fill=*/true);
  if (!memory.ok()) return memory.status();
  (*flight)->memory = *std::move(memory);
  TransferSpec& spec = prepared->spec;
  spec.leaves = static_cast<int64_t>((*flight)->layout.size());
  spec.offer.digest = ToNumber((*flight)->layout.digest());
  spec.offer.bytes = (*flight)->memory.bytes();
  spec.has_memory = true;
  spec.segments = (*flight)->memory.segments();
  const auto describe = [flight = *flight, nodes = tree.dict(),
                         given = tree.spec()]() -> absl::StatusOr<std::string> {
    if (given != nullptr) {
      if (given->paths->digest() != flight->tree.paths->digest()) {
        return absl::InvalidArgumentError("the description is of other leaves than the tree has");
      }
      return EncodeTreeSpec(*given);
    }
    absl::StatusOr<TreeSpec> described = nodes.has_value()
                                             ? DescribeTree(*nodes)
                                             : DescribeTree(flight->tree, flight->layout);
    if (!described.ok()) return described.status();
    return EncodeTreeSpec(*described);
  };
  if (async && tree.spec() == nullptr) {
    // The caller may change the tree's structure once this returns. What cannot be described can still
    // be sent to a receiver that has such a tree.
    spec.describe = [described = describe()] { return described; };
  } else {
    spec.describe = describe;
  }
  spec.keep_alive = *flight;
  return prepared;
}

// Why an offer is not what a receive wants, before its leaves are looked at.
absl::Status CheckKind(const mailbox::Offer& offer, const mailbox::Offer& wanted, std::string_view sender,
                       std::string_view receiver) {
  const auto what = [](PayloadKind kind) {
    return kind == PayloadKind::kTree ? "a tree" : "bytes";
  };
  std::string text;
  if (offer.kind != wanted.kind) {
    text = absl::StrCat(sender, " sends ", what(offer.kind), ", ", receiver, " receives ",
                        what(wanted.kind));
  } else if (offer.label != wanted.label) {
    text = absl::StrCat(sender, " sends '", absl::Utf8SafeCEscape(offer.label), "', ", receiver,
                        " receives '", absl::Utf8SafeCEscape(wanted.label), "'");
  } else {
    return absl::OkStatus();
  }
  return WithErrorDetails(absl::FailedPreconditionError(text),
                          {.kind = ErrorKind::kLayoutMismatch});
}

absl::StatusOr<Prepared> PrepareRecv(FlatTree tree, std::optional<PeerRank> from,
                                     const Group& group, const TransferOptions& options, bool async,
                                     Mailbox& mailbox) {
  absl::StatusOr<Prepared> prepared =
      Prepare(false, PayloadKind::kTree, from, group, options, async);
  if (!prepared.ok()) return prepared;
  absl::StatusOr<std::shared_ptr<TreeInFlight>> taken = TakeTree(std::move(tree), mailbox, false);
  if (!taken.ok()) return taken.status();
  const std::shared_ptr<TreeInFlight> flight = *taken;
  TransferSpec& spec = prepared->spec;
  spec.leaves = static_cast<int64_t>(flight->layout.size());
  spec.offer.digest = ToNumber(flight->layout.digest());
  // How many elements sparse leaves have is known only from the description.
  const bool sparse = internal::HasSparse(flight->layout);
  if (!sparse) {
    absl::StatusOr<TreeMemory> memory =
        TreeMemory::Of(flight->tree, flight->layout, /*fill=*/false);
    if (!memory.ok()) return memory.status();
    flight->memory = *std::move(memory);
    spec.offer.bytes = flight->memory.bytes();
    spec.has_memory = true;
    spec.segments = flight->memory.segments();
  }
  auto fresh = std::make_shared<FlatTree>();  // the tree with new sparse leaves
  spec.judge = [flight, fresh, sparse, wanted = spec.offer, names = NamesOfRanks(group),
                own = static_cast<size_t>(group.rank().value())](
                   int source, const mailbox::Offer& offer,
                   std::string_view description) -> absl::StatusOr<std::vector<Segment>> {
    const std::string& sender = names[static_cast<size_t>(source)];
    const std::string& receiver = names[own];
    if (absl::Status s = CheckKind(offer, wanted, sender, receiver); !s.ok()) return s;
    absl::StatusOr<TreeSpec> sent = DecodeTreeSpec(description, {.max_leaf_bytes = offer.bytes});
    if (!sent.ok()) return sent.status();
    absl::StatusOr<TreeSpec> described = DescribeTree(flight->tree, flight->layout);
    if (!described.ok()) return described.status();
    if (absl::Status s = p2p::CompareSpecs(*sent, *described, sender, receiver); !s.ok()) return s;
    if (offer.digest != wanted.digest || !sparse) {
      return WithErrorDetails(
          absl::FailedPreconditionError(absl::StrCat(
              sender, " and ", receiver, " have trees of different layouts, though no leaf differs")),
          {.kind = ErrorKind::kLayoutMismatch});
    }
    absl::StatusOr<FlatTree> allocated = AllocateLeaves(*sent);
    if (!allocated.ok()) return allocated.status();
    *fresh = flight->tree;
    for (size_t i = 0; i < fresh->leaves.size(); ++i) {
      if (fresh->leaves[i].defined() && fresh->leaves[i].is_sparse()) {
        fresh->leaves[i] = allocated->leaves[i];
      }
    }
    absl::StatusOr<TreeMemory> memory = TreeMemory::Of(*fresh, flight->layout, /*fill=*/false);
    if (!memory.ok()) return memory.status();
    flight->memory = *std::move(memory);
    return flight->memory.segments();
  };
  spec.finish = [flight, fresh, sparse]() -> absl::Status {
    if (absl::Status s = flight->memory.Unstage(); !s.ok()) return s;
    if (sparse) {
      if (absl::Status s = p2p::CheckSparse(*fresh); !s.ok()) return s;
      if (absl::Status s = p2p::CopySparse(*fresh, flight->tree); !s.ok()) return s;
    }
    BumpVersions(flight->tree);
    return absl::OkStatus();
  };
  spec.keep_alive = flight;
  return prepared;
}

absl::StatusOr<Prepared> PrepareRecvNew(std::optional<PeerRank> from, const Group& group,
                                        const TransferOptions& options, bool async) {
  absl::StatusOr<Prepared> prepared =
      Prepare(false, PayloadKind::kTree, from, group, options, async);
  if (!prepared.ok()) return prepared;
  prepared->incoming = std::make_shared<Incoming>();
  auto memory = std::make_shared<TreeMemory>();
  TransferSpec& spec = prepared->spec;
  spec.judge = [incoming = prepared->incoming, memory, wanted = spec.offer,
                limit = options.max_bytes, names = NamesOfRanks(group),
                own = static_cast<size_t>(group.rank().value())](
                   int source, const mailbox::Offer& offer,
                   std::string_view description) -> absl::StatusOr<std::vector<Segment>> {
    const std::string& sender = names[static_cast<size_t>(source)];
    const std::string& receiver = names[own];
    if (absl::Status s = CheckKind(offer, wanted, sender, receiver); !s.ok()) return s;
    if (offer.bytes > limit) {
      return absl::ResourceExhaustedError(absl::StrCat(sender, " sends ", offer.bytes, " bytes, ",
                                                       receiver, " takes ", limit, " at most"));
    }
    absl::StatusOr<TreeSpec> sent = DecodeTreeSpec(description, {.max_leaf_bytes = offer.bytes});
    if (!sent.ok()) return sent.status();
    absl::StatusOr<FlatTree> fresh = AllocateLeaves(*sent);
    if (!fresh.ok()) return fresh.status();
    absl::StatusOr<Layout> layout = Layout::Of(*fresh);
    if (!layout.ok()) return layout.status();
    if (ToNumber(layout->digest()) != offer.digest) {
      return absl::InternalError(
          absl::StrCat("the tree as ", sender, " describes it is not the one that it offers"));
    }
    absl::StatusOr<TreeMemory> made = TreeMemory::Of(*fresh, *layout, /*fill=*/false);
    if (!made.ok()) return made.status();
    *memory = *std::move(made);
    incoming->tree =
        ReceivedTree{*std::move(fresh), std::make_shared<const TreeSpec>(*std::move(sent))};
    return memory->segments();
  };
  spec.finish = [memory, incoming = prepared->incoming]() -> absl::Status {
    if (absl::Status s = memory->Unstage(); !s.ok()) return s;
    return p2p::CheckSparse(incoming->tree->flat);
  };
  spec.keep_alive = memory;
  return prepared;
}

absl::StatusOr<Prepared> PrepareSendBytes(std::string bytes, PeerRank to, const Group& group,
                                          const TransferOptions& options, bool async) {
  absl::StatusOr<Prepared> prepared =
      Prepare(true, PayloadKind::kBytes, to, group, options, async);
  if (!prepared.ok()) return prepared;
  TransferSpec& spec = prepared->spec;
  auto owned = std::make_shared<std::string>(std::move(bytes));
  spec.offer.bytes = static_cast<int64_t>(owned->size());
  spec.has_memory = true;
  spec.segments = {{owned->data(), spec.offer.bytes}};
  spec.keep_alive = owned;
  return prepared;
}

absl::StatusOr<Prepared> PrepareRecvBytes(std::optional<PeerRank> from, const Group& group,
                                          const TransferOptions& options, bool async) {
  absl::StatusOr<Prepared> prepared =
      Prepare(false, PayloadKind::kBytes, from, group, options, async);
  if (!prepared.ok()) return prepared;
  prepared->incoming = std::make_shared<Incoming>();
  TransferSpec& spec = prepared->spec;
  spec.judge = [incoming = prepared->incoming, wanted = spec.offer, limit = options.max_bytes,
                names = NamesOfRanks(group), own = static_cast<size_t>(group.rank().value())](
                   int source, const mailbox::Offer& offer,
                   std::string_view) -> absl::StatusOr<std::vector<Segment>> {
    const std::string& sender = names[static_cast<size_t>(source)];
    const std::string& receiver = names[own];
    if (absl::Status s = CheckKind(offer, wanted, sender, receiver); !s.ok()) return s;
    if (offer.bytes > limit) {
      return absl::ResourceExhaustedError(absl::StrCat(sender, " sends ", offer.bytes, " bytes, ",
                                                       receiver, " takes ", limit, " at most"));
    }
    try {
      incoming->bytes.emplace(static_cast<size_t>(offer.bytes), '\0');
    } catch (const std::exception&) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory for ", offer.bytes, " bytes from ", sender));
    }
    return std::vector<Segment>{{incoming->bytes->data(), offer.bytes}};
  };
  return prepared;
}

absl::StatusOr<std::vector<TransferWork>> PostAll(std::vector<Prepared> prepared,
                                                  const std::shared_ptr<Mailbox>& mailbox) {
  std::vector<TransferSpec> specs;
  std::vector<bool> sends;
  for (Prepared& item : prepared) {
    sends.push_back(item.spec.is_send);
    specs.push_back(std::move(item.spec));
  }
  absl::StatusOr<std::vector<TransferPtr>> transfers = mailbox->Post(std::move(specs));
  if (!transfers.ok()) return transfers.status();
  std::vector<TransferWork> works;
  for (size_t i = 0; i < transfers->size(); ++i) {
    works.push_back(TransferAccess::Make(std::make_shared<TransferHandle>(
        mailbox, (*transfers)[i], sends[i], std::move(prepared[i].incoming))));
  }
  return works;
}

// Makes and posts one transfer.
template <typename Make>
absl::StatusOr<TransferWork> Start(std::string_view verb, const Group& group, Make make) {
  if (group.size() == 1) {
    return SayWhere(absl::InvalidArgumentError("there is no other rank in the group"), verb, group);
  }
  absl::StatusOr<std::shared_ptr<Mailbox>> mailbox = Mailbox::Of(group.engine());
  if (!mailbox.ok()) return SayWhere(mailbox.status(), verb, group);
  absl::StatusOr<Prepared> prepared = make(**mailbox);
  if (!prepared.ok()) return SayWhere(prepared.status(), verb, group);
  std::vector<Prepared> one;
  one.push_back(*std::move(prepared));
  absl::StatusOr<std::vector<TransferWork>> works = PostAll(std::move(one), *mailbox);
  if (!works.ok()) return SayWhere(works.status(), verb, group);
  return (*works)[0];
}

absl::Status Finish(const absl::StatusOr<TransferWork>& work, const TransferOptions& options) {
  return work.ok() ? work->Wait(absl::InfiniteDuration(), options.interrupt) : work.status();
}

absl::StatusOr<TransferWork> StartSend(const TreeArg& tree, PeerRank to, const Group& group,
                                       const TransferOptions& options, bool async) {
  return Start("send", group, [&](Mailbox& mailbox) {
    return PrepareSend(tree, to, group, options, async, mailbox);
  });
}

absl::StatusOr<TransferWork> StartRecv(const TreeArg& tree, std::optional<PeerRank> from,
                                       const Group& group, const TransferOptions& options,
                                       bool async) {
  return Start("recv", group, [&](Mailbox& mailbox) {
    return PrepareRecv(tree.flat(), from, group, options, async, mailbox);
  });
}

absl::StatusOr<GroupRank> FinishRecv(const absl::StatusOr<TransferWork>& work,
                                     const TransferOptions& options) {
  if (absl::Status s = Finish(work, options); !s.ok()) return s;
  return work->source();
}

}  // namespace
}  // namespace internal

absl::StatusOr<GroupRank> PeerRank::In(const Group& group) const {
  absl::StatusOr<GroupRank> rank(GroupRank(0));
  if (const auto* in_group = std::get_if<GroupRank>(&rank_)) {
    rank = *in_group;
    if (absl::StatusOr<GlobalRank> global = group.ToGlobal(*in_group); !global.ok()) {
      rank = global.status();
    }
  } else {
    rank = group.ToGroup(std::get<GlobalRank>(rank_));
  }
  if (!rank.ok()) return absl::InvalidArgumentError(rank.status().message());
  return rank;
}

absl::Status TransferWork::Wait(absl::Duration timeout, const InterruptCheck& interrupt) const {
  return handle_->Wait(timeout, interrupt);
}
bool TransferWork::IsDone() const { return handle_->IsDone(); }
void TransferWork::Cancel() const { handle_->Cancel(); }

absl::StatusOr<GroupRank> TransferWork::source() const {
  if (handle_->is_send()) return absl::FailedPreconditionError("a send has no source");
  if (absl::Status s = handle_->Ended(); !s.ok()) return s;
  return handle_->source();
}

absl::StatusOr<ReceivedTree> TransferWork::received() const {
  if (absl::Status s = handle_->Ended(); !s.ok()) return s;
  if (handle_->incoming() == nullptr || !handle_->incoming()->tree.has_value()) {
    return absl::FailedPreconditionError("the transfer was no receive of a tree into nothing");
  }
  return *handle_->incoming()->tree;
}

absl::StatusOr<std::string> TransferWork::bytes() const {
  if (absl::Status s = handle_->Ended(); !s.ok()) return s;
  if (handle_->incoming() == nullptr || !handle_->incoming()->bytes.has_value()) {
    return absl::FailedPreconditionError("the transfer was no receive of bytes");
  }
  return *handle_->incoming()->bytes;
}

absl::Status Send(const TreeArg& tree, PeerRank to, const Group& group,
                  const TransferOptions& options) {
  return internal::Finish(internal::StartSend(tree, to, group, options, false), options);
}
absl::StatusOr<TransferWork> Isend(const TreeArg& tree, PeerRank to, const Group& group,
                                   const TransferOptions& options) {
  return internal::StartSend(tree, to, group, options, true);
}

absl::StatusOr<GroupRank> Recv(const TreeArg& tree, std::optional<PeerRank> from,
                               const Group& group, const TransferOptions& options) {
  return internal::FinishRecv(internal::StartRecv(tree, from, group, options, false), options);
}
absl::StatusOr<TransferWork> Irecv(const TreeArg& tree, std::optional<PeerRank> from,
                                   const Group& group, const TransferOptions& options) {
  return internal::StartRecv(tree, from, group, options, true);
}

absl::StatusOr<TreeFromRank> RecvNew(std::optional<PeerRank> from, const Group& group,
                                     const TransferOptions& options) {
  const absl::StatusOr<TransferWork> work =
      internal::Start("recv", group, [&](mailbox::Mailbox&) {
        return internal::PrepareRecvNew(from, group, options, false);
      });
  if (absl::Status s = internal::Finish(work, options); !s.ok()) return s;
  absl::StatusOr<ReceivedTree> tree = work->received();
  if (!tree.ok()) return tree.status();
  absl::StatusOr<GroupRank> source = work->source();
  if (!source.ok()) return source.status();
  return TreeFromRank{*std::move(tree), *source};
}
absl::StatusOr<TransferWork> IrecvNew(std::optional<PeerRank> from, const Group& group,
                                      const TransferOptions& options) {
  return internal::Start("recv", group, [&](mailbox::Mailbox&) {
    return internal::PrepareRecvNew(from, group, options, true);
  });
}

absl::Status SendBytes(std::string_view bytes, PeerRank to, const Group& group,
                       const TransferOptions& options) {
  return internal::Finish(internal::Start("send", group,
                                          [&](mailbox::Mailbox&) {
                                            return internal::PrepareSendBytes(
                                                std::string(bytes), to, group, options, false);
                                          }),
                          options);
}
absl::StatusOr<std::string> RecvBytes(std::optional<PeerRank> from, const Group& group,
                                      const TransferOptions& options) {
  const absl::StatusOr<TransferWork> work =
      internal::Start("recv", group, [&](mailbox::Mailbox&) {
        return internal::PrepareRecvBytes(from, group, options, false);
      });
  if (absl::Status s = internal::Finish(work, options); !s.ok()) return s;
  return work->bytes();
}
absl::StatusOr<TransferWork> IsendBytes(std::string bytes, PeerRank to, const Group& group,
                                        const TransferOptions& options) {
  return internal::Start("send", group, [&](mailbox::Mailbox&) {
    return internal::PrepareSendBytes(std::move(bytes), to, group, options, true);
  });
}
absl::StatusOr<TransferWork> IrecvBytes(std::optional<PeerRank> from, const Group& group,
                                        const TransferOptions& options) {
  return internal::Start("recv", group, [&](mailbox::Mailbox&) {
    return internal::PrepareRecvBytes(from, group, options, true);
  });
}

absl::Status InitRemote(const TensorDict& tree, PeerRank to, const Group& group,
                        const TransferOptions& options) {
  return Send(tree, to, group, options);
}
absl::StatusOr<TensorDict> FromRemoteInit(std::optional<PeerRank> from, const Group& group,
                                          const TransferOptions& options) {
  absl::StatusOr<TreeFromRank> received = RecvNew(from, group, options);
  if (!received.ok()) return received.status();
  return received->tree.ToTensorDict();
}

absl::StatusOr<std::vector<TransferWork>> PostBatch(const std::vector<BatchItem>& items,
                                                    const Group& group, std::string_view name) {
  if (items.empty()) return std::vector<TransferWork>();
  const auto failed = [&](const absl::Status& status) {
    return internal::SayWhere(status, name, group);
  };
  if (group.size() == 1) {
    return failed(absl::InvalidArgumentError("there is no other rank in the group"));
  }
  absl::StatusOr<std::shared_ptr<mailbox::Mailbox>> mailbox = mailbox::Mailbox::Of(group.engine());
  if (!mailbox.ok()) return failed(mailbox.status());
  const auto prepare = [&](const BatchItem& item) -> absl::StatusOr<internal::Prepared> {
    if (const auto* send = std::get_if<SendItem>(&item)) {
      return internal::PrepareSend(send->tree, send->to, group, send->options, true, **mailbox);
    }
    const auto& recv = std::get<RecvItem>(item);
    if (!recv.tree.has_value()) {
      return internal::PrepareRecvNew(recv.from, group, recv.options, true);
    }
    return internal::PrepareRecv(recv.tree->flat(), recv.from, group, recv.options, true,
                                 **mailbox);
  };
  std::vector<internal::Prepared> prepared;
  for (size_t i = 0; i < items.size(); ++i) {
    absl::StatusOr<internal::Prepared> item = prepare(items[i]);
    if (!item.ok()) {
      return internal::SayWhere(item.status(), absl::StrCat(name, "[", i, "]"), group);
    }
    prepared.push_back(*std::move(item));
  }
  absl::StatusOr<std::vector<TransferWork>> works =
      internal::PostAll(std::move(prepared), *mailbox);
  if (!works.ok()) return failed(works.status());
  return works;
}

absl::Status WaitAll(const std::vector<TransferWork>& works, absl::Duration timeout,
                     const InterruptCheck& interrupt) {
  const absl::Time until = absl::Now() + timeout;
  absl::Status first;
  for (const TransferWork& work : works) {
    const absl::Duration left = std::max(until - absl::Now(), absl::ZeroDuration());
    first.Update(work.Wait(timeout == absl::InfiniteDuration() ? timeout : left, interrupt));
  }
  return first;
}

}  // namespace leafpack
