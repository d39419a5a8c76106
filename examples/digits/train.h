// Data parallel training of one rank, and the proofs that it was right.
#ifndef LEAFPACK_EXAMPLES_DIGITS_TRAIN_H_
#define LEAFPACK_EXAMPLES_DIGITS_TRAIN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "distributed/core/group.h"
#include "examples/digits/data.h"
#include "examples/digits/net.h"
#include "tensordict/bucket/bucket_plan.h"
#include "tensordict/tensor_dict.h"

namespace leafpack::digits {

struct TrainOptions {
  int epochs = 10;
  int64_t batch = 64;  // images of a step, over all ranks
  double rate = 0.1;
  double momentum = 0.9;
  uint64_t seed = 1;
  int64_t hidden1 = 256;
  int64_t hidden2 = 64;
  Bucketing bucketing = Bucketing::Auto();
};

// Where the time of the training went, in seconds on this rank.
struct Times {
  double compute = 0;  // forward, backward and optimizer
  double prepare = 0;  // of AllReduce: look at the tree, plan
  double agree = 0;
  double pack = 0;
  double communicate = 0;
  double unpack = 0;
  double all_reduce = 0;  // all of the calls; what the phases above leave is overhead
  double total = 0;
};

struct Trained {
  Net net;
  double loss = 0;      // of the last epoch, a mean over images
  double accuracy = 0;  // on the images held out
  Times times = {};
  int64_t steps = 0;
  int64_t leaves = 0;
  int64_t bytes = 0;    // of gradients, each step
  int64_t buckets = 0;  // messages of a step; 0: they rode with the agreement
};

// Trains one net on all ranks of `group`: every rank takes its share of each batch, and one AllReduce
// averages the gradients. Rank 0 prints a line per epoch. Same options on all ranks.
absl::StatusOr<Trained> Train(const Digits& digits, const TrainOptions& options,
                              const Group& group);

// The same training by this process alone, with the same batches.
absl::StatusOr<Trained> TrainAlone(const Digits& digits, const TrainOptions& options);

// OK when the weights of all ranks are equal to the bit: they are reduced by MIN and by MAX as integers,
// and both results are this rank's own. Otherwise FailedPrecondition names the parameter.
absl::Status CheckEqualOnAllRanks(const Net& net, const Group& group);

// The largest difference between weights of two nets.
double LargestDifference(const Net& a, const Net& b);

// A short name for the bits of all weights, for people to compare.
std::string Fingerprint(const Net& net);

}  // namespace leafpack::digits

#endif  // LEAFPACK_EXAMPLES_DIGITS_TRAIN_H_
