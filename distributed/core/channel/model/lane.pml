/* One direction of a link with a lane (distributed/core/channel/{lane,link}.h), for spin: a ring in shared memory beside
 * a socket. Each record is delivered once and in order, whatever of it went by the ring and by the socket, and no
 * reader sleeps while something is there for it: that would show as a deadlock.
 *
 * Spin's memory is sequentially consistent, that of processors is not. What the code relies on:
 *   - `filled` and `freed` are stored with release and loaded with acquire: what they stand for goes first. Here, data
 *     and counter are written in this order.
 *   - What was written before a send is seen by who receives what was sent, as the kernel's locks have it. Here, a send
 *     waits until the buffer below is empty.
 *   - A sequentially consistent fence between the store of `filled` and the load of `asleep` (Lane::PeerSleeps), and one
 *     between the store of `asleep` and the load of `filled` (Lane::SetAsleep). Of these stores alone order is not given
 *     otherwise, so they go through a store buffer: `filled` lags behind `written`, and `asleep` is what left `sleeping`.
 *     A fence waits until the own buffer is empty.
 *
 * //distributed/core/channel/model checks it, and that models with a fault are found out. By hand:
 *
 *   spin -a lane.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan -m1000000
 */
#ifndef RECORDS
#define RECORDS 4
#endif
/* Places of the ring; one is kept free for a detour's mark. */
#ifndef PLACES
#define PLACES 3
#endif
/* Frames that the socket takes. */
#ifndef SOCKET
#define SOCKET 2
#endif
/* Link's kQuietReads. */
#define QUIET 2

/* A fault, for the test:
 *   1 sleeps without the second look              2 looks whether the peer sleeps before the record is published
 *   3 the writer has no fence                     4 the reader has none
 *   5 back to the lane before it is empty         6 a detour without its mark
 *   7 the reader takes records from the socket before the detour's mark
 *   8 back to the lane though frames are queued   9 wakes nobody
 *   10 sleeps on frames that are read already     11 gives room back before the record is read
 *   12 back to the lane without the lane's mark
 *   13 the mark of a detour has no room of its own */
#ifndef FAULT
#define FAULT 0
#endif

/* What frames and places of the ring hold: a record's number from 1, or a mark. */
#define WAKE 100
#define LANE 101
#define DETOUR 102

chan socket = [SOCKET] of { byte };
byte ring[PLACES];
byte written;       /* by the writer, in places since the beginning */
byte filled;        /* what others see of it */
byte freed;         /* by the reader. A late sight of it only has the writer see less room. */
bool asleep = true; /* what the writer sees */
chan sleeping = [2] of { bool };
bool wrote_all;
byte reading = PLACES;  /* the place that is being read */

/* What is in store buffers reaches memory. */
active proctype Memory() {
end:
  do
  :: filled != written -> filled = filled + 1
  :: sleeping ? asleep
  od
}

#define PUBLISHED (filled == written)

inline put(what) {
  assert(reading != written % PLACES);
  assert(written - freed < PLACES);
  ring[written % PLACES] = what;
  written = written + 1
}

active proctype Writer() {
  byte next = 1;
  bool by_lane = false, sent, big, sleeps;
  /* Records that wait for the socket, the first of them first; Link::Flush. */
  byte queued_from = 1;
#define QUEUED (next - queued_from)
  do
  :: QUEUED > 0 && nfull(socket) && PUBLISHED -> socket ! queued_from; queued_from = queued_from + 1
  :: next <= RECORDS ->
     /* Link::Send. A record may be too large for the ring. */
     if
     :: big = true
     :: big = false
     fi;
     sent = false;
#if FAULT == 8
     if
     :: true ->
#else
     if
     :: QUEUED > 0
     :: QUEUED == 0 ->
#endif
        /* Link::SendByLane */
        if
        :: by_lane
#if FAULT == 5
        :: !by_lane && !big ->
#else
        :: !by_lane && !big && freed == written ->
#endif
#if FAULT == 12
           by_lane = true
#else
           if
           :: atomic { nfull(socket) && PUBLISHED -> socket ! LANE }; by_lane = true
           :: full(socket)
           fi
#endif
        :: !by_lane && (big || freed != written)
        fi;
        if
        :: !by_lane
#if FAULT == 13
        :: by_lane && !big && written - freed < PLACES ->
#else
        :: by_lane && !big && written - freed + 1 < PLACES ->
#endif
           sent = true;
#if FAULT == 2
           sleeps = asleep;
           put(next)
#else
           put(next);
#if FAULT != 3
           PUBLISHED;
#endif
           sleeps = asleep
#endif
           ;
#if FAULT == 9
           sleeps = false;
#endif
           if
           :: sleeps ->
              if
              :: atomic { nfull(socket) && PUBLISHED -> socket ! WAKE }
              :: full(socket)
              fi
           :: else
           fi;
           sleeps = false
        :: by_lane && (big || written - freed + 1 >= PLACES) ->
#if FAULT != 6
           put(DETOUR);
#endif
           by_lane = false
        fi
     fi;
     if
     :: sent -> queued_from = queued_from + 1
     :: !sent && QUEUED == 0 ->
        if
        :: atomic { nfull(socket) && PUBLISHED -> socket ! next }; queued_from = queued_from + 1
        :: full(socket)
        fi
     :: !sent && QUEUED > 0
     fi;
     next = next + 1
  :: next > RECORDS && QUEUED == 0 -> break
  od;
  wrote_all = true
}

active proctype Reader() {
  byte got = 0, read = 0, known = 0, quiet = 0, frame, n, idle = 0;
  byte header = 0;               /* the record whose frame's head was read, while its bytes are to come */
  bool from_lane = false, more, first;
  chan behind = [SOCKET] of { byte };  /* Link's behind_ */

#define DELIVER(record) assert(record == got + 1); got = got + 1; first = false
  do
  :: /* Link::ReadAvailable; more: the sink or the limit stopped it */
     more = false;
     first = true;
     do
     :: from_lane ->
        /* Link::ReadLane */
        do
        :: read == known && filled == read -> n = 0; break
        :: read == known && filled != read -> known = filled
        :: read != known ->
           assert(known - read <= PLACES);
           n = ring[read % PLACES];
           if
           :: n == DETOUR -> read = read + 1; freed = read; from_lane = false; break
           :: n != DETOUR ->
#if FAULT == 11
              freed = read + 1;
#endif
              reading = read % PLACES;
              DELIVER(n);
              assert(ring[read % PLACES] == n);
              d_step { read = read + 1; reading = PLACES };
              freed = read;
              if
              :: true
              :: more = true; break
              fi
           fi
        od;
        if
        :: more -> break
        :: !more && from_lane ->
           assert(header == 0);
           if
           :: empty(behind) && quiet + 1 < QUIET -> quiet = quiet + 1; break
           :: empty(behind) && quiet + 1 >= QUIET -> goto frames
           :: nempty(behind) -> goto frames
           fi
        :: !more && !from_lane
        fi;
        n = 0
     :: !from_lane ->
frames:
        n = 0;
        /* What is behind comes first; then what the socket has, all or, as far as the buffer goes, a part of it. */
        if
        :: empty(behind) && header == 0 ->
           quiet = 0;
           if
           :: empty(socket) -> break
           :: atomic { nempty(socket) ->
                 do
                 :: nempty(socket) -> socket ? frame; behind ! frame
                 :: frame != 0 -> break
                 od;
                 frame = 0 }
           fi
        :: nempty(behind) || header != 0
        fi;
        /* Link::TakeFramed */
        do
        :: header != 0 && from_lane -> break
        :: header != 0 && !from_lane ->
           DELIVER(header);
           header = 0;
           if
           :: true
           :: more = true; break
           fi
        :: header == 0 && empty(behind) -> break
        :: header == 0 && nempty(behind) ->
           behind ? frame;
           if
           :: frame == WAKE -> frame = 0
           :: frame == LANE -> from_lane = true; frame = 0; break
           :: frame < WAKE ->
#if FAULT == 7
              DELIVER(frame);
#else
              header = frame;
#endif
              frame = 0
           fi
        od;
        if
        :: more -> break
        :: else
        fi
     od;
     if
     :: got == RECORDS -> break
     :: else
     fi;
     /* What has been sent is found by looking, too, in a few looks. */
     if
     :: wrote_all && first && PUBLISHED -> idle = idle + 1; assert(idle <= QUIET + 1)
     :: else -> idle = 0
     fi;
     if
     :: true     /* looks again */
     :: true ->  /* Link::SetAsleep, before it sleeps */
        sleeping ! true;
        quiet = QUIET;
#if FAULT != 4
        empty(sleeping);
#endif
#if FAULT != 1
        n = (from_lane && filled != read);
#endif
#if FAULT != 10
        n = n || nempty(behind) || header != 0;
#endif
        if
        :: n
        :: !n -> nempty(socket)
        fi;
        n = 0;
        sleeping ! false
     fi
  od
}
