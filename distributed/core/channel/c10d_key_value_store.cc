// The one file of the channel that knows c10d, and where what it throws is caught.
#include "distributed/core/channel/c10d_key_value_store.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "distributed/core/channel/fork.h"

namespace leafpack {
namespace {

// For how long a connection to a TCP store may take at first; twice as long each time that it took longer.
constexpr int kFirstPatienceMs = 3000;
constexpr int kLongestPatienceMs = 60'000;

// The TCP store that `store` is, or is a prefix of; null if it is of another kind.
c10d::TCPStore* TcpStoreOf(c10d::Store& store) {
  if (auto* tcp = dynamic_cast<c10d::TCPStore*>(&store)) return tcp;
  auto* prefix = dynamic_cast<c10d::PrefixStore*>(&store);
  // The prefix store holds it.
  return prefix == nullptr
             ? nullptr
             : dynamic_cast<c10d::TCPStore*>(prefix->getUnderlyingNonPrefixStore().get());
}

// Whether anybody takes connections there. What cannot be found out is left to c10d.
absl::Status Probe(const std::string& host, int port, int timeout_ms) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), absl::StrCat(port).c_str(), &hints, &found) != 0) {
    return absl::OkStatus();
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  int error = 0;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    const TrackedFd fd = TrackedFd::Open([at] {
      return socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    });
    if (!fd.valid()) return absl::OkStatus();
    if (connect(fd.get(), at->ai_addr, at->ai_addrlen) == 0) return absl::OkStatus();
    error = errno;
    if (error != EINPROGRESS) continue;
    pollfd wait = {.fd = fd.get(), .events = POLLOUT, .revents = 0};
    socklen_t size = sizeof(error);
    if (poll(&wait, 1, timeout_ms) != 1) {
      error = ETIMEDOUT;
    } else if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0 || error == 0) {
      return absl::OkStatus();
    }
  }
  return absl::UnavailableError(std::strerror(error));
}

class C10dKeyValueStore : public KeyValueStore {
 public:
  C10dKeyValueStore(c10::intrusive_ptr<c10d::Store> original, std::string prefix)
      : original_(std::move(original)), prefix_(std::move(prefix)) {}

  absl::StatusOr<bool> Check(std::string_view key) override {
    return Run<bool>("check", key, [&](c10d::Store& store) { return store.check({std::string(key)}); });
  }

  absl::StatusOr<std::string> Get(std::string_view key) override {
    return Run<std::string>("get", key, [&](c10d::Store& store) {
      const std::vector<uint8_t> value = store.get(std::string(key));
      return std::string(value.begin(), value.end());
    });
  }

  absl::Status Set(std::string_view key, std::string_view value) override {
    return Run<bool>("set", key, [&](c10d::Store& store) {
             store.set(std::string(key), std::vector<uint8_t>(value.begin(), value.end()));
             return true;
           })
        .status();
  }

  absl::StatusOr<std::unique_ptr<KeyValueStore>> Clone() override {
    return std::make_unique<C10dKeyValueStore>(original_, prefix_);
  }

 private:
  template <typename T, typename F>
  absl::StatusOr<T> Run(std::string_view what, std::string_view key, F body) {
    const c10d::TCPStore* const tcp = TcpStoreOf(*original_);
    const auto failed = [&](std::string_view why) {
      return absl::UnavailableError(absl::StrCat(
          what, " of '", key, "'",
          tcp == nullptr ? "" : absl::StrCat(" at ", tcp->getHost(), ":", tcp->getPort()), ": ",
          why));
    };
    try {
      if (!store_) {
        // A clone of a TCP store tries to connect for as long as the timeout of the store, often that of a
        // whole job: that nobody is there any more is found out sooner.
        if (tcp != nullptr) {
          if (absl::Status status = Probe(tcp->getHost(), tcp->getPort(), patience_ms_);
              !status.ok()) {
            patience_ms_ = std::min(2 * patience_ms_, kLongestPatienceMs);
            return failed(status.message());
          }
        }
        store_ = c10::make_intrusive<c10d::PrefixStore>(prefix_, original_->clone());
      }
      return body(*store_);
    } catch (const std::exception& error) {
      // c10 appends a stack trace to what it says.
      std::string text = error.what();
      text.resize(std::min(text.find('\n'), text.size()));
      return failed(text);
    }
  }

  const c10::intrusive_ptr<c10d::Store> original_;
  const std::string prefix_;
  c10::intrusive_ptr<c10d::Store> store_;
  int patience_ms_ = kFirstPatienceMs;
};

}  // namespace

std::unique_ptr<KeyValueStore> WrapC10dStore(c10::intrusive_ptr<c10d::Store> store, std::string_view prefix) {
  return std::make_unique<C10dKeyValueStore>(std::move(store), std::string(prefix));
}

}  // namespace leafpack
