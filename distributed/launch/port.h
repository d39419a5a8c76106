// A free TCP port that nobody else takes before rank 0 listens on it.
#ifndef LEAFPACK_DISTRIBUTED_LAUNCH_PORT_H_
#define LEAFPACK_DISTRIBUTED_LAUNCH_PORT_H_

#include "absl/status/statusor.h"

namespace leafpack {

// To ask the kernel for a free port, close the socket and pass the number on leaves a gap in which
// any other program may be given the same port. A reservation closes the gap: it keeps a socket
// bound to the port, with SO_REUSEADDR and never listening. While it lives
//  * the kernel gives the port to nobody who asks for "any port", be it by bind or by connect;
//  * a program that names the port and sets SO_REUSEADDR, as c10d's TCPStore (libuv) and nearly
//    every server do, can bind it and listen. One that does not set the option gets EADDRINUSE.
// The socket is close-on-exec.
class PortReservation {
 public:
  // Reserves a port on all addresses, IPv6 and IPv4 (IPv4 alone where there is no IPv6).
  static absl::StatusOr<PortReservation> Make();
  // The reservation that another process made and whose descriptor it handed over; closed on error.
  static absl::StatusOr<PortReservation> Adopt(int fd);

  PortReservation(PortReservation&& other) noexcept;
  PortReservation& operator=(PortReservation&& other) noexcept;
  PortReservation(const PortReservation&) = delete;
  PortReservation& operator=(const PortReservation&) = delete;
  ~PortReservation();

  int port() const { return port_; }
  int fd() const { return fd_; }

 private:
  PortReservation(int fd, int port) : fd_(fd), port_(port) {}
  int fd_ = -1;
  int port_ = 0;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_LAUNCH_PORT_H_
