// leafpack.Group, and groups around those of torch.distributed.
#include <pybind11/pybind11.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "bindings/python/bind.h"
#include "bindings/python/bind_group.h"
#include "bindings/python/call_arguments.h"
#include "bindings/python/collective_call.h"
#include "bindings/python/errors.h"
#include "bindings/python/signals.h"
#include "distributed/core/backend.h"
#include "distributed/core/exit.h"
#include "distributed/core/group.h"
#include "distributed/core/rank.h"
#include "distributed/distributed.h"
#include "distributed/p2p/await_transfers.h"

namespace leafpack::python {
namespace {

// A backend of another name is a bad argument, and no missing key.
void CheckBackend(const std::string& name) {
  const std::vector<std::string> names = BackendNames();
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  throw py::value_error(
      absl::StrCat("there is no backend '", absl::Utf8SafeCEscape(name), "': want one of ", absl::StrJoin(names, ", ")));
}

GroupOptions OptionsFromPython(const std::string& backend, py::handle timeout,
                               const std::string& interface) {
  GroupOptions options;
  CheckBackend(backend);
  options.backend = backend;
  options.interface_name = interface;
  if (!timeout.is_none()) options.timeout = TimeoutFromPython(timeout);
  return options;
}

// What is None is the parent's.
SubGroupOptions SubGroupFromPython(const Group& parent, const py::object& backend,
                                   const py::object& timeout, const py::object& interface) {
  SubGroupOptions options;
  options.group = parent.options();
  if (!backend.is_none()) {
    options.group->backend = backend.cast<std::string>();
    CheckBackend(options.group->backend);
  }
  if (!timeout.is_none()) options.group->timeout = TimeoutFromPython(timeout);
  if (!interface.is_none()) options.group->interface_name = interface.cast<std::string>();
  return options;
}

// Runs `make`, which may wait for other ranks, without the GIL. What waits long takes the check that it is
// given.
template <typename F>
std::shared_ptr<GroupObject> MakeGroup(F&& make) {
  SignalCheck signals;
  absl::StatusOr<Group> group = [&] {
    py::gil_scoped_release release;
    return make(signals.check());
  }();
  signals.RaiseIfInterrupted();
  return std::make_shared<GroupObject>(ValueOrRaise(std::move(group)));
}

std::vector<GlobalRank> GlobalRanks(const Group& group) {
  std::vector<GlobalRank> ranks;
  for (int rank = 0; rank < group.size(); ++rank) {
    ranks.push_back(ValueOrRaise(group.ToGlobal(GroupRank(rank))));
  }
  return ranks;
}

}  // namespace

void BindGroup(py::module_& module) {
  py::class_<GroupObject, std::shared_ptr<GroupObject>>(
      module, "Group", "Ranks that make collective calls together, in one order.")
      .def_property_readonly("rank",
                             [](const GroupObject& self) { return self.get().rank().value(); })
      .def_property_readonly("size", [](const GroupObject& self) { return self.get().size(); })
      .def_property_readonly(
          "global_rank", [](const GroupObject& self) { return self.get().global_rank().value(); })
      .def_property_readonly("global_ranks",
                             [](const GroupObject& self) {
                               py::list ranks;
                               for (GlobalRank rank : GlobalRanks(self.get())) {
                                 ranks.append(rank.value());
                               }
                               return ranks;
                             })
      .def_property_readonly("backend",
                             [](const GroupObject& self) { return self.get().options().backend; })
      .def_property_readonly("timeout",
                             [](const GroupObject& self) {
                               return absl::ToDoubleSeconds(self.get().options().timeout);
                             })
      .def(
          "shutdown",
          [](const GroupObject& self, const py::object& timeout) {
            const absl::Duration limit =
                timeout.is_none() ? absl::Seconds(5) : TimeoutFromPython(timeout);
            const absl::Time until = absl::Now() + limit;
            SignalCheck signals;
            absl::Status status;
            {
              py::gil_scoped_release release;
              Group group = self.get();
              const bool quiet = AwaitTransfers(group, until, signals.check()) &&
                                 AwaitIdle(group, until, signals.check());
              status = group.Shutdown(quiet ? std::max(until - absl::Now(), absl::ZeroDuration())
                                            : absl::ZeroDuration());
            }
            signals.RaiseIfInterrupted();
            RaiseIfError(status);
          },
          py::arg("timeout") = py::none(),
          "Lets calls in flight end, for at most `timeout` (5 s by default), gives the rest up,\n"
          "and leaves. Further calls raise RuntimeError. Ctrl-C gives them up at once.")
      .def("__repr__", [](const GroupObject& self) {
        const Group& group = self.get();
        return absl::StrCat("leafpack.Group(rank=", group.rank().value(), ", size=", group.size(),
                            ", backend='", group.options().backend, "')");
      });

  module.def(
      "group_from_environment",
      [](const std::string& backend, const py::object& timeout, const std::string& interface) {
        const GroupOptions options = OptionsFromPython(backend, timeout, interface);
        return MakeGroup([&](const InterruptCheck& interrupt) {
          return GroupFromEnvironment(options, interrupt);
        });
      },
      py::kw_only(), py::arg("backend") = "gloo", py::arg("timeout") = py::none(),
      py::arg("interface") = "",
      "The group of all ranks of the job, from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.");
  module.def(
      "group_from_file",
      [](const py::object& path, int rank, int size, const std::string& backend,
         const py::object& timeout, const std::string& interface) {
        const std::string file = py::module_::import("os").attr("fspath")(path).cast<std::string>();
        const GroupOptions options = OptionsFromPython(backend, timeout, interface);
        return MakeGroup([&](const InterruptCheck&) {
          return GroupFromFile(file, rank, size, options);
        });
      },
      py::arg("path"), py::arg("rank"), py::arg("size"), py::kw_only(), py::arg("backend") = "gloo",
      py::arg("timeout") = py::none(), py::arg("interface") = "",
      "A group of `size` ranks that meet in a file that all of them see.");
  module.def(
      "group_from_url",
      [](const std::string& url, const py::object& rank, const py::object& size,
         const std::string& backend, const py::object& timeout, const std::string& interface) {
        const GroupOptions options = OptionsFromPython(backend, timeout, interface);
        const int own_rank = rank.is_none() ? -1 : Int32FromPython(rank, "rank");
        const int own_size = size.is_none() ? -1 : Int32FromPython(size, "size");
        return MakeGroup([&](const InterruptCheck& interrupt) {
          return GroupFromUrl(url, own_rank, own_size, options, interrupt);
        });
      },
      py::arg("url") = "env://", py::arg("rank") = py::none(), py::arg("size") = py::none(),
      py::kw_only(), py::arg("backend") = "gloo", py::arg("timeout") = py::none(),
      py::arg("interface") = "",
      "The group of `size` ranks that meet at env://, tcp://HOST:PORT (rank 0 listens) or file://PATH.");
  module.def(
      "group_from_store",
      [](const py::object& store, int rank, int size, const std::string& prefix,
         const std::string& backend, const py::object& timeout, const std::string& interface) {
        const GroupOptions options = OptionsFromPython(backend, timeout, interface);
        return std::make_shared<GroupObject>(
            ValueOrRaise(GroupOverStore(store, prefix, rank, size, options)));
      },
      py::arg("store"), py::arg("rank"), py::arg("size"), py::kw_only(), py::arg("prefix"),
      py::arg("backend") = "gloo", py::arg("timeout") = py::none(), py::arg("interface") = "",
      "A group over a store of torch.distributed. `prefix` is equal on all ranks and never used twice\n"
      "on one store.");
  module.def(
      "new_group",
      [](const GroupObject& parent, const py::list& ranks, const std::string& name,
         const py::object& backend, const py::object& timeout,
         const py::object& interface) -> py::object {
        SubGroupOptions options = SubGroupFromPython(parent.get(), backend, timeout, interface);
        options.name = name;
        std::vector<GlobalRank> members;
        for (py::handle rank : ranks) members.emplace_back(Int32FromPython(rank, "a rank"));
        const bool is_member =
            std::find(members.begin(), members.end(), parent.get().global_rank()) != members.end();
        SignalCheck signals;
        absl::StatusOr<Group> group = [&] {
          py::gil_scoped_release release;
          return NewGroup(parent.get(), members, options);
        }();
        signals.RaiseIfInterrupted();
        // What the list has wrong is an error on every rank.
        if (!is_member && absl::IsFailedPrecondition(group.status())) return py::none();
        return py::cast(std::make_shared<GroupObject>(ValueOrRaise(std::move(group))));
      },
      py::arg("parent"), py::arg("ranks"), py::arg("name"), py::arg("backend"), py::arg("timeout"),
      py::arg("interface"), "None on a rank that is no member.");
  module.def(
      "split_group",
      [](const GroupObject& parent, const py::object& color, const py::object& key,
         const py::object& backend, const py::object& timeout,
         const py::object& interface) -> py::object {
        SubGroupOptions options;
        std::optional<int> own_color;
        int own_key = 0;
        const std::string where = WhereOf("split", py::none(), parent.get());
        RefuseWhatThrows(parent.get(), CollectiveKind::kSplit, where, [&] {
          options = SubGroupFromPython(parent.get(), backend, timeout, interface);
          if (!color.is_none()) own_color = Int32FromPython(color, "color");
          own_key = Int32FromPython(key, "key");
        });
        SignalCheck signals;
        options.interrupt = signals.check();
        absl::StatusOr<std::optional<Group>> group = [&] {
          py::gil_scoped_release release;
          return SplitGroup(parent.get(), own_color, own_key, options);
        }();
        signals.RaiseIfInterrupted();
        std::optional<Group> made = ValueOrRaise(std::move(group));
        if (!made.has_value()) return py::none();
        return py::cast(std::make_shared<GroupObject>(*std::move(made)));
      });
  module.def(
      "shut_down_groups",
      [](double seconds) {
        py::gil_scoped_release release;
        ShutdownAllGroups(absl::Seconds(seconds));
      },
      py::arg("seconds"));
  module.def("group_around", [](const py::object& process_group, const py::list& ranks) {
    std::vector<GlobalRank> global_ranks;
    for (py::handle rank : ranks) global_ranks.emplace_back(rank.cast<int>());
    return std::make_shared<GroupObject>(
        ValueOrRaise(GroupAround(process_group, std::move(global_ranks))));
  });
}

}  // namespace leafpack::python
