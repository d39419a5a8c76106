// leafpack._C.broadcast, all_gather, gather, scatter, all_to_all, their likes for bytes, barrier, and
// share.
#include <pybind11/pybind11.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "bindings/python/bind.h"
#include "bindings/python/call_arguments.h"
#include "bindings/python/collective_call.h"
#include "bindings/python/errors.h"
#include "distributed/tree/barrier.h"
#include "distributed/tree/collectives.h"
#include "distributed/tree/share.h"

namespace leafpack::python {
namespace {

bool IsHere(const Root& root, const Group& group) {
  absl::StatusOr<GroupRank> rank = root.In(group);
  return rank.ok() && *rank == group.rank();
}

// As torch.distributed has it where neither is given: rank 0 of the job.
Root RootOrFirst(const py::object& global, const py::object& in_group, const char* argument) {
  return RootFromPython(global, in_group, argument).value_or(Root(GlobalRank(0)));
}

py::list TreesToPython(const TreeResult& result) {
  py::list list;
  for (const ReceivedTree& tree : result.trees) list.append(ReceivedToPython(tree, py::handle()));
  return list;
}

// The one tree of a result; None on a rank that gets none.
py::object OneToPython(const TreeResult& result, py::handle given, bool lifted = false) {
  if (result.trees.empty()) return py::none();
  return ReceivedToPython(result.trees[0], given, lifted);
}

py::object BroadcastPython(const GroupObject& group, const py::object& tree, const py::object& src,
                           const py::object& group_src, const CallArguments& arguments) {
  return CallCollective(group, CollectiveKind::kBroadcast, "broadcast", arguments, [&] {
    const Root root = RequiredRoot(src, group_src, "src");
    const bool is_root = IsHere(root, group.get());
    if (is_root && tree.is_none()) {
      throw py::value_error("tree is None, and this rank is to send it");
    }
    std::optional<TreeArg> argument =
        is_root ? std::optional<TreeArg>(SentTree(tree)) : WrittenTree(tree);
    PreparedCall call;
    call.keep_alive = tree;
    call.finish = [tree](const TreeResult& result) { return OneToPython(result, tree); };
    call.run = [argument, root, &group](const CallOptions& options) {
      return Broadcast(argument, root, group.get(), options);
    };
    call.start = [argument, root, &group](const CallOptions& options) {
      return BroadcastAsync(argument, root, group.get(), options);
    };
    return call;
  });
}

py::object AllGatherPython(const GroupObject& group, const py::object& tree,
                           const CallArguments& arguments) {
  return CallCollective(group, CollectiveKind::kAllGather, "all_gather", arguments, [&] {
    const TreeArg argument = SentTree(tree);
    PreparedCall call;
    call.keep_alive = tree;
    call.finish = [](const TreeResult& result) -> py::object { return TreesToPython(result); };
    call.run = [argument, &group](const CallOptions& options) {
      return AllGather(argument, group.get(), options);
    };
    call.start = [argument, &group](const CallOptions& options) {
      return AllGatherAsync(argument, group.get(), options);
    };
    return call;
  });
}

Joining JoiningFromPython(const py::object& joining) {
  if (py::isinstance<py::str>(joining)) {
    const std::string_view text = TextFromPython(joining, "joining");
    if (text == "stack") return Joining::kStack;
    if (text == "concat") return Joining::kConcat;
  }
  throw py::value_error(absl::StrCat("joining must be \"stack\" or \"concat\", not ",
                                     py::repr(joining).cast<std::string>()));
}

py::object AllGatherJoinedPython(const GroupObject& group, const py::object& tree,
                                 const py::object& joining, const py::object& out,
                                 const CallArguments& arguments) {
  return CallCollective(group, CollectiveKind::kAllGather, "all_gather_joined", arguments, [&] {
    const Joining how = JoiningFromPython(joining);
    const TreeArg argument = SentTree(tree);
    const std::optional<TreeArg> written = WrittenTree(out);
    PreparedCall call;
    call.keep_alive = py::make_tuple(tree, out);
    call.finish = [out, how, ranks = group.get().size()](const TreeResult& result) {
      return ReceivedToPython(result.trees.at(0), out, /*lifted=*/how == Joining::kStack,
                              /*times=*/how == Joining::kStack ? 1 : ranks);
    };
    call.run = [argument, how, written, &group](const CallOptions& options) {
      return AllGatherJoined(argument, how, written, group.get(), options);
    };
    call.start = [argument, how, written, &group](const CallOptions& options) {
      return AllGatherJoinedAsync(argument, how, written, group.get(), options);
    };
    return call;
  });
}

py::object GatherPython(const GroupObject& group, const py::object& tree, const py::object& dst,
                        const py::object& group_dst, bool stack, const CallArguments& arguments) {
  const char* const call_name = stack ? "gather_and_stack" : "gather";
  return CallCollective(group, CollectiveKind::kGather, call_name, arguments, [&] {
    const Root root = RootOrFirst(dst, group_dst, "dst");
    const TreeArg argument = SentTree(tree);
    const bool is_root = IsHere(root, group.get());
    PreparedCall call;
    call.keep_alive = tree;
    if (stack) {
      call.finish = [](const TreeResult& result) {
        return OneToPython(result, py::handle(), /*lifted=*/true);
      };
      call.run = [argument, root, &group](const CallOptions& options) {
        return GatherAndStack(argument, root, group.get(), options);
      };
      call.start = [argument, root, &group](const CallOptions& options) {
        return GatherAndStackAsync(argument, root, group.get(), options);
      };
    } else {
      call.finish = [is_root](const TreeResult& result) -> py::object {
        if (!is_root) return py::none();
        return TreesToPython(result);
      };
      call.run = [argument, root, &group](const CallOptions& options) {
        return Gather(argument, root, group.get(), options);
      };
      call.start = [argument, root, &group](const CallOptions& options) {
        return GatherAsync(argument, root, group.get(), options);
      };
    }
    return call;
  });
}

py::object ScatterPython(const GroupObject& group, const py::object& tree, const py::object& trees,
                         const py::object& src, const py::object& group_src,
                         const CallArguments& arguments) {
  return CallCollective(group, CollectiveKind::kScatter, "scatter", arguments, [&] {
    const Root root = RootOrFirst(src, group_src, "src");
    std::vector<TreeArg> sent;
    if (IsHere(root, group.get())) {
      if (trees.is_none()) {
        throw py::value_error("trees is None, and this rank is to send them");
      }
      sent = SentTrees(trees, "trees");
    } else if (!trees.is_none()) {
      const GroupRank sender = ValueOrRaise(root.In(group.get()));
      throw py::value_error(absl::StrCat("trees must be None here: rank ",
                                         ValueOrRaise(group.get().ToGlobal(sender)).value(),
                                         " is the one that sends"));
    }
    std::optional<TreeArg> written = WrittenTree(tree);
    PreparedCall call;
    call.keep_alive = py::make_tuple(tree, trees);
    call.finish = [tree](const TreeResult& result) { return OneToPython(result, tree); };
    call.run = [written, sent, root, &group](const CallOptions& options) {
      return Scatter(written, sent, root, group.get(), options);
    };
    call.start = [written, sent, root, &group](const CallOptions& options) {
      return ScatterAsync(written, sent, root, group.get(), options);
    };
    return call;
  });
}

py::object AllToAllPython(const GroupObject& group, const py::object& trees,
                          const CallArguments& arguments) {
  return CallCollective(group, CollectiveKind::kAllToAll, "all_to_all", arguments, [&] {
    const std::vector<TreeArg> sent = SentTrees(trees, "trees");
    PreparedCall call;
    call.keep_alive = trees;
    call.finish = [](const TreeResult& result) -> py::object { return TreesToPython(result); };
    call.run = [sent, &group](const CallOptions& options) {
      return AllToAll(sent, group.get(), options);
    };
    call.start = [sent, &group](const CallOptions& options) {
      return AllToAllAsync(sent, group.get(), options);
    };
    return call;
  });
}

// Bytes.

py::list BytesToPython(const TreeResult& result) {
  py::list list;
  for (const std::string& bytes : result.bytes) list.append(py::bytes(bytes));
  return list;
}

PreparedCall OfBytes(std::function<absl::StatusOr<TreeResult>(const CallOptions&)> run,
                     std::function<absl::StatusOr<TreeWork>(const CallOptions&)> start,
                     std::function<py::object(const TreeResult&)> finish) {
  PreparedCall call;
  call.run = std::move(run);
  call.start = std::move(start);
  call.finish = std::move(finish);
  return call;
}

py::object OneOfBytes(const TreeResult& result) { return py::bytes(result.bytes.at(0)); }

py::object BroadcastBytesPython(const GroupObject& group, const py::object& data,
                                const py::object& src, const py::object& group_src,
                                const CallArguments& arguments) {
  std::optional<BytesView> view;
  return CallCollective(group, CollectiveKind::kBroadcast, "broadcast_bytes", arguments, [&] {
    const Root root = RequiredRoot(src, group_src, "src");
    if (IsHere(root, group.get())) view.emplace(data, "data");
    const std::string_view sent = view.has_value() ? view->view() : std::string_view();
    return OfBytes(
        [root, sent, &group](const CallOptions& options) {
          return BroadcastBytes(sent, root, group.get(), options);
        },
        [root, sent, &group](const CallOptions& options) {
          return BroadcastBytesAsync(sent, root, group.get(), options);
        },
        OneOfBytes);
  });
}

py::object AllGatherBytesPython(const GroupObject& group, const py::object& data,
                                const CallArguments& arguments) {
  std::optional<BytesView> view;
  return CallCollective(group, CollectiveKind::kAllGather, "all_gather_bytes", arguments, [&] {
    view.emplace(data, "data");
    return OfBytes(
        [&view, &group](const CallOptions& options) {
          return AllGatherBytes(view->view(), group.get(), options);
        },
        [&view, &group](const CallOptions& options) {
          return AllGatherBytesAsync(view->view(), group.get(), options);
        },
        [](const TreeResult& result) -> py::object { return BytesToPython(result); });
  });
}

py::object GatherBytesPython(const GroupObject& group, const py::object& data,
                             const py::object& dst, const py::object& group_dst,
                             const CallArguments& arguments) {
  std::optional<BytesView> view;
  return CallCollective(group, CollectiveKind::kGather, "gather_bytes", arguments, [&] {
    const Root root = RootOrFirst(dst, group_dst, "dst");
    const bool is_root = IsHere(root, group.get());
    view.emplace(data, "data");
    return OfBytes(
        [root, &view, &group](const CallOptions& options) {
          return GatherBytes(view->view(), root, group.get(), options);
        },
        [root, &view, &group](const CallOptions& options) {
          return GatherBytesAsync(view->view(), root, group.get(), options);
        },
        [is_root](const TreeResult& result) -> py::object {
          if (!is_root) return py::none();
          return BytesToPython(result);
        });
  });
}

py::object ScatterBytesPython(const GroupObject& group, const py::object& data,
                              const py::object& src, const py::object& group_src,
                              const CallArguments& arguments) {
  return CallCollective(group, CollectiveKind::kScatter, "scatter_bytes", arguments, [&] {
    const Root root = RootOrFirst(src, group_src, "src");
    std::vector<std::string> sent;
    if (IsHere(root, group.get())) {
      if (!PyList_Check(data.ptr()) && !PyTuple_Check(data.ptr())) {
        ThrowTypeError("data", "a list or tuple of bytes, one for each rank", data);
      }
      for (py::handle item : data) sent.emplace_back(BytesView(item, "data").view());
    }
    return OfBytes(
        [root, sent, &group](const CallOptions& options) {
          return ScatterBytes(sent, root, group.get(), options);
        },
        [root, sent, &group](const CallOptions& options) {
          return ScatterBytesAsync(sent, root, group.get(), options);
        },
        OneOfBytes);
  });
}

py::object BarrierPython(const GroupObject& group, const CallArguments& arguments) {
  return CallCollective(group, CollectiveKind::kBarrier, "barrier", arguments, [&] {
    PreparedCall call;
    call.finish = [](const TreeResult&) -> py::object { return py::none(); };
    call.run = [&group](const CallOptions& options) -> absl::StatusOr<TreeResult> {
      if (absl::Status status = Barrier(group.get(), options); !status.ok()) return status;
      return TreeResult();
    };
    return call;
  });
}

py::object SharePython(const GroupObject& group, const py::object& tree,
                       const CallArguments& arguments) {
  return CallCollective(group, kShareCollective, "share", arguments, [&] {
    const TreeArg argument = SentTree(tree);
    PreparedCall call;
    call.keep_alive = tree;
    call.finish = [](const TreeResult& result) { return OneToPython(result, py::handle()); };
    call.run = [argument, &group](const CallOptions& options) {
      return ShareTree(argument, group.get(), options);
    };
    return call;
  });
}

}  // namespace

// No argument but the group has a C++ type: a wrong one must be refused to the other ranks too.
void BindCollectives(py::module_& module) {
  module.def("broadcast",
             [](const GroupObject& group, py::object tree, py::object src, py::object group_src,
                py::object async_op, py::object timeout, py::object name, py::object check) {
               return BroadcastPython(group, tree, src, group_src,
                                      {timeout, name, check, async_op});
             });
  module.def("all_gather", [](const GroupObject& group, py::object tree, py::object async_op,
                              py::object timeout, py::object name, py::object check) {
    return AllGatherPython(group, tree, {timeout, name, check, async_op});
  });
  module.def("all_gather_joined",
             [](const GroupObject& group, py::object tree, py::object joining, py::object out,
                py::object async_op, py::object timeout, py::object name, py::object check) {
               return AllGatherJoinedPython(group, tree, joining, out,
                                            {timeout, name, check, async_op});
             });
  module.def("gather",
             [](const GroupObject& group, py::object tree, py::object dst, py::object group_dst,
                py::object async_op, py::object timeout, py::object name, py::object check) {
               return GatherPython(group, tree, dst, group_dst, /*stack=*/false,
                                   {timeout, name, check, async_op});
             });
  module.def("gather_and_stack",
             [](const GroupObject& group, py::object tree, py::object dst, py::object group_dst,
                py::object async_op, py::object timeout, py::object name, py::object check) {
               return GatherPython(group, tree, dst, group_dst, /*stack=*/true,
                                   {timeout, name, check, async_op});
             });
  module.def("scatter",
             [](const GroupObject& group, py::object tree, py::object trees, py::object src,
                py::object group_src, py::object async_op, py::object timeout, py::object name,
                py::object check) {
               return ScatterPython(group, tree, trees, src, group_src,
                                    {timeout, name, check, async_op});
             });
  module.def("all_to_all", [](const GroupObject& group, py::object trees, py::object async_op,
                              py::object timeout, py::object name, py::object check) {
    return AllToAllPython(group, trees, {timeout, name, check, async_op});
  });

  module.def("broadcast_bytes",
             [](const GroupObject& group, py::object data, py::object src, py::object group_src,
                py::object async_op, py::object timeout, py::object name, py::object check) {
               return BroadcastBytesPython(group, data, src, group_src,
                                           {timeout, name, check, async_op});
             });
  module.def("all_gather_bytes", [](const GroupObject& group, py::object data, py::object async_op,
                                    py::object timeout, py::object name, py::object check) {
    return AllGatherBytesPython(group, data, {timeout, name, check, async_op});
  });
  module.def("gather_bytes",
             [](const GroupObject& group, py::object data, py::object dst, py::object group_dst,
                py::object async_op, py::object timeout, py::object name, py::object check) {
               return GatherBytesPython(group, data, dst, group_dst,
                                        {timeout, name, check, async_op});
             });
  module.def("scatter_bytes",
             [](const GroupObject& group, py::object data, py::object src, py::object group_src,
                py::object async_op, py::object timeout, py::object name, py::object check) {
               return ScatterBytesPython(group, data, src, group_src,
                                         {timeout, name, check, async_op});
             });

  module.def("share", [](const GroupObject& group, py::object tree, py::object timeout,
                         py::object name) {
    return SharePython(group, tree, {timeout, name, py::str("always")});
  });
  module.def("barrier", [](const GroupObject& group, py::object timeout, py::object name,
                           py::object check) {
    return BarrierPython(group, {timeout, name, check});
  });
}

}  // namespace leafpack::python
