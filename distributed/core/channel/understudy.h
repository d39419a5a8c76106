// One thread per process that serves the control channels of all groups while no caller does: it
// answers for a coordinator that computes, carries async calls and their deadlines, and notices
// hang-ups.
//
// Descriptors are armed once: after an event its descriptor stays disarmed until the client's answer
// or a tick re-arms it. While callers serve a group themselves its descriptors are left disarmed, so a
// stream of synchronous calls wakes the thread once. While something is disarmed the thread looks
// every kTick at the clients concerned, and re-arms those that no caller used since its last look.
//
// The thread runs only Client methods of this library: no Python, no user code, no work on leaves.
// It starts with the first client, is stopped by exit() (afterwards clients are merely not served any
// more; registering and unregistering stay safe in static destructors), and does not exist in a forked
// child, which gets an Understudy of its own when it makes a group.
#ifndef LEAFPACK_DISTRIBUTED_CORE_CHANNEL_UNDERSTUDY_H_
#define LEAFPACK_DISTRIBUTED_CORE_CHANNEL_UNDERSTUDY_H_

#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace leafpack {

inline constexpr absl::Duration kTick = absl::Milliseconds(20);

class Understudy {
 public:
  // What a client wants after it was served.
  struct Next {
    bool rearm = true;  // false: callers are at work; look again at the next tick
    absl::Time wake_at = absl::InfiniteFuture();  // when to call OnTimer; replaces what was set before
  };

  // All methods run in the understudy's thread, one at a time over all clients, without a lock of
  // the understudy held: they may call the Registration. They must not block (try_lock, or a mutex
  // that is held for microseconds only).
  class Client {
   public:
    virtual ~Client() = default;
    // A descriptor became ready (and is disarmed now). Asked for at most once per event.
    virtual Next OnReady(absl::Time now) = 0;
    // The time asked for in wake_at came, somebody called Poke, or, on a tick, descriptors are
    // disarmed and no caller called NoteUse since the tick before: serve what is there.
    virtual Next OnTick(absl::Time now) = 0;
  };

  // A client's place. All methods are thread-safe and never block, except Unregister and the
  // destructor. Descriptors are named by number: Unwatch one before it is closed.
  class Registration {
   public:
    ~Registration();  // Unregister()

    // Watches `fd` for reading (and writing), armed at once. Again for the same fd: changes what is
    // asked for, and arms it.
    absl::Status Watch(int fd, bool want_write);
    void Unwatch(int fd);
    // A caller serves the group: ticks before the next look do not re-arm. Cheap (one atomic add).
    void NoteUse();
    // A caller begins to serve what the descriptors do not show while it does: takes all of them for
    // disarmed, so that the next ticks look after the client. For the first NoteUse after an answer that re-armed.
    void Disarm();
    // Calls OnTick soon.
    void Poke();
    // Poke, but only if a descriptor is disarmed: after an async post, whose answer should not wait
    // for a tick. Cheap when all are armed.
    void EnsureArmed();
    // Calls OnTick at `time`, if that is sooner than what is set.
    void WakeBy(absl::Time time);

    // No method of the client runs after this returns. Waits for one that runs now, unless this is
    // the understudy's own thread: then that method's return is the end. So never call it with a lock
    // held that the client's methods take. Idempotent. Does nothing in a forked child.
    void Unregister();

   private:
    friend class Understudy;
    Registration(Understudy* owner, uint32_t id, std::shared_ptr<std::atomic<uint64_t>> uses);
    Understudy* owner_;
    uint32_t id_;
    uint64_t generation_;
    std::shared_ptr<std::atomic<uint64_t>> uses_;
  };

  // The understudy of this process (of this fork generation).
  static Understudy& Get();

  // Starts the thread if there is none. `client` must live until it is unregistered. Unavailable when
  // the system refuses a thread or a descriptor.
  absl::StatusOr<std::unique_ptr<Registration>> Register(Client* client);

  // Times the thread was woken since the start of the process: for tests and benchmarks.
  uint64_t wakeups() const;

  Understudy(const Understudy&) = delete;
  Understudy& operator=(const Understudy&) = delete;

 private:
  Understudy();
  ~Understudy() = delete;  // never destroyed: static destructors may still unregister

  class Impl;
  Impl* impl_;
};

}  // namespace leafpack

#endif  // LEAFPACK_DISTRIBUTED_CORE_CHANNEL_UNDERSTUDY_H_
