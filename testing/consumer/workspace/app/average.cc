#include "app/average.h"

namespace app {

absl::Status Average(leafpack::TensorDict& tree, leafpack::Group& group) {
  return leafpack::AllReduce(tree, group, {.op = leafpack::ReduceOp::kAvg});
}

}  // namespace app
