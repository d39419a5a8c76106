#include "distributed/backends/shm/shm_backend.h"

#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "absl/functional/function_ref.h"
#include "absl/log/absl_log.h"
#include "absl/strings/str_cat.h"

#include "distributed/backends/shm/open_arena.h"
#include "distributed/backends/shm/packing_context.h"
#include "distributed/backends/shm/shared_memory.h"
#include "distributed/core/arena.h"
#include "distributed/core/channel/c10d_key_value_store.h"
#include "distributed/core/channel/key_value_store.h"

namespace leafpack {
namespace {

[[maybe_unused]] const bool kRegistered =
    RegisterBackend("shm", []() -> absl::StatusOr<std::unique_ptr<Backend>> {
      return std::make_unique<ShmBackend>();
    });

constexpr std::string_view kOther = "gloo";

class ShmContext : public DataContext, public ArenaContext {
 public:
  explicit ShmContext(std::shared_ptr<shm::SharedMemory> memory) : memory_(std::move(memory)) {}
  ~ShmContext() override { memory_->Abort(); }

  absl::StatusOr<std::unique_ptr<DataWork>> AllReduce(std::vector<LeafView> views,
                                                      const ReduceOp& op) override {
    return memory_->AllReduce(std::move(views), op.kind);
  }
  absl::StatusOr<std::unique_ptr<DataWork>> Exchange(std::vector<Transfer> sends,
                                                     std::vector<Transfer> receives) override {
    return memory_->Exchange(std::move(sends), std::move(receives));
  }
  absl::StatusOr<std::shared_ptr<const Arena>> Share(int64_t bytes, KeyValueStore& store,
                                                     absl::FunctionRef<absl::Status()> poll,
                                                     absl::Time deadline) override {
    absl::StatusOr<std::shared_ptr<const Arena>> arena = shm::OpenArena(
        store, memory_->rank(), memory_->size(), bytes, deadline, [&] { return poll(); });
    if (!absl::IsFailedPrecondition(arena.status())) return arena;
    return absl::UnimplementedError(
        absl::StrCat("not all ranks share memory (", arena.status().message(), ")"));
  }
  absl::StatusOr<std::unique_ptr<DataWork>> AllReduceShared(std::vector<LeafView> views,
                                                            std::vector<const Arena*> arenas,
                                                            const ReduceOp& op) override {
    return memory_->AllReduce(std::move(views), op.kind, std::move(arenas));
  }
  void Abort() override { memory_->Abort(); }

 private:
  const std::shared_ptr<shm::SharedMemory> memory_;
};

// Another backend in the place of this one, since not all ranks share memory.
class OtherContext : public shm::PackingContext, public ArenaContext {
 public:
  OtherContext(std::unique_ptr<Backend> backend, std::shared_ptr<DataContext> context,
               std::string reason)
      : PackingContext(std::move(backend), std::move(context)), reason_(std::move(reason)) {}

  absl::StatusOr<std::shared_ptr<const Arena>> Share(int64_t, KeyValueStore&,
                                                     absl::FunctionRef<absl::Status()>,
                                                     absl::Time) override {
    return absl::UnimplementedError(absl::StrCat("not all ranks share memory (", reason_, ")"));
  }
  absl::StatusOr<std::unique_ptr<DataWork>> AllReduceShared(std::vector<LeafView> views,
                                                            std::vector<const Arena*>,
                                                            const ReduceOp& op) override {
    return AllReduce(std::move(views), op);
  }

 private:
  const std::string reason_;
};

}  // namespace

absl::Status ShmBackend::SupportsAllReduce(at::ScalarType dtype, ReduceOpKind op,
                                           c10::DeviceType device) const {
  if (device != c10::DeviceType::CPU) {
    return absl::UnimplementedError(absl::StrCat("the shm backend reduces CPU tensors, not ",
                                                 c10::DeviceTypeName(device, true)));
  }
  return CheckOpAllowed(op, dtype);
}

absl::Status ShmBackend::SupportsExchange(at::ScalarType /*dtype*/,
                                          c10::DeviceType device) const {
  if (device == c10::DeviceType::CPU) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("the shm backend moves CPU tensors, not ",
                                               c10::DeviceTypeName(device, true)));
}

// A message is a few steps of two ranks; each byte is copied in, reduced and copied out. Packing is
// sending, so it costs nothing beside that.
BackendCost ShmBackend::Cost(int ranks) const {
  if (ranks <= 1) return {};
  return {.per_message = 2e-6, .per_byte = 0.1e-9 * ranks, .pack_per_byte = 0};
}

absl::StatusOr<std::shared_ptr<DataContext>> ShmBackend::Open(const DataContextOptions& options,
                                                              absl::Time deadline) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", options.rank, " is not in a group of ", options.size));
  }
  const std::unique_ptr<KeyValueStore> store = WrapC10dStore(options.store, "shm");
  absl::StatusOr<std::shared_ptr<shm::SharedMemory>> memory =
      shm::SharedMemory::Open(*store, options.rank, options.size, deadline);
  if (memory.ok()) return std::make_shared<ShmContext>(*std::move(memory));
  if (!absl::IsFailedPrecondition(memory.status())) return memory.status();
  return OpenOther(options, deadline, memory.status());
}

absl::StatusOr<std::shared_ptr<DataContext>> ShmBackend::OpenOther(
    const DataContextOptions& options, absl::Time deadline, const absl::Status& reason) {
  absl::StatusOr<std::unique_ptr<Backend>> other = MakeBackend(kOther);
  if (!other.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat("not all ranks share memory (", reason.message(), "), and the backend '",
                     kOther, "' is not linked in to take its place"));
  }
  if (options.rank == 0 && !told_.exchange(true)) {
    ABSL_LOG(WARNING) << "leafpack: not all ranks share memory (" << reason.message()
                 << "); the group uses the backend '" << kOther << "'";
  }
  DataContextOptions theirs = options;
  theirs.store = c10::make_intrusive<c10d::PrefixStore>(std::string(kOther), options.store);
  absl::StatusOr<std::shared_ptr<DataContext>> context = (*other)->Open(theirs, deadline);
  if (!context.ok()) return context.status();
  if ((*other)->PacksForItself()) return context;
  return std::make_shared<OtherContext>(*std::move(other), *std::move(context),
                                        std::string(reason.message()));
}

}  // namespace leafpack
