// Hosts that are pretended on this one: namespaces with an address each, joined by a bridge. Ranks on two of
// them reach each other by TCP alone; they share the file system, but neither loopback, Unix names without a
// file, /dev/shm nor host name.
#ifndef LEAFPACK_DISTRIBUTED_LAUNCH_HOSTS_H_
#define LEAFPACK_DISTRIBUTED_LAUNCH_HOSTS_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "distributed/launch/port.h"

namespace leafpack {

class Hosts {
 public:
  // Makes 1 to 200 hosts, named host0, host1, ... Unimplemented, with what was refused, where this machine
  // lets this user make no namespaces or no virtual network devices. The caller's own namespaces stay as
  // they are; the hosts go when this object and all processes that entered one have gone.
  static absl::StatusOr<Hosts> Make(int count);

  Hosts(Hosts&& other) noexcept;
  Hosts& operator=(Hosts&&) = delete;
  ~Hosts();

  // IPv4 address of a host.
  static std::string Address(int host);

  // A free port on host 0 (see port.h); kept until this object goes.
  int port() const { return port_->port(); }

  // Moves the calling process, of one thread, onto a host; its working folder stays. False with errno when
  // the kernel refuses. Async-signal-safe.
  bool Enter(int host) const;

  // Descriptors of this object, all close-on-exec.
  std::vector<int> fds() const;

 private:
  // Namespaces of one host.
  struct Host {
    int net = -1;
    int mount = -1;
    int uts = -1;
  };

  Hosts() = default;

  int user_ = -1;  // the user namespace that owns the others
  std::vector<Host> hosts_;
  absl::StatusOr<PortReservation> port_ = absl::InternalError("not made");
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_LAUNCH_HOSTS_H_
