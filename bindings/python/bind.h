// The parts of leafpack._C, each in a source of its own, and the objects that they share.
#ifndef LEAFPACK_BINDINGS_PYTHON_BIND_H_
#define LEAFPACK_BINDINGS_PYTHON_BIND_H_

#include <pybind11/pybind11.h>

#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "distributed/core/group.h"
#include "distributed/core/rank.h"
#include "distributed/core/reduce_op.h"

namespace leafpack::python {

namespace py = pybind11;

void BindTensorDict(py::module_& module);
void BindGroup(py::module_& module);
void BindReductions(py::module_& module);
void BindCollectives(py::module_& module);
void BindTransfers(py::module_& module);
void BindTree(py::module_& module);

// A Group that Python holds. Dropping the last handle of a group may wait for calls in flight, so
// it goes without the GIL.
class GroupObject {
 public:
  explicit GroupObject(Group group) : group_(std::move(group)) {}
  ~GroupObject() {
    py::gil_scoped_release release;
    group_.reset();
  }
  GroupObject(const GroupObject&) = delete;
  GroupObject& operator=(const GroupObject&) = delete;

  const Group& get() const { return *group_; }

 private:
  std::optional<Group> group_;
};

// Seconds (int, float) or a datetime.timedelta, more than zero; None is InfiniteDuration. Throws a
// Python TypeError or ValueError that names `what`.
absl::Duration TimeoutFromPython(py::handle timeout, const char* what = "timeout");

// A group around a torch.distributed ProcessGroup, whose members have these ranks in the job.
absl::StatusOr<Group> GroupAround(py::handle process_group, std::vector<GlobalRank> global_ranks);

// The op of a torch.distributed.ReduceOp object; nullopt if `op` is none.
std::optional<absl::StatusOr<ReduceOp>> ReduceOpFromTorch(py::handle op);

}  // namespace leafpack::python

#endif  // LEAFPACK_BINDINGS_PYTHON_BIND_H_
