#include "distributed/distributed.h"
#include "testing/conformance/suite.h"

LEAFPACK_CONFORMANCE(Gloo, {.make_groups = [](int ranks) {
  return leafpack::LocalGroups(ranks, {.backend = "gloo"});
}})
