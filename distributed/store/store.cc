#include "distributed/store/store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "distributed/store/c10d_errors.h"
#include "distributed/store/groups.h"
#include "distributed/store/open_tcp_store.h"

namespace leafpack {
namespace {

using store_internal::CatchC10d;

// c10d takes zero for "no time-out".
std::chrono::milliseconds Millis(absl::Duration timeout) {
  return std::chrono::milliseconds(absl::ToInt64Milliseconds(
      std::clamp(timeout, absl::Milliseconds(1), absl::Hours(24 * 365))));
}

absl::Status CheckTimeout(absl::Duration timeout) {
  if (timeout > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the timeout of a store must be positive, not ",
                                                 absl::FormatDuration(timeout)));
}

// What c10d cannot open it tries again for five minutes, whatever the timeout.
absl::Status CheckFile(const std::string& path) {
  if (path.empty()) return absl::InvalidArgumentError("a file store without a path");
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  struct stat found = {};
  if (stat(path.c_str(), &found) == 0) {
    if (S_ISREG(found.st_mode) && access(path.c_str(), R_OK | W_OK) == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the file store '", path, "': is no file that can be read and written"));
  }
  if (access(folder.c_str(), W_OK | X_OK) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the file store '", path, "' cannot be made: its folder is missing or not writable"));
}

std::string Named(std::string_view what, std::string_view key) {
  return absl::StrCat(what, " of '", key, "'");
}

std::vector<uint8_t> Bytes(std::string_view text) { return {text.begin(), text.end()}; }
std::string Text(const std::vector<uint8_t>& bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

struct Store::Held {
  c10::intrusive_ptr<c10d::Store> store;
};

Store::Store(c10::intrusive_ptr<c10d::Store> store)
    : held_(std::make_shared<const Held>(Held{std::move(store)})) {}

c10::intrusive_ptr<c10d::Store> Store::c10d() const { return held_->store; }

absl::StatusOr<Store> Store::Tcp(const std::string& host, int port, TcpOptions options) {
  if (absl::Status status = CheckTimeout(options.timeout); !status.ok()) return status;
  if (host.empty()) return absl::InvalidArgumentError("a TCP store without a host");
  if (port < (options.serves ? 0 : 1) || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("port ", port, " of a TCP store: want 1 to 65535"));
  }
  c10d::TCPStoreOptions tcp;
  tcp.port = static_cast<uint16_t>(port);
  tcp.isServer = options.serves;
  tcp.waitWorkers = false;
  tcp.timeout = Millis(options.timeout);
  absl::StatusOr<c10::intrusive_ptr<c10d::TCPStore>> store = store_internal::OpenTcpStore(
      host, tcp, absl::StrCat("the store at ", host, ":", port), options.timeout);
  if (!store.ok()) return store.status();
  return Store(*std::move(store));
}

absl::StatusOr<Store> Store::File(const std::string& path, absl::Duration timeout) {
  if (absl::Status status = CheckTimeout(timeout); !status.ok()) return status;
  if (absl::Status status = CheckFile(path); !status.ok()) return status;
  return CatchC10d(absl::StrCat("the file store '", path, "'"), [&]() -> absl::StatusOr<Store> {
    Store store(c10::make_intrusive<c10d::FileStore>(path, -1));
    store.held_->store->setTimeout(Millis(timeout));
    return store;
  });
}

Store Store::Hash(absl::Duration timeout) {
  Store store(c10::make_intrusive<c10d::HashStore>());
  store.held_->store->setTimeout(Millis(timeout));
  return store;
}

absl::StatusOr<Store> Store::Wrap(c10::intrusive_ptr<c10d::Store> store) {
  if (store == nullptr) return absl::InvalidArgumentError("the store is null");
  return Store(std::move(store));
}

Store Store::WithPrefix(std::string_view prefix) const {
  return Store(c10::make_intrusive<c10d::PrefixStore>(std::string(prefix), held_->store));
}

absl::StatusOr<Store> Store::Clone() const {
  return CatchC10d("clone of a store", [&]() -> absl::StatusOr<Store> {
    Store clone(held_->store->clone());
    clone.held_->store->setTimeout(held_->store->getTimeout());
    return clone;
  });
}

absl::Status Store::Set(std::string_view key, std::string_view value) {
  return CatchC10d(Named("set", key), [&]() -> absl::Status {
    held_->store->set(std::string(key), Bytes(value));
    return absl::OkStatus();
  });
}

absl::StatusOr<std::string> Store::Get(std::string_view key) {
  return CatchC10d(Named("get", key), [&]() -> absl::StatusOr<std::string> {
    return Text(held_->store->get(std::string(key)));
  });
}

absl::StatusOr<int64_t> Store::Add(std::string_view key, int64_t amount) {
  const std::string what = Named("add", key);
  return CatchC10d(what, [&]() -> absl::StatusOr<int64_t> {
    // A server of libtorch drops the client that adds to something else.
    if (held_->store->check({std::string(key)})) {
      const std::string value = Text(held_->store->get(std::string(key)));
      int64_t number = 0;
      if (!absl::SimpleAtoi(value, &number)) {
        return absl::FailedPreconditionError(
            absl::StrCat(what, ": its value is no number: '", value.substr(0, 40), "'"));
      }
      int64_t sum = 0;
      if (__builtin_add_overflow(number, amount, &sum)) {
        return absl::InvalidArgumentError(absl::StrCat(
            what, ": out of range: adding ", amount, " to ", number, " is beyond 64 bits"));
      }
    }
    return held_->store->add(std::string(key), amount);
  });
}

absl::Status Store::Wait(const std::vector<std::string>& keys, absl::Duration timeout) {
  if (absl::Status status = CheckTimeout(timeout); !status.ok()) return status;
  return CatchC10d(absl::StrCat("wait for ", absl::StrJoin(keys, ", ")), [&]() -> absl::Status {
    if (timeout == absl::InfiniteDuration()) {
      held_->store->wait(keys);
    } else {
      held_->store->wait(keys, Millis(timeout));
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<bool> Store::Check(const std::vector<std::string>& keys) {
  return CatchC10d(absl::StrCat("check of ", absl::StrJoin(keys, ", ")),
                   [&]() -> absl::StatusOr<bool> { return held_->store->check(keys); });
}

absl::StatusOr<std::string> Store::CompareSet(std::string_view key, std::string_view expected,
                                              std::string_view desired) {
  return CatchC10d(Named("compare_set", key), [&]() -> absl::StatusOr<std::string> {
    return Text(held_->store->compareSet(std::string(key), Bytes(expected), Bytes(desired)));
  });
}

absl::StatusOr<int64_t> Store::NumKeys() {
  return CatchC10d("num_keys",
                   [&]() -> absl::StatusOr<int64_t> { return held_->store->getNumKeys(); });
}

absl::StatusOr<bool> Store::Delete(std::string_view key) {
  return CatchC10d(Named("delete", key), [&]() -> absl::StatusOr<bool> {
    // A file store says true also where there was nothing.
    if (!held_->store->check({std::string(key)})) return false;
    return held_->store->deleteKey(std::string(key));
  });
}

absl::Duration Store::timeout() const { return absl::FromChrono(held_->store->getTimeout()); }

absl::Status Store::set_timeout(absl::Duration timeout) {
  if (absl::Status status = CheckTimeout(timeout); !status.ok()) return status;
  held_->store->setTimeout(Millis(timeout));
  return absl::OkStatus();
}

int Store::port() const {
  const auto* tcp = dynamic_cast<const c10d::TCPStore*>(held_->store.get());
  return tcp == nullptr ? 0 : tcp->getPort();
}

absl::StatusOr<Group> GroupFromStore(const Store& store, std::string_view prefix, int rank, int size,
                                     std::vector<GlobalRank> global_ranks, GroupOptions options) {
  return GroupFromStore(store.c10d(), prefix, rank, size, std::move(global_ranks),
                        std::move(options));
}

}  // namespace leafpack
