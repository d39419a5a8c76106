// A reserved port is given to nobody else, and rank 0 can listen on it.
#include "distributed/launch/port.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <set>
#include <vector>

#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace leafpack {
namespace {

// Binds 0.0.0.0:port (0: any) and listens. Returns the descriptor, or -1.
int Listen(int port, bool reuse) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int on = reuse ? 1 : 0;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address;
  std::memset(&address, 0, sizeof(address));
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<in_port_t>(port));
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
      listen(fd, 8) == 0) {
    return fd;
  }
  close(fd);
  return -1;
}

int PortOf(int fd) {
  sockaddr_in address;
  socklen_t length = sizeof(address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.sin_port);
}

TEST(PortReservation, CanBeListenedOnByItsHolder) {
  absl::StatusOr<PortReservation> port = PortReservation::Make();
  ASSERT_TRUE(port.ok()) << port.status();
  EXPECT_GT(port->port(), 0);
  const int fd = Listen(port->port(), /*reuse=*/true);
  EXPECT_GE(fd, 0) << std::strerror(errno);
  if (fd >= 0) close(fd);
}

TEST(PortReservation, IsGivenToNobodyElse) {
  std::set<int> reserved;
  std::vector<PortReservation> held;
  for (int i = 0; i < 200; ++i) {
    absl::StatusOr<PortReservation> port = PortReservation::Make();
    ASSERT_TRUE(port.ok()) << port.status();
    EXPECT_TRUE(reserved.insert(port->port()).second) << "given twice: " << port->port();
    held.push_back(*std::move(port));
  }
  std::vector<int> others;
  for (int i = 0; i < 2000; ++i) {
    const int fd = Listen(0, /*reuse=*/i % 2 == 0);
    if (fd < 0) break;
    EXPECT_EQ(reserved.count(PortOf(fd)), 0u);
    others.push_back(fd);
    if (others.size() == 500) {
      for (int other : others) close(other);
      others.clear();
    }
  }
  for (int other : others) close(other);
}

TEST(PortReservation, EndsWithTheObject) {
  int port = 0;
  {
    absl::StatusOr<PortReservation> reservation = PortReservation::Make();
    ASSERT_TRUE(reservation.ok());
    port = reservation->port();
    EXPECT_EQ(Listen(port, /*reuse=*/false), -1);  // held
  }
  const int fd = Listen(port, /*reuse=*/false);
  EXPECT_GE(fd, 0);
  if (fd >= 0) close(fd);
}

}  // namespace
}  // namespace leafpack
