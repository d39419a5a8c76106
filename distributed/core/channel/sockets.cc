#include "distributed/core/channel/sockets.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <memory>
#include <set>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "distributed/core/channel/link.h"

namespace leafpack {
namespace {

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

absl::Status SystemError(std::string_view what, int error) {
  return absl::UnavailableError(absl::StrCat(what, ": ", std::strerror(error)));
}

absl::StatusOr<SocketAddress> UnixAddress(std::string_view name) {
  SocketAddress result;
  auto* address = reinterpret_cast<sockaddr_un*>(&result.storage);
  if (name.size() + 1 > sizeof address->sun_path) return absl::InvalidArgumentError("the Unix name is too long");
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  result.length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

absl::StatusOr<SocketAddress> InetAddress(const TcpAddress& address) {
  SocketAddress result;
  int ok = 0;
  if (address.v6) {
    auto* inet = reinterpret_cast<sockaddr_in6*>(&result.storage);
    inet->sin6_family = AF_INET6;
    inet->sin6_port = htons(address.port);
    ok = inet_pton(AF_INET6, address.host.c_str(), &inet->sin6_addr);
    result.length = sizeof *inet;
  } else {
    auto* inet = reinterpret_cast<sockaddr_in*>(&result.storage);
    inet->sin_family = AF_INET;
    inet->sin_port = htons(address.port);
    ok = inet_pton(AF_INET, address.host.c_str(), &inet->sin_addr);
    result.length = sizeof *inet;
  }
  if (ok != 1) return absl::InvalidArgumentError(absl::StrCat("'", address.host, "' is no numeric address"));
  return result;
}

std::string HostOf(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bits = address->sa_family == AF_INET6
                         ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr)
                         : &reinterpret_cast<const sockaddr_in*>(address)->sin_addr;
  inet_ntop(address->sa_family, bits, text, sizeof text);
  return text;
}

TrackedFd OpenSocket(int family) {
  return TrackedFd::Open([family] { return socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
}

absl::StatusOr<TrackedFd> Listen(const SocketAddress& address, int backlog, std::string_view name) {
  TrackedFd fd = OpenSocket(address.storage.ss_family);
  if (!fd.valid()) return SystemError("socket", errno);
  if (bind(fd.get(), address.get(), address.length) != 0) return SystemError(absl::StrCat("bind to ", name), errno);
  if (listen(fd.get(), backlog) != 0) return SystemError(absl::StrCat("listen on ", name), errno);
  return fd;
}

absl::StatusOr<Connecting> Connect(const SocketAddress& address) {
  Connecting result{OpenSocket(address.storage.ss_family), false};
  if (!result.fd.valid()) return SystemError("socket", errno);
  SetChannelSocketOptions(result.fd.get());
  int error = connect(result.fd.get(), address.get(), address.length) == 0 ? 0 : errno;
  if (error == EINPROGRESS || error == EINTR) {
    result.pending = true;
  } else if (error == EAGAIN) {
    return absl::ResourceExhaustedError("its queue of connections is full");
  } else if (error != 0) {
    return absl::UnavailableError(std::strerror(error));
  }
  return result;
}

// The address from which the default route starts. Connecting a datagram socket sends nothing; the
// address asked for is one that documentation reserves.
std::string DefaultRouteHost() {
  TrackedFd fd =
      TrackedFd::Open([] { return socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  absl::StatusOr<SocketAddress> target = InetAddress({false, "192.0.2.1", 9});
  if (!fd.valid() || !target.ok() || connect(fd.get(), target->get(), target->length) != 0) return "";
  sockaddr_in own = {};
  socklen_t length = sizeof own;
  if (getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0) return "";
  return HostOf(reinterpret_cast<const sockaddr*>(&own));
}

}  // namespace

absl::StatusOr<std::vector<TcpAddress>> ListenAddresses(std::string_view interface_name, bool loopback_only) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return SystemError("getifaddrs", errno);
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);

  std::set<std::string> names;
  std::vector<TcpAddress> named, usable, loopback;
  // IPv4 first: what Gloo uses too where both exist.
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
      names.insert(entry->ifa_name);
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family || !(entry->ifa_flags & IFF_UP)) continue;
      const bool v6 = family == AF_INET6;
      // A link-local address means nothing without the interface of the one who reads it.
      if (v6 && IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr)) continue;
      TcpAddress address{v6, HostOf(entry->ifa_addr), 0};
      if (entry->ifa_name == interface_name) named.push_back(address);
      if (entry->ifa_flags & IFF_LOOPBACK) {
        loopback.push_back(address);
      } else if (entry->ifa_flags & IFF_RUNNING) {
        usable.push_back(address);
      }
    }
  }
  if (!interface_name.empty()) {
    if (!names.contains(std::string(interface_name))) {
      return absl::InvalidArgumentError(absl::StrCat(
          "there is no network interface '", absl::Utf8SafeCEscape(interface_name),
          "'; there are: ", absl::StrJoin(names, ", ")));
    }
    if (named.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("network interface '", interface_name, "' is down or has no address that others can use"));
    }
    named.resize(1);
    return named;
  }
  std::vector<TcpAddress> result;
  if (!loopback_only && !usable.empty()) {
    const std::string preferred = DefaultRouteHost();
    for (const TcpAddress& address : usable) {
      if (address.host == preferred) result.push_back(address);
    }
    if (result.empty()) result.push_back(usable.front());
  }
  if (!loopback.empty()) result.push_back(loopback.front());
  if (result.empty()) return absl::UnavailableError("this host has no network interface that is up");
  return result;
}

absl::StatusOr<TrackedFd> ListenUnix(std::string_view name, int backlog) {
  absl::StatusOr<SocketAddress> address = UnixAddress(name);
  if (!address.ok()) return address.status();
  return Listen(*address, backlog, "a Unix name");
}

absl::StatusOr<TrackedFd> ListenTcp(TcpAddress& address, int backlog) {
  absl::StatusOr<SocketAddress> wanted = InetAddress(address);
  if (!wanted.ok()) return wanted.status();
  absl::StatusOr<TrackedFd> fd = Listen(*wanted, backlog, address.ToString());
  if (!fd.ok()) return fd;
  SocketAddress got;
  got.length = sizeof got.storage;
  if (getsockname(fd->get(), reinterpret_cast<sockaddr*>(&got.storage), &got.length) != 0) {
    return SystemError("getsockname", errno);
  }
  address.port = ntohs(address.v6 ? reinterpret_cast<const sockaddr_in6*>(&got.storage)->sin6_port
                                  : reinterpret_cast<const sockaddr_in*>(&got.storage)->sin_port);
  return fd;
}

TrackedFd Accept(int listener) {
  TrackedFd fd =
      TrackedFd::Open([listener] { return accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
  if (fd.valid()) SetChannelSocketOptions(fd.get());
  return fd;
}

absl::StatusOr<Connecting> ConnectUnix(std::string_view name) {
  absl::StatusOr<SocketAddress> address = UnixAddress(name);
  if (!address.ok()) return address.status();
  return Connect(*address);
}

absl::StatusOr<Connecting> ConnectTcp(const TcpAddress& address) {
  absl::StatusOr<SocketAddress> socket_address = InetAddress(address);
  if (!socket_address.ok()) return socket_address.status();
  return Connect(*socket_address);
}

absl::Status ConnectError(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error != 0) return absl::UnavailableError(std::strerror(error));
  return absl::OkStatus();
}

}  // namespace leafpack
