// A test on several ranks that uses nothing of leafpack: ranks pass a token around by TCP.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "gtest/gtest.h"

namespace {

int Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? -1 : std::atoi(value);
}

sockaddr_in MasterAddress() {
  sockaddr_in address;
  std::memset(&address, 0, sizeof(address));
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<in_port_t>(Variable("MASTER_PORT")));
  inet_pton(AF_INET, std::getenv("MASTER_ADDR"), &address.sin_addr);
  return address;
}

TEST(Ring, PlaceIsKnown) {
  EXPECT_EQ(Variable("OF_ALL"), 3);
  EXPECT_GE(Variable("RANK"), 0);
  EXPECT_LT(Variable("RANK"), Variable("WORLD_SIZE"));
  EXPECT_EQ(Variable("OF_RANK"), Variable("RANK") == 0 ? 7 : -1);
}

// Rank 0 listens on the port that all ranks were given and hears from each of the others.
TEST(Ring, RankZeroIsReached) {
  const sockaddr_in address = MasterAddress();
  const int others = Variable("WORLD_SIZE") - 1;
  if (Variable("RANK") == 0) {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    const int on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    ASSERT_EQ(bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0)
        << std::strerror(errno);
    ASSERT_EQ(listen(listener, 16), 0);
    int sum = 0;
    for (int i = 0; i < others; ++i) {
      const int peer = accept(listener, nullptr, nullptr);
      unsigned char rank = 0;
      ASSERT_EQ(read(peer, &rank, 1), 1);
      sum += rank;
      close(peer);
    }
    EXPECT_EQ(sum, others * (others + 1) / 2);
    close(listener);
    return;
  }
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    ASSERT_LT(std::chrono::steady_clock::now(), until);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  const unsigned char rank = static_cast<unsigned char>(Variable("RANK"));
  EXPECT_EQ(write(fd, &rank, 1), 1);
  close(fd);
}

}  // namespace
