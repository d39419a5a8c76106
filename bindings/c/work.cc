// leafpack_work and leafpack_result.
#include "bindings/c/work.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

#include "bindings/c/guard.h"
#include "bindings/c/handles.h"
#include "bindings/c/leafpack.h"
#include "bindings/c/options.h"
#include "distributed/tree/tree_work.h"
#include "tensordict/flat_tree.h"

namespace leafpack::c {
namespace {

using Transfer = leafpack_work::Transfer;

// Calls `use` with the TreeWork or the TransferWork, which have the same shape.
template <typename Use>
auto OnWork(const leafpack_work& work, Use&& use) {
  if (const auto* tree = std::get_if<TreeWork>(&work.work)) return use(*tree);
  return use(std::get<Transfer>(work.work).work);
}

[[noreturn]] void FailIndex(size_t index, size_t size, const char* what) {
  Fail(absl::OutOfRangeError(absl::StrCat("index is ", index, " among ", size, " ", what)));
}

}  // namespace

leafpack_result ResultOf(const Transfer& transfer) {
  leafpack_result result;
  if (transfer.kind == Transfer::Kind::kSend) return result;
  const GroupRank source = ValueOf(transfer.work.source());
  result.source = ValueOf(transfer.group.ToGlobal(source)).value();
  if (transfer.kind == Transfer::Kind::kReceiveTree) {
    result.result.trees.push_back(ValueOf(transfer.work.received()));
  } else if (transfer.kind == Transfer::Kind::kReceiveInto) {
    result.result.trees.push_back(
        {.flat = Flatten(*transfer.tree), .spec = nullptr, .dict = transfer.tree});
  } else {
    result.result.bytes.push_back(ValueOf(transfer.work.bytes()));
  }
  return result;
}

}  // namespace leafpack::c

using namespace leafpack::c;  // NOLINT(google-build-using-namespace): the functions of leafpack.h

leafpack_error* leafpack_work_wait(const leafpack_work* work, int64_t timeout_ms) {
  return Guard([&] {
    const auto object = Need(work, "work");
    const absl::Duration timeout = ReadWaitTimeout(timeout_ms);
    CheckOk(OnWork(*object, [&](const auto& held) { return held.Wait(timeout); }));
  });
}

leafpack_error* leafpack_work_is_done(const leafpack_work* work, int32_t* done) {
  return Guard([&] {
    NeedPointer(done, "done");
    *done = OnWork(*Need(work, "work"), [](const auto& held) { return held.IsDone(); }) ? 1 : 0;
  });
}

leafpack_error* leafpack_work_cancel(const leafpack_work* work) {
  return Guard([&] { OnWork(*Need(work, "work"), [](const auto& held) { held.Cancel(); }); });
}

leafpack_error* leafpack_work_result(const leafpack_work* work, leafpack_result** result) {
  return Guard([&] {
    NeedPointer(result, "result");
    const auto object = Need(work, "work");
    if (!OnWork(*object, [](const auto& held) { return held.IsDone(); })) {
      Fail(absl::FailedPreconditionError("the call is not over: wait for it first"));
    }
    CheckOk(OnWork(*object, [](const auto& held) { return held.Wait(); }));
    if (const auto* tree = std::get_if<leafpack::TreeWork>(&object->work)) {
      *result = MakeHandle(leafpack_result{tree->result()});
    } else {
      *result = MakeHandle(ResultOf(std::get<leafpack_work::Transfer>(object->work)));
    }
  });
}

leafpack_error* leafpack_work_stats(const leafpack_work* work, leafpack_stats* stats) {
  return Guard([&] {
    SizeToFill(stats, kFirstSize<leafpack_stats>, "stats");
    const auto object = Need(work, "work");
    leafpack::CollectiveStats measured;
    if (const auto* tree = std::get_if<leafpack::TreeWork>(&object->work)) {
      measured = tree->stats();
    }
    FillStruct(StatsOf(measured), stats, "stats");
  });
}

void leafpack_work_free(leafpack_work* work) { FreeHandle(work); }

leafpack_error* leafpack_result_num_trees(const leafpack_result* result, size_t* num_trees) {
  return Guard([&] {
    NeedPointer(num_trees, "num_trees");
    *num_trees = Need(result, "result")->result.trees.size();
  });
}

leafpack_error* leafpack_result_tree(const leafpack_result* result, size_t index,
                                     leafpack_tree** tree) {
  return Guard([&] {
    NeedPointer(tree, "tree");
    const auto object = Need(result, "result");
    const auto& trees = object->result.trees;
    if (index >= trees.size()) FailIndex(index, trees.size(), "trees");
    *tree = MakeHandle(leafpack_tree{ValueOf(trees[index].ToTensorDict())});
  });
}

leafpack_error* leafpack_result_num_strings(const leafpack_result* result, size_t* num_strings) {
  return Guard([&] {
    NeedPointer(num_strings, "num_strings");
    *num_strings = Need(result, "result")->result.bytes.size();
  });
}

leafpack_error* leafpack_result_string(const leafpack_result* result, size_t index,
                                       const void** data, size_t* size) {
  return Guard([&] {
    NeedPointer(data, "data");
    NeedPointer(size, "size");
    const auto object = Need(result, "result");
    const auto& strings = object->result.bytes;
    if (index >= strings.size()) FailIndex(index, strings.size(), "strings of bytes");
    *data = strings[index].data();
    *size = strings[index].size();
  });
}

leafpack_error* leafpack_result_source(const leafpack_result* result, int32_t* rank) {
  return Guard([&] {
    NeedPointer(rank, "rank");
    const auto object = Need(result, "result");
    if (!object->source.has_value()) {
      Fail(absl::FailedPreconditionError("the result is that of no receive"));
    }
    *rank = *object->source;
  });
}

void leafpack_result_free(leafpack_result* result) { FreeHandle(result); }
