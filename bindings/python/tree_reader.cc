#include "bindings/python/tree_reader.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

#include "bindings/python/python_values.h"
#include "bindings/python/tensor_dict_object.h"
#include "bindings/python/tree_record.h"
#include "bindings/python/tree_walk.h"
#include "bindings/python/type_kinds.h"

namespace leafpack::python {
namespace {

// The records of trees that were read, the latest first. Lives for ever: Python may be gone when
// static objects are destroyed.
constexpr size_t kMaxRecords = 64;
// Records of other trees that are tried on a tree that was not seen before.
constexpr int kMaxTries = 4;

std::vector<std::unique_ptr<Record>>& Records() {
  static auto* records = new std::vector<std::unique_ptr<Record>>();
  return *records;
}

void MoveToFront(size_t index) {
  auto& records = Records();
  const auto begin = records.begin();
  const auto at = begin + static_cast<std::ptrdiff_t>(index);
  std::rotate(begin, at, at + 1);
}

// The record that fits `tree`, with the leaves read; null if there is none.
Record* FindRecord(PyObject* tree, const LeafChoice& choice, FlatTree* flat) {
  auto& records = Records();
  auto fits = [&](size_t i) {
    if (records[i]->has_plain_values && !choice.plain_values) return false;
    if (!Replay(*records[i], tree, flat)) return false;
    if (i != 0) MoveToFront(i);
    records[0]->last_root = tree;
    return true;
  };
  size_t seen = records.size();
  for (size_t i = 0; i < records.size(); ++i) {
    if (records[i]->last_root != tree) continue;
    if (fits(i)) return records[0].get();
    seen = i;
    break;
  }
  int tries = 0;
  for (size_t i = 0; i < records.size() && tries < kMaxTries; ++i) {
    if (i == seen) continue;
    const Node& root = records[i]->nodes.back();
    if (root.type.ptr() != reinterpret_cast<PyObject*>(Py_TYPE(tree))) continue;
    ++tries;
    if (fits(i)) return records[0].get();
  }
  return nullptr;
}

// The leaves of `flat` whose mask is true, with `paths`.
FlatTree Masked(FlatTree flat, const std::vector<bool>& mask,
                std::shared_ptr<const PathList> paths) {
  FlatTree result;
  result.paths = std::move(paths);
  size_t value = 0;
  for (size_t i = 0; i < flat.size(); ++i) {
    const bool is_value =
        value < flat.non_tensors.size() && flat.non_tensors[value].leaf == i;
    if (mask[i]) {
      if (is_value) {
        result.non_tensors.push_back(
            {result.leaves.size(), std::move(flat.non_tensors[value].value)});
      }
      result.leaves.push_back(std::move(flat.leaves[i]));
    }
    if (is_value) ++value;
  }
  return result;
}

std::shared_ptr<const PathList> MaskedPaths(const PathList& paths, const std::vector<bool>& mask) {
  std::vector<NestedKey> taken;
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i]) taken.push_back(paths[i]);
  }
  return SharedPaths(std::make_shared<const PathList>(std::move(taken)));
}

FlatTree WithoutValues(FlatTree flat) {
  if (flat.non_tensors.empty()) return flat;
  std::vector<bool> mask(flat.size(), true);
  for (const NonTensorLeaf& value : flat.non_tensors) mask[value.leaf] = false;
  std::shared_ptr<const PathList> paths = MaskedPaths(*flat.paths, mask);
  return Masked(std::move(flat), mask, std::move(paths));
}

// Leaves for which the predicate holds, of a tree without plain values. `record` may be null.
FlatTree Filter(FlatTree flat, Record* record, PyObject* predicate) {
  py::list tuples;
  if (record != nullptr && record->path_tuples.size() == flat.size()) {
    tuples = record->path_tuples;
  } else {
    for (size_t i = 0; i < flat.size(); ++i) {
      tuples.append(py::reinterpret_steal<py::object>(PathToPython((*flat.paths)[i])));
    }
    if (record != nullptr) record->path_tuples = tuples;
  }
  std::vector<bool> mask(flat.size());
  for (size_t i = 0; i < flat.size(); ++i) {
    py::object leaf = py::reinterpret_steal<py::object>(TensorToPython(flat.leaves[i]));
    py::object path = tuples[i];
    py::object taken = py::reinterpret_steal<py::object>(
        PyObject_CallFunctionObjArgs(predicate, path.ptr(), leaf.ptr(), nullptr));
    if (!taken) throw py::error_already_set();
    const int truth = PyObject_IsTrue(taken.ptr());
    if (truth < 0) throw py::error_already_set();
    mask[i] = truth != 0;
  }
  // The predicate is Python code that may have read another tree: look for the record again.
  const bool known =
      record != nullptr &&
      std::any_of(Records().begin(), Records().end(),
                  [&](const std::unique_ptr<Record>& r) { return r.get() == record; }) &&
      record->paths == flat.paths;
  if (known && record->masked_paths != nullptr && record->mask == mask) {
    return Masked(std::move(flat), mask, record->masked_paths);
  }
  std::shared_ptr<const PathList> shared = MaskedPaths(*flat.paths, mask);
  if (known) {
    record->mask = mask;
    record->masked_paths = shared;
  }
  return Masked(std::move(flat), mask, std::move(shared));
}

// What of a tree that was read takes part.
FlatTree Choose(FlatTree flat, Record* record, const LeafChoice& choice) {
  switch (choice.kind) {
    case LeafChoice::Kind::kAll:
      return flat;
    case LeafChoice::Kind::kTensors:
      return WithoutValues(std::move(flat));
    case LeafChoice::Kind::kPredicate:
      if (!flat.non_tensors.empty()) record = nullptr;
      return Filter(WithoutValues(std::move(flat)), record, choice.predicate);
  }
  return flat;
}

}  // namespace

std::shared_ptr<const PathList> SharedPaths(std::shared_ptr<const PathList> paths) {
  static auto* known = new absl::flat_hash_map<Digest128, std::weak_ptr<const PathList>>();
  static size_t purge_at = 256;
  auto& slot = (*known)[paths->digest()];
  if (std::shared_ptr<const PathList> old = slot.lock(); old != nullptr) {
    return old->paths() == paths->paths() ? old : paths;
  }
  slot = paths;
  if (known->size() > purge_at) {
    absl::erase_if(*known, [](const auto& item) { return item.second.expired(); });
    purge_at = std::max<size_t>(256, 2 * known->size());
  }
  return paths;
}

absl::StatusOr<FlatTree> ReadTree(PyObject* tree, const LeafChoice& choice) {
  if (TypeOf(Py_TYPE(tree)).kind == TypeKind::kLeafpackTensorDict) {
    return Choose(Flatten(TensorDictOf(tree)), nullptr, choice);
  }

  FlatTree found;
  if (Record* record = FindRecord(tree, choice, &found); record != nullptr) {
    return Choose(std::move(found), record, choice);
  }

  TreeWalk walk(choice);
  if (absl::Status status = walk.Run(tree); !status.ok()) return status;
  // Canonical places of the leaves, in the order in which the walk met them.
  const auto& met = walk.leaves();
  std::vector<uint32_t> order(met.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return met[a].first < met[b].first; });
  std::vector<uint32_t> place(met.size());
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<uint32_t>(i);
  absl::StatusOr<FlatTree> flat = walk.TakeLeaves();
  if (!flat.ok()) return flat.status();
  flat->paths = SharedPaths(std::move(flat->paths));

  Record* record = nullptr;
  if (walk.recordable()) {
    auto& records = Records();
    for (auto& old : records) {
      if (old->last_root == tree) old->last_root = nullptr;
    }
    if (records.size() == kMaxRecords) records.pop_back();
    records.insert(records.begin(), walk.TakeRecord(place, flat->paths));
    record = records.front().get();
    record->last_root = tree;
  }
  return Choose(*std::move(flat), record, choice);
}

}  // namespace leafpack::python
