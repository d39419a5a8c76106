// Averages a tree over the ranks of a group: a library of a repository that depends on leafpack.
#ifndef APP_AVERAGE_H_
#define APP_AVERAGE_H_

#include "absl/status/status.h"

#include "distributed/distributed.h"
#include "tensordict/tensordict.h"

namespace app {

// Replaces each leaf of `tree` by its mean over the ranks of `group`.
absl::Status Average(leafpack::TensorDict& tree, leafpack::Group& group);

}  // namespace app

#endif  // APP_AVERAGE_H_
