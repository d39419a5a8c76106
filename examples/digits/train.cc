#include "examples/digits/train.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>

#include <ATen/core/Reduction.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/tensor.h>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "distributed/core/group.h"
#include "distributed/tree/all_reduce.h"
#include "tensordict/tensor_dict.h"

namespace leafpack::digits {
namespace {

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The tree {layer: {weight, bias}}, of whatever `choose` picks of a parameter.
absl::StatusOr<TensorDict> MakeTree(
    const Net& net, absl::FunctionRef<at::Tensor(const Net::Parameter&)> choose) {
  TensorDict tree;
  for (const Net::Parameter& p : net.parameters()) {
    if (absl::Status s = tree.Set({p.layer, p.name}, choose(p)); !s.ok()) return s;
  }
  return tree;
}

struct Scores {
  double correct = 0, loss = 0;
};

// How many images of the range the net reads right.
double CountCorrect(const Net& net, const Images& images, Range range) {
  at::NoGradGuard no_grad;
  const at::Tensor labels = images.labels.slice(0, range.begin, range.end);
  const at::Tensor scores = net.Forward(images.pixels.slice(0, range.begin, range.end));
  return scores.argmax(1).eq(labels).sum().item().toDouble();
}

// What ranks do together; alone, nothing.
struct Team {
  int rank = 0;
  int ranks = 1;
  bool prints = false;
  // Averages the gradients over the ranks.
  std::function<absl::Status(Trained&)> average;
  // Sums loss and correct answers over the ranks.
  std::function<absl::Status(Scores&)> sum;
};

absl::Status TrainEpoch(const Digits& digits, const TrainOptions& options, int epoch,
                        const Team& team, Trained& trained, Scores& scores) {
  Net& net = trained.net;
  const int64_t steps = digits.train.size() / options.batch;
  const at::Tensor order = Permutation(digits.train.size(), options.seed, epoch);
  for (int64_t step = 0; step < steps; ++step) {
    const double start = Now();
    const Range share = Share(options.batch, team.rank, team.ranks);
    const int64_t first = step * options.batch;
    const at::Tensor chosen = order.slice(0, first + share.begin, first + share.end);
    net.ZeroGrad();
    const at::Tensor loss = at::cross_entropy_loss(
        net.Forward(digits.train.pixels.index_select(0, chosen)),
        digits.train.labels.index_select(0, chosen), {}, at::Reduction::Sum);
    // Shares may differ in size: with this factor the average over ranks is the mean over the batch.
    loss.mul(static_cast<double>(team.ranks) / static_cast<double>(options.batch)).backward();
    scores.loss += loss.item().toDouble();
    const double computed = Now();
    if (absl::Status s = team.average(trained); !s.ok()) return s;
    const double averaged = Now();
    net.Step(options.rate, options.momentum);
    trained.times.compute += computed - start + Now() - averaged;
    ++trained.steps;
  }
  return absl::OkStatus();
}

absl::StatusOr<Trained> TrainAs(const Digits& digits, const TrainOptions& options, const Team& team,
                                Trained trained) {
  if (options.batch < team.ranks || options.batch > digits.train.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--batch=", options.batch, ": must be at least the number of ranks, ",
                     team.ranks, ", and at most ", digits.train.size(), " images"));
  }
  const int64_t steps = digits.train.size() / options.batch;
  const double start = Now();
  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    const double epoch_start = Now();
    Scores scores;
    if (absl::Status s = TrainEpoch(digits, options, epoch, team, trained, scores); !s.ok()) {
      return s;
    }
    scores.correct = CountCorrect(trained.net, digits.held_out,
                                  Share(digits.held_out.size(), team.rank, team.ranks));
    if (absl::Status s = team.sum(scores); !s.ok()) return s;
    trained.loss = scores.loss / static_cast<double>(steps * options.batch);
    trained.accuracy = scores.correct / static_cast<double>(digits.held_out.size());
    if (team.prints) {
      std::printf("epoch %2d of %d: loss %.4f, held-out accuracy %.2f %%, %.2f s\n", epoch + 1,
                  options.epochs, trained.loss, 100 * trained.accuracy, Now() - epoch_start);
      std::fflush(stdout);
    }
  }
  trained.times.total = Now() - start;
  return trained;
}

}  // namespace

absl::StatusOr<Trained> Train(const Digits& digits, const TrainOptions& options,
                              const Group& group) {
  Trained trained{.net = Net(options.seed, options.hidden1, options.hidden2)};
  absl::StatusOr<TensorDict> gradients =
      MakeTree(trained.net, [](const Net::Parameter& p) { return p.grad; });
  if (!gradients.ok()) return gradients.status();
  Team team;
  team.rank = group.rank().value();
  team.ranks = group.size();
  team.prints = team.rank == 0;
  team.average = [&](Trained& result) {
    AllReduceStats stats;
    AllReduceOptions call;
    call.op = ReduceOp::kAvg;
    call.bucketing = options.bucketing;
    call.name = "gradients";
    call.stats = &stats;
    const double start = Now();
    absl::Status status = AllReduce(*gradients, group, call);
    Times& times = result.times;
    times.all_reduce += Now() - start;
    times.prepare += stats.prepare;
    times.agree += stats.agree;
    times.pack += stats.pack;
    times.communicate += stats.communicate;
    times.unpack += stats.unpack;
    result.leaves = stats.leaves;
    result.bytes = stats.bytes;
    result.buckets = stats.buckets;
    return status;
  };
  team.sum = [&](Scores& scores) -> absl::Status {
    const at::Tensor values = at::tensor({scores.correct, scores.loss}, at::kDouble);
    TensorDict tree;
    if (absl::Status s = tree.Set("scores", values); !s.ok()) return s;
    if (absl::Status s = AllReduce(tree, group, {.name = "scores"}); !s.ok()) return s;
    scores.correct = values[0].item().toDouble();
    scores.loss = values[1].item().toDouble();
    return absl::OkStatus();
  };
  return TrainAs(digits, options, team, std::move(trained));
}

absl::StatusOr<Trained> TrainAlone(const Digits& digits, const TrainOptions& options) {
  Team team;
  team.average = [](Trained&) { return absl::OkStatus(); };
  team.sum = [](Scores&) { return absl::OkStatus(); };
  return TrainAs(digits, options, team,
                 Trained{.net = Net(options.seed, options.hidden1, options.hidden2)});
}

absl::Status CheckEqualOnAllRanks(const Net& net, const Group& group) {
  // As integers, so that MIN and MAX look at bits: neither NaN nor -0 can hide a difference.
  const auto bits = [](const Net::Parameter& p) { return p.value.detach().view(at::kInt).clone(); };
  for (const ReduceOp op : {ReduceOp(ReduceOp::kMin), ReduceOp(ReduceOp::kMax)}) {
    absl::StatusOr<TensorDict> reduced = MakeTree(net, bits);
    if (!reduced.ok()) return reduced.status();
    if (absl::Status s = AllReduce(*reduced, group, {.op = op, .name = "weights"}); !s.ok()) {
      return s;
    }
    for (const Net::Parameter& p : net.parameters()) {
      absl::StatusOr<at::Tensor> other = reduced->Get({p.layer, p.name});
      if (!other.ok()) return other.status();
      if (!other->equal(p.value.detach().view(at::kInt))) {
        return absl::FailedPreconditionError(
            absl::StrCat("the ranks hold different bits in ", p.layer, ".", p.name));
      }
    }
  }
  return absl::OkStatus();
}

double LargestDifference(const Net& a, const Net& b) {
  double largest = 0;
  for (size_t i = 0; i < a.parameters().size(); ++i) {
    const at::Tensor difference = a.parameters()[i].value.detach().sub(b.parameters()[i].value.detach());
    largest = std::max(largest, difference.abs().max().item().toDouble());
  }
  return largest;
}

std::string Fingerprint(const Net& net) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const Net::Parameter& p : net.parameters()) {
    const at::Tensor value = p.value.detach().contiguous();
    const auto* bytes = static_cast<const unsigned char*>(value.const_data_ptr());
    for (size_t i = 0; i < value.nbytes(); ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
  }
  return absl::StrFormat("%016x", hash);
}

}  // namespace leafpack::digits
