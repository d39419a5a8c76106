// Everything of leafpack that a program with several ranks needs: groups, options, errors, and
// collectives on trees. Linking the target that holds this header also links the default backends.
#ifndef LEAFPACK_DISTRIBUTED_DISTRIBUTED_H_
#define LEAFPACK_DISTRIBUTED_DISTRIBUTED_H_

#include "distributed/core/error.h"           // IWYU pragma: export
#include "distributed/core/flight/dump.h"     // IWYU pragma: export
#include "distributed/core/group.h"           // IWYU pragma: export
#include "distributed/core/rank.h"            // IWYU pragma: export
#include "distributed/core/reduce_op.h"       // IWYU pragma: export
#include "distributed/p2p/transfer.h"         // IWYU pragma: export
#include "distributed/store/environment.h"    // IWYU pragma: export
#include "distributed/store/groups.h"         // IWYU pragma: export
#include "distributed/store/process_group.h"  // IWYU pragma: export
#include "distributed/store/store.h"          // IWYU pragma: export
#include "distributed/store/sub_groups.h"     // IWYU pragma: export
#include "distributed/store/url.h"            // IWYU pragma: export
#include "distributed/tree/all_reduce.h"      // IWYU pragma: export
#include "distributed/tree/barrier.h"         // IWYU pragma: export
#include "distributed/tree/call_options.h"    // IWYU pragma: export
#include "distributed/tree/collectives.h"     // IWYU pragma: export
#include "distributed/tree/reduce.h"          // IWYU pragma: export
#include "distributed/tree/tree_work.h"       // IWYU pragma: export
#include "distributed/tree/trees.h"           // IWYU pragma: export

#endif  // LEAFPACK_DISTRIBUTED_DISTRIBUTED_H_
