#include "distributed/core/testing/exchange_checks.h"

#include <cstdint>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace leafpack::testing {
namespace {

using at::ScalarType;

constexpr int kExchanges = 12;
constexpr int64_t kReduced = 1000;  // elements

constexpr ScalarType kDtypes[] = {ScalarType::Byte,   ScalarType::Float,         ScalarType::Half,
                                  ScalarType::Double, ScalarType::ComplexDouble, ScalarType::Bool,
                                  ScalarType::Long,   ScalarType::Float8_e5m2};

// How many views rank `from` has for rank `to` in an exchange; -1 when neither names the other.
int ViewCount(int exchange, int from, int to) {
  if (exchange % 6 == 4) return from == 0 ? 2 : -1;  // one sends, the others receive only
  if (exchange % 6 == 5) return -1;                  // nobody has anything to do
  return (exchange + from + 2 * to) % 5 - 1;
}

ScalarType DtypeOf(int exchange, int from, int to, int view) {
  return kDtypes[static_cast<size_t>(exchange + from + to + view) % std::size(kDtypes)];
}

int64_t CountOf(int exchange, int from, int to, int view) {
  constexpr int64_t kCounts[] = {0, 1, 7, 1000, 4096, 30001};
  return kCounts[static_cast<size_t>(exchange * 5 + from * 3 + to + view * 2) % std::size(kCounts)];
}

uint8_t ByteOf(int exchange, int from, int to, int view, size_t at) {
  return static_cast<uint8_t>((static_cast<size_t>(exchange) * 31 + static_cast<size_t>(from) * 17 +
                               static_cast<size_t>(to) * 7 + static_cast<size_t>(view) * 3 + at) *
                                  0x9e3779b97f4a7c15ull >>
                              13);
}

struct Buffer {
  int peer;
  int view;
  std::vector<uint8_t> bytes;
};

// One rank's side of one exchange; buffers keep their places.
struct Side {
  std::vector<std::unique_ptr<Buffer>> sent, received;
  std::unique_ptr<DataWork> work;
  std::vector<float> reduced;
  std::unique_ptr<DataWork> reduction;
};

LeafView ViewOf(void* data, ScalarType dtype, int64_t count) {
  LeafView view;
  view.data = data;
  view.dtype = dtype;
  view.sizes = {count};
  view.strides = {1};
  return view;
}

std::vector<Transfer> MakeTransfers(int exchange, int rank, int size, bool send,
                                    std::vector<std::unique_ptr<Buffer>>& buffers) {
  std::vector<Transfer> transfers;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    const int from = send ? rank : peer, to = send ? peer : rank;
    const int views = ViewCount(exchange, from, to);
    if (views < 0) continue;
    Transfer& transfer = transfers.emplace_back();
    transfer.peer = peer;
    for (int v = 0; v < views; ++v) {
      const ScalarType dtype = DtypeOf(exchange, from, to, v);
      const int64_t count = CountOf(exchange, from, to, v);
      auto buffer = std::make_unique<Buffer>(
          Buffer{peer, v, std::vector<uint8_t>(static_cast<size_t>(count) * c10::elementSize(dtype))});
      if (send) {
        for (size_t i = 0; i < buffer->bytes.size(); ++i) {
          buffer->bytes[i] = ByteOf(exchange, from, to, v, i);
        }
      }
      transfer.views.push_back(ViewOf(buffer->bytes.data(), dtype, count));
      buffers.push_back(std::move(buffer));
    }
  }
  return transfers;
}

float ReducedValue(int exchange, int rank, int64_t i) {
  return static_cast<float>((exchange * 3 + rank * 5 + i) % 64);
}

absl::Status StartReduction(DataContext& context, int exchange, int rank, Side& side) {
  side.reduced.resize(kReduced);
  for (int64_t i = 0; i < kReduced; ++i) {
    side.reduced[static_cast<size_t>(i)] = ReducedValue(exchange, rank, i);
  }
  auto work =
      context.AllReduce({ViewOf(side.reduced.data(), ScalarType::Float, kReduced)}, ReduceOp::kSum);
  if (!work.ok()) return work.status();
  side.reduction = *std::move(work);
  return absl::OkStatus();
}

absl::Status StartExchange(DataContext& context, int exchange, int rank, int size, Side& side) {
  std::vector<Transfer> sends = MakeTransfers(exchange, rank, size, true, side.sent);
  std::vector<Transfer> receives = MakeTransfers(exchange, rank, size, false, side.received);
  auto work = context.Exchange(std::move(sends), std::move(receives));
  if (!work.ok()) return work.status();
  side.work = *std::move(work);
  return absl::OkStatus();
}

std::string CheckValues(int exchange, int rank, int size, const Side& side) {
  for (const std::unique_ptr<Buffer>& buffer : side.received) {
    for (size_t i = 0; i < buffer->bytes.size(); ++i) {
      const uint8_t want = ByteOf(exchange, buffer->peer, rank, buffer->view, i);
      if (buffer->bytes[i] != want) {
        return absl::StrCat("byte ", i, " of view ", buffer->view, " from rank ", buffer->peer,
                            " is ", buffer->bytes[i], ", want ", want);
      }
    }
  }
  for (const std::unique_ptr<Buffer>& buffer : side.sent) {
    for (size_t i = 0; i < buffer->bytes.size(); ++i) {
      if (buffer->bytes[i] != ByteOf(exchange, rank, buffer->peer, buffer->view, i)) {
        return "what was sent was written";
      }
    }
  }
  for (int64_t i = 0; i < kReduced; ++i) {
    float want = 0;
    for (int r = 0; r < size; ++r) want += ReducedValue(exchange, r, i);
    if (side.reduced[static_cast<size_t>(i)] != want) {
      return absl::StrCat("all-reduced element ", i, " is ", side.reduced[static_cast<size_t>(i)],
                          ", want ", want);
    }
  }
  return "";
}

}  // namespace

absl::Status Finish(DataWork& work, absl::Duration patience) {
  const absl::Time until = absl::Now() + patience;
  while (absl::Now() < until) {
    absl::StatusOr<bool> done = work.WaitFor(absl::Milliseconds(20));
    if (!done.ok()) return done.status();
    if (*done) return absl::OkStatus();
  }
  return absl::DeadlineExceededError("the work did not end");
}

std::string CheckExchanges(DataContext& context, int rank, int size) {
  std::vector<Side> sides(kExchanges);
  for (int e = 0; e < kExchanges; ++e) {
    absl::Status status;
    const bool reduce_first = e % 3 == 0;
    if (reduce_first) status.Update(StartReduction(context, e, rank, sides[static_cast<size_t>(e)]));
    status.Update(StartExchange(context, e, rank, size, sides[static_cast<size_t>(e)]));
    if (!reduce_first) status.Update(StartReduction(context, e, rank, sides[static_cast<size_t>(e)]));
    if (!status.ok()) return absl::StrCat("exchange ", e, ": ", status.ToString());
  }
  // The last first on odd ranks.
  for (int n = 0; n < kExchanges; ++n) {
    const int e = rank % 2 == 0 ? n : kExchanges - 1 - n;
    Side& side = sides[static_cast<size_t>(e)];
    absl::Status status = Finish(*side.work);
    if (!side.work->IsDone()) status.Update(absl::InternalError("not done after it ended"));
    status.Update(Finish(*side.reduction));
    const std::string wrong = status.ok() ? CheckValues(e, rank, size, side) : status.ToString();
    if (!wrong.empty()) {
      return absl::StrCat("exchange ", e, ", rank ", rank, " of ", size, ": ", wrong);
    }
  }
  return "";
}

std::string CheckExchangeAbort(std::shared_ptr<DataContext> context, int rank, int size) {
  constexpr int64_t kBytes = 100'000;
  auto memory = std::make_shared<std::vector<uint8_t>>(2 * kBytes);
  const int absent = size - 1;
  std::vector<std::unique_ptr<DataWork>> works;
  const auto start = [&]() -> absl::Status {
    LeafView out = ViewOf(memory->data(), ScalarType::Byte, kBytes);
    LeafView in = ViewOf(memory->data() + kBytes, ScalarType::Byte, kBytes);
    out.keep_alive = in.keep_alive = memory;
    auto work = context->Exchange({{absent, {out}}}, {{absent, {in}}});
    if (!work.ok()) return work.status();
    works.push_back(*std::move(work));
    return absl::OkStatus();
  };
  for (int i = 0; i < 3; ++i) {
    if (absl::Status status = start(); !status.ok()) return status.ToString();
  }
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<bool> done = works[0]->WaitFor(absl::Milliseconds(10));
    if (!done.ok()) return done.status().ToString();
    if (*done || works[2]->IsDone()) return "an exchange ended without its peer";
  }
  context->Abort();
  context->Abort();
  for (auto& work : works) {
    const absl::Status status = Finish(*work, absl::Seconds(30));
    if (status.ok() || absl::IsDeadlineExceeded(status)) {
      return absl::StrCat("rank ", rank, ": an aborted exchange gives ", status.ToString());
    }
    if (!work->IsDone()) return "not done after Abort";
  }
  if (start().ok()) return "an aborted context takes exchanges";
  works.clear();
  context.reset();
  if (memory.use_count() != 1) return "memory is held after the context is gone";
  return "";
}

}  // namespace leafpack::testing
