#include "distributed/launch/port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace leafpack {
namespace {

// Binds a new socket of `family` to any free port, or returns -1 with errno set.
int BindAnyPort(int family) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return -1;
  const int on = 1, off = 0;
  sockaddr_storage address;
  std::memset(&address, 0, sizeof(address));
  address.ss_family = static_cast<sa_family_t>(family);
  socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0 &&
      (family != AF_INET6 ||
       setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)) == 0) &&
      bind(fd, reinterpret_cast<sockaddr*>(&address), length) == 0) {
    return fd;
  }
  const int error = errno;
  close(fd);
  errno = error;
  return -1;
}

}  // namespace

absl::StatusOr<PortReservation> PortReservation::Make() {
  int fd = BindAnyPort(AF_INET6);
  if (fd < 0) fd = BindAnyPort(AF_INET);
  if (fd < 0) return absl::ErrnoToStatus(errno, "cannot reserve a TCP port");
  return Adopt(fd);
}

absl::StatusOr<PortReservation> PortReservation::Adopt(int fd) {
  sockaddr_storage address;
  socklen_t length = sizeof(address);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    const int error = errno;
    close(fd);
    return absl::ErrnoToStatus(error, "cannot read the number of a reserved TCP port");
  }
  const in_port_t port = address.ss_family == AF_INET6
                             ? reinterpret_cast<sockaddr_in6*>(&address)->sin6_port
                             : reinterpret_cast<sockaddr_in*>(&address)->sin_port;
  return PortReservation(fd, ntohs(port));
}

PortReservation::PortReservation(PortReservation&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), port_(other.port_) {}

PortReservation& PortReservation::operator=(PortReservation&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(port_, other.port_);
  return *this;
}

PortReservation::~PortReservation() {
  if (fd_ >= 0) close(fd_);
}

}  // namespace leafpack
