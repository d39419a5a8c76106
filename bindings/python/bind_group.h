// What the binding of groups takes from the source that sees c10d's types.
#ifndef LEAFPACK_BINDINGS_PYTHON_BIND_GROUP_H_
#define LEAFPACK_BINDINGS_PYTHON_BIND_GROUP_H_

#include <pybind11/pybind11.h>

#include <string>

#include "absl/status/statusor.h"

#include "distributed/core/group.h"

namespace leafpack::python {

// A group over a store of torch.distributed; as GroupFromStore. Throws a Python TypeError if `store`
// is none.
absl::StatusOr<Group> GroupOverStore(pybind11::handle store, const std::string& prefix, int rank,
                                     int size, const GroupOptions& options);

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_BIND_GROUP_H_
