#include "distributed/launch/hosts.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_link.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <linux/veth.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

#include "distributed/launch/port.h"

namespace leafpack {
namespace {

constexpr int kMaxHosts = 200;
constexpr char kBridgeName[] = "bridge";
constexpr char kDeviceName[] = "eth0";  // of each host but host 0, which has the bridge

// Where the making process stood when it failed, for the message.
enum class Step : int {
  kNone,
  kUser,
  kNamespaces,
  kName,
  kSharedMemory,
  kLoopback,
  kBridge,
  kDevice,
  kPort,
  kTalk,
};

absl::string_view Describe(Step step) {
  switch (step) {
    case Step::kNone:
      return "the process that makes them ended";
    case Step::kUser:
      return "no user namespace can be made";
    case Step::kNamespaces:
      return "no network, mount or UTS namespace can be made";
    case Step::kName:
      return "no host name can be set";
    case Step::kSharedMemory:
      return "nothing can be mounted on /dev/shm";
    case Step::kLoopback:
      return "no loopback device can be had";
    case Step::kBridge:
      return "no network bridge can be made";
    case Step::kDevice:
      return "no virtual network device can be made";
    case Step::kPort:
      return "no port can be reserved";
    case Step::kTalk:
      return "descriptors cannot be handed over";
  }
  return "";
}

bool WriteFile(const char* path, absl::string_view text) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool written = write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = errno;
  close(fd);
  errno = error;
  return written;
}

// A user namespace in which the caller has every right over what it makes, and the same user and group.
bool EnterUserNamespace() {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  return unshare(CLONE_NEWUSER) == 0 && WriteFile("/proc/self/setgroups", "deny") &&
         WriteFile("/proc/self/uid_map", absl::StrCat(user, " ", user, " 1")) &&
         WriteFile("/proc/self/gid_map", absl::StrCat(group, " ", group, " 1"));
}

// An ioctl about one network device.
bool DeviceCall(unsigned long call, const char* device, ifreq& request) {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  std::strncpy(request.ifr_name, device, IFNAMSIZ - 1);
  const bool done = ioctl(fd, call, &request) == 0;
  const int error = errno;
  close(fd);
  errno = error;
  return done;
}

bool SetAddress(const char* device, const char* address, unsigned long call) {
  ifreq request;
  std::memset(&request, 0, sizeof(request));
  sockaddr_in in;
  std::memset(&in, 0, sizeof(in));
  in.sin_family = AF_INET;
  inet_pton(AF_INET, address, &in.sin_addr);
  std::memcpy(&request.ifr_addr, &in, sizeof(in));
  return DeviceCall(call, device, request);
}

bool BringUp(const char* device) {
  ifreq request;
  std::memset(&request, 0, sizeof(request));
  if (!DeviceCall(SIOCGIFFLAGS, device, request)) return false;
  request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP);
  return DeviceCall(SIOCSIFFLAGS, device, request);
}

bool GiveAddress(const char* device, int host) {
  return SetAddress(device, Hosts::Address(host).c_str(), SIOCSIFADDR) &&
         SetAddress(device, "255.255.0.0", SIOCSIFNETMASK) && BringUp(device);
}

bool AddToBridge(const char* device) {
  ifreq request;
  std::memset(&request, 0, sizeof(request));
  request.ifr_ifindex = static_cast<int>(if_nametoindex(device));
  return request.ifr_ifindex != 0 && DeviceCall(SIOCBRADDIF, kBridgeName, request);
}

bool MakeBridge() {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool done = ioctl(fd, SIOCBRADDBR, kBridgeName) == 0;
  const int error = errno;
  close(fd);
  errno = error;
  return done;
}

// A message of rtnetlink under construction: attributes, some of which hold others.
class Message {
 public:
  Message() {
    nlmsghdr header;
    std::memset(&header, 0, sizeof(header));
    header.nlmsg_type = RTM_NEWLINK;
    header.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    Append(&header, sizeof(header));
    AppendLink();
  }
  void AppendLink() {
    ifinfomsg link;
    std::memset(&link, 0, sizeof(link));
    Append(&link, sizeof(link));
  }
  size_t Begin(int type) {
    const size_t at = bytes_.size();
    nlattr attribute = {0, static_cast<uint16_t>(type)};
    Append(&attribute, sizeof(attribute));
    return at;
  }
  void End(size_t at) {
    const uint16_t length = static_cast<uint16_t>(bytes_.size() - at);
    std::memcpy(&bytes_[at], &length, sizeof(length));  // nla_len comes first
    Pad();
  }
  void Add(int type, const void* data, size_t size) {
    const size_t at = Begin(type);
    Append(data, size);
    End(at);
  }
  // Sends it and waits for the kernel's answer.
  bool Send() {
    const uint32_t length = static_cast<uint32_t>(bytes_.size());
    std::memcpy(&bytes_[0], &length, sizeof(length));  // nlmsg_len comes first
    const int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (fd < 0) return false;
    struct {
      nlmsghdr header;
      nlmsgerr error;
      char rest[1024];
    } answer;
    std::memset(&answer, 0, sizeof(answer));
    int error = 0;
    if (send(fd, bytes_.data(), bytes_.size(), 0) < 0 || recv(fd, &answer, sizeof(answer), 0) < 0) {
      error = errno;
    } else {
      error = answer.header.nlmsg_type == NLMSG_ERROR ? -answer.error.error : EPROTO;
    }
    close(fd);
    errno = error;
    return error == 0;
  }

 private:
  void Append(const void* data, size_t size) {
    bytes_.append(static_cast<const char*>(data), size);
    Pad();
  }
  void Pad() { bytes_.resize((bytes_.size() + 3) & ~size_t{3}); }

  std::string bytes_;
};

// Two joined devices: `here` in the caller's network, kDeviceName in the network `there`.
bool MakeDevicePair(const std::string& here, int there) {
  Message message;
  message.Add(IFLA_IFNAME, here.c_str(), here.size() + 1);
  const size_t info = message.Begin(IFLA_LINKINFO);
  message.Add(IFLA_INFO_KIND, "veth", 4);
  const size_t data = message.Begin(IFLA_INFO_DATA);
  const size_t peer = message.Begin(VETH_INFO_PEER);
  message.AppendLink();
  message.Add(IFLA_IFNAME, kDeviceName, sizeof(kDeviceName));
  const uint32_t network = static_cast<uint32_t>(there);
  message.Add(IFLA_NET_NS_FD, &network, sizeof(network));
  message.End(peer);
  message.End(data);
  message.End(info);
  return message.Send();
}

int OpenNamespace(const char* name) {
  return open(absl::StrCat("/proc/self/ns/", name).c_str(), O_RDONLY | O_CLOEXEC);
}

// What the making process sends: one of these, with descriptors beside it.
struct Word {
  Step step = Step::kNone;  // that failed; kNone: all is well
  int error = 0;
};

bool SendWord(int socket, const Word& word, const std::vector<int>& fds) {
  iovec content = {const_cast<Word*>(&word), sizeof(word)};
  msghdr message;
  std::memset(&message, 0, sizeof(message));
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size() * sizeof(int));
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(word));
}

// The next word; its descriptors are added to `fds`. False when the other side has gone.
bool ReceiveWord(int socket, Word& word, std::vector<int>& fds) {
  iovec content = {&word, sizeof(word)};
  msghdr message;
  std::memset(&message, 0, sizeof(message));
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t n;
  do {
    n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  if (n != static_cast<ssize_t>(sizeof(word))) return false;
  for (cmsghdr* rights = CMSG_FIRSTHDR(&message); rights != nullptr;
       rights = CMSG_NXTHDR(&message, rights)) {
    if (rights->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (rights->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    const size_t before = fds.size();
    fds.resize(before + count);
    std::memcpy(&fds[before], CMSG_DATA(rights), count * sizeof(int));
  }
  return true;
}

// Makes everything, in a process of its own, and sends a word with the user namespace, one with the
// namespaces of each host, and one with the port.
Step MakeAll(int socket, int count) {
  const auto send = [&](const std::vector<int>& fds) { return SendWord(socket, Word{}, fds); };
  if (!EnterUserNamespace()) return Step::kUser;
  if (!send({OpenNamespace("user")})) return Step::kTalk;
  int first = -1;
  for (int host = 0; host < count; ++host) {
    if (unshare(CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWUTS) != 0) return Step::kNamespaces;
    const std::string name = absl::StrCat("host", host);
    if (sethostname(name.data(), name.size()) != 0) return Step::kName;
    if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777") != 0) {
      return Step::kSharedMemory;
    }
    if (!BringUp("lo")) return Step::kLoopback;
    const int net = OpenNamespace("net");
    if (!send({net, OpenNamespace("mnt"), OpenNamespace("uts")})) return Step::kTalk;
    if (host == 0) {
      first = net;
      if (!MakeBridge() || !GiveAddress(kBridgeName, 0)) return Step::kBridge;
      continue;
    }
    const std::string link = absl::StrCat("to", host);
    if (setns(first, CLONE_NEWNET) != 0 || !MakeDevicePair(link, net) || !AddToBridge(link.c_str()) ||
        !BringUp(link.c_str()) || setns(net, CLONE_NEWNET) != 0 || !GiveAddress(kDeviceName, host)) {
      return Step::kDevice;
    }
    close(net);
  }
  if (setns(first, CLONE_NEWNET) != 0) return Step::kPort;
  const absl::StatusOr<PortReservation> port = PortReservation::Make();
  if (!port.ok()) return Step::kPort;
  return send({port->fd()}) ? Step::kNone : Step::kTalk;
}

}  // namespace

std::string Hosts::Address(int host) { return absl::StrCat("10.77.0.", host + 1); }

absl::StatusOr<Hosts> Hosts::Make(int count) {
  if (count < 1 || count > kMaxHosts) {
    return absl::InvalidArgumentError(
        absl::StrCat("the number of hosts is ", count, "; it must be between 1 and ", kMaxHosts));
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return absl::ErrnoToStatus(errno, "cannot make a socket pair");
  }
  const pid_t pid = fork();
  if (pid == 0) {
    close(ends[0]);
    errno = 0;
    const Step failed = MakeAll(ends[1], count);
    if (failed != Step::kNone) SendWord(ends[1], Word{failed, errno}, {});
    _exit(0);
  }
  const int fork_error = errno;
  close(ends[1]);
  Word word;
  std::vector<int> fds;
  if (pid > 0) {
    while (word.step == Step::kNone && ReceiveWord(ends[0], word, fds)) {
    }
    while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  close(ends[0]);
  if (pid < 0) return absl::ErrnoToStatus(fork_error, "cannot start a process");

  Hosts result;
  size_t next = 0;
  const auto take = [&] { return next < fds.size() ? fds[next++] : -1; };
  result.user_ = take();
  for (int host = 0; host < count; ++host) {
    Host& made = result.hosts_.emplace_back();
    made.net = take();
    made.mount = take();
    made.uts = take();
  }
  if (fds.size() == next + 1) {
    result.port_ = PortReservation::Adopt(take());
    if (!result.port_.ok()) return result.port_.status();
    return result;
  }
  return absl::UnimplementedError(absl::StrCat(
      "this machine does not let ", count, " hosts be pretended: ", Describe(word.step),
      word.error != 0 ? absl::StrCat(" (", std::strerror(word.error), ")") : std::string()));
}

Hosts::Hosts(Hosts&& other) noexcept
    : user_(std::exchange(other.user_, -1)),
      hosts_(std::exchange(other.hosts_, {})),
      port_(std::move(other.port_)) {}

Hosts::~Hosts() {
  if (user_ >= 0) close(user_);
  for (const Host& host : hosts_) {
    for (int fd : {host.net, host.mount, host.uts}) {
      if (fd >= 0) close(fd);
    }
  }
}

bool Hosts::Enter(int host) const {
  const Host& there = hosts_[static_cast<size_t>(host)];
  // To enter a mount namespace takes the working folder to the root.
  char folder[4096];
  return getcwd(folder, sizeof(folder)) != nullptr && setns(user_, CLONE_NEWUSER) == 0 &&
         setns(there.net, CLONE_NEWNET) == 0 && setns(there.uts, CLONE_NEWUTS) == 0 &&
         setns(there.mount, CLONE_NEWNS) == 0 && chdir(folder) == 0;
}

std::vector<int> Hosts::fds() const {
  std::vector<int> fds = {user_, port_->fd()};
  for (const Host& host : hosts_) fds.insert(fds.end(), {host.net, host.mount, host.uts});
  return fds;
}

}  // namespace leafpack
