/* The slot protocol of docs/shm.md, for spin: no two ranks meet in a slot, and some rank can always go
 * on. Counters are read and written one at a time, as acquire and release give it; sleeping and ringing are
 * modelled too, so that a lost wake-up shows as a deadlock.
 *
 * //distributed/backends/shm/model checks it, by the assertions below and by the search for invalid end
 * states, and that models with a fault are found out. By hand:
 *
 *   spin -a docs/shm_slots.pml && gcc -O2 -o pan pan.c && ./pan
 */
#ifndef RANKS
#define RANKS 2
#endif
#define SLOTS 2
#ifndef CHUNKS
#define CHUNKS 3
#endif

/* A fault, for the test: 1 packs into a slot before its last chunk is drained, 2 reduces before all have
 * packed, 3 sleeps without the second look, 4 rings nobody, 5 sleeps though the second look found another want. */
#ifndef FAULT
#define FAULT 0
#endif

/* Chunks that a rank is through with, by event: 1 packed, 2 reduced, 3 drained. */
byte counters[4 * RANKS];
#define packed(r) counters[RANKS + (r)]
#define reduced(r) counters[2 * RANKS + (r)]
#define drained(r) counters[3 * RANKS + (r)]

/* Part s of a slot of rank r: which chunk's data it holds, and who touches it. */
typedef Slot { byte chunk[RANKS]; bool writing[RANKS]; byte reading[RANKS] };
typedef Segment { Slot slot[SLOTS] };
Segment segment[RANKS];

/* What a rank waits for: an event of one rank, up to a count. */
byte want_event[RANKS], want_rank[RANKS], want_count[RANKS];
bool bell[RANKS];

inline write_begin(owner, k, part) {
  assert(!segment[owner].slot[(k) % SLOTS].writing[part]);
  assert(segment[owner].slot[(k) % SLOTS].reading[part] == 0);
  segment[owner].slot[(k) % SLOTS].writing[part] = true
}
inline write_end(owner, k, part) {
  segment[owner].slot[(k) % SLOTS].chunk[part] = (k) + 1;
  segment[owner].slot[(k) % SLOTS].writing[part] = false
}
inline read_begin(owner, k, part) {
  assert(!segment[owner].slot[(k) % SLOTS].writing[part]);
  assert(segment[owner].slot[(k) % SLOTS].chunk[part] == (k) + 1);
  segment[owner].slot[(k) % SLOTS].reading[part]++
}
inline read_end(owner, k, part) { segment[owner].slot[(k) % SLOTS].reading[part]-- }

/* After a counter was raised: looks at each other rank, rings if it is meant. */
inline ring(event, count) {
  q = 0;
  do
  :: q < RANKS ->
     if
     :: FAULT != 4 && q != me && want_event[q] == event && want_rank[q] == me && want_count[q] <= count -> bell[q] = true
     :: else
     fi;
     q++
  :: else -> break
  od
}

/* The first rank whose counter is below `count`, or RANKS. */
inline behind(event, count) {
  q = 0;
  do
  :: q < RANKS && (q == me || counters[(event) * RANKS + q] >= count) -> q++
  :: else -> break
  od
}

active [RANKS] proctype Rank() {
  byte me = _pid, q, s, event, count;
  bool again;
  do
  :: drained(me) == CHUNKS -> break
  :: else ->
     again = false;
look:
     event = 0;
     if
     :: drained(me) < reduced(me) ->
        count = drained(me) + 1; behind(2, count);
        if
        :: q == RANKS ->
           s = 0;
           do
           :: s < RANKS && s != me -> read_begin(s, drained(me), s); read_end(s, drained(me), s); s++
           :: s < RANKS && s == me -> s++
           :: else -> break
           od;
           drained(me)++;
           ring(3, drained(me)); goto moved
        :: else -> event = 2
        fi
     :: drained(me) == reduced(me) && reduced(me) < packed(me) -> skip
     :: drained(me) == reduced(me) && reduced(me) == packed(me) -> skip
     fi;
     if
     :: reduced(me) < packed(me) ->
        s = q;
        behind(1, reduced(me) + 1);
        if
        :: FAULT == 2 -> q = RANKS
        :: else
        fi;
        if
        :: q == RANKS ->
           s = 0;
           do
           :: s < RANKS && s != me -> read_begin(s, reduced(me), me); read_end(s, reduced(me), me); s++
           :: s < RANKS && s == me -> s++
           :: else -> break
           od;
           write_begin(me, reduced(me), me); write_end(me, reduced(me), me);
           reduced(me)++;
           ring(2, reduced(me)); goto moved
        :: q < RANKS && event == 0 -> event = 1; count = reduced(me) + 1
        :: q < RANKS && event != 0 -> q = s
        fi
     :: else
     fi;
     if
     :: packed(me) < CHUNKS ->
        s = q;
        if
        :: packed(me) < SLOTS || FAULT == 1 -> q = RANKS
        :: else -> behind(3, packed(me) - SLOTS + 1)
        fi;
        if
        :: q == RANKS ->
           s = 0;
           do
           :: s < RANKS && s != me -> write_begin(me, packed(me), s); write_end(me, packed(me), s); s++
           :: s < RANKS && s == me -> s++
           :: else -> break
           od;
           packed(me)++;
           ring(1, packed(me)); goto moved
        :: q < RANKS && event == 0 -> event = 3; count = packed(me) - SLOTS + 1
        :: q < RANKS && event != 0 -> q = s
        fi
     :: else
     fi;
     /* Nothing could be done: publish the want, look once more, then sleep, unless the look found that it
      * is another rank that has to be waited for: that one would not ring. */
     if
     :: again && (FAULT == 5 ||
                  (want_event[me] == event && want_rank[me] == q && want_count[me] == count)) -> bell[me]
     :: else ->
        want_event[me] = 0; want_rank[me] = q; want_count[me] = count; bell[me] = false;
        want_event[me] = event; again = true;
#if FAULT == 3
        bell[me]
#else
        goto look
#endif
     fi;
moved:
     want_event[me] = 0
  od
}
