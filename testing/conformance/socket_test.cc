#include "distributed/distributed.h"
#include "testing/conformance/suite.h"

LEAFPACK_CONFORMANCE(Socket, {.make_groups = [](int ranks) {
  return leafpack::LocalGroups(ranks, {.backend = "socket"});
}})
