// Messages between two ranks: a byte ring from every rank to every other one, each in the segment of
// the rank that writes. Never waits.
#ifndef LEAFPACK_DISTRIBUTED_BACKENDS_SHM_PIPES_H_
#define LEAFPACK_DISTRIBUTED_BACKENDS_SHM_PIPES_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"

#include "distributed/backends/shm/doorbell.h"
#include "distributed/backends/shm/operation.h"
#include "distributed/backends/shm/peers.h"
#include "distributed/backends/shm/view_bytes.h"

namespace leafpack::shm {

class Pipes {
 public:
  Pipes(Peers& peers, Doorbell& doorbell);

  // Queues the views of a message. Messages of a pair pass in order, and nothing but their bytes does:
  // both sides know the sizes. `operation` is over when all its messages are through: a send when the
  // ring has it, a receive when the leaves have it. Begin: before its messages are added;
  // Commit: when all were.
  void Begin(std::shared_ptr<Operation> operation);
  void Send(int peer, ViewBytes bytes);
  void Receive(int peer, ViewBytes bytes);
  void Commit();

  // Moves what can be moved now; false if nothing could.
  bool Step();

  bool idle() const { return left_.empty(); }
  // Whether something is awaited from `peer`.
  bool Needs(int peer) const;

  void Fail(const absl::Status& status);

 private:
  // Messages of an operation that are not through.
  struct Left {
    std::shared_ptr<Operation> operation;
    int messages = 0;
  };
  struct Message {
    std::shared_ptr<Left> left;
    ViewBytes bytes;
    int64_t moved = 0;
  };
  struct Pair {
    std::deque<Message> out, in;
    uint64_t written = 0, read = 0;  // what the counters say that this rank owns
  };

  bool StepOut(int peer, Pair& pair);
  bool StepIn(int peer, Pair& pair);
  void EndMessage(std::deque<Message>& queue);

  Peers& peers_;
  Doorbell& doorbell_;
  std::vector<Pair> pairs_;
  std::vector<std::shared_ptr<Left>> left_;  // not over
  std::shared_ptr<Left> open_;
};

}  // namespace leafpack::shm

#endif  // LEAFPACK_DISTRIBUTED_BACKENDS_SHM_PIPES_H_
