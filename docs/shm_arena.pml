/* All-reduce of leaves in an arena (docs/shm.md), for spin: no rank reads what was replaced already, none writes leaves
 * that are the user's again, a call that ends well has all results, and every rank that lives comes to the end of every
 * call, though one rank may fail or be killed anywhere. That a rank may be stopped for any time is how spin looks at all
 * anyhow. Counters are read and written one at a time; sleeping and ringing are as in shm_slots.pml.
 *
 * Two calls, each an operation of one stretch. With OVERLAP they have different leaves of the same arena, and a call that
 * failed is ended by another thread, while the next one of this rank may have begun in the next epoch.
 *
 * //distributed/backends/shm/model checks it, and that models with a fault are found out. By hand:
 *
 *   spin -a docs/shm_arena.pml && gcc -O2 -DSAFETY -o pan pan.c && ./pan -m1000000
 */
#ifndef RANKS
#define RANKS 2
#endif
#ifndef CHUNKS
#define CHUNKS 2
#endif
#ifndef OVERLAP
#define OVERLAP 0
#endif
/* How many ranks may fail or, without OVERLAP, be killed. */
#ifndef FAILURES
#define FAILURES 1
#endif
#define CALLS 2
/* Without, a rank waits for what it waits for, and what it reads before it goes on is read at once: fewer states. */
#ifndef SLEEP
#define SLEEP 1
#endif

/* A fault, for the test:
 *   1 reduces before all have packed                   2 drains before all have reduced
 *   3 tells that the stretch is reduced behind its first chunk
 *   4 fails without detaching                          5 gives the leaves back before it detaches
 *   6 drains without asking whether it is detached     7 detaches only if it has reduced nothing yet
 *   8 sleeps without the second look                   9 rings nobody
 *   10 goes on in a detached arena                     11 does not wait for a detaching that is under way */
#ifndef FAULT
#define FAULT 0
#endif

/* What a part of a leaf holds: 0 is the user's business. */
#define INPUT(call) (2 * (call) + 1)
#define RESULT(call) (2 * (call) + 2)

/* Part i of a rank's leaves: slice i % RANKS of a chunk. `shared` is in the segment; once the page is parted, its
 * rank has `own` in that place. */
#if OVERLAP
#define FIRST(call) ((call) * CHUNKS * RANKS)
#define PARTS (CALLS * CHUNKS * RANKS)
#else
#define FIRST(call) 0
#define PARTS (CHUNKS * RANKS)
#endif
typedef Leaves { byte shared[PARTS]; byte own[PARTS]; bool parted[PARTS]; bool writing[PARTS] };
Leaves leaves[RANKS];
#define VIEW(i) (leaves[me].parted[i] -> leaves[me].own[i] : leaves[me].shared[i])
bool lent[CALLS * RANKS];        /* the call has the leaves: handed over, and not returned */
#define LENT(call, r) lent[(call) * RANKS + (r)]
bool detached[RANKS], detach_done[RANKS];

/* Counters of the context of each epoch, by event: 1 packed, 2 reduced, 3 drained. */
byte counters[2 * 3 * RANKS];
#define COUNTER(epoch, event, r) counters[((epoch) * 3 + (event) - 1) * RANKS + (r)]
bool aborted[2];                 /* epochs */
byte failures = FAILURES;
byte dead;                       /* a rank, from 1 */

/* The control channel: who is in a call, in which epoch and whether with leaves in the arena; what was decided. */
#define UNKNOWN 0
#define REFUSED 1
#define SLOTS 2
#define ARENA 3
byte posted[CALLS];
byte decision[CALLS];
byte call_epoch[CALLS];
bool epochs_differ[CALLS], elsewhere[CALLS];

/* What a rank waits for: an event of one rank, up to a count. */
byte want_event[RANKS], want_rank[RANKS], want_count[RANKS];
bool bell[RANKS];

#if OVERLAP
bool failed[RANKS], through[RANKS];
#endif

/* After a counter was raised: looks at each other rank, rings if it is meant. */
inline ring(event, count) {
#if SLEEP && FAULT != 9
  q = 0;
  do
  :: q < RANKS ->
     if
     :: q != me && want_event[q] == event && want_rank[q] == me && want_count[q] <= count -> bell[q] = true
     :: else
     fi;
     q++
  :: else -> break
  od;
  q = 0
#else
  skip
#endif
}

/* The first rank whose counter is below `count`, or RANKS. */
inline behind(event, count) {
#if SLEEP
  q = 0;
  do
  :: q < RANKS && (q == me || COUNTER(epoch, event, q) >= count) -> q++
  :: else -> break
  od
#else
  d_step {
    q = 0;
    do
    :: q < RANKS && (q == me || COUNTER(epoch, event, q) >= count) -> q++
    :: else -> break
    od
  }
#endif
}

/* Arena::Detach: page by page, and whoever comes second waits for the first. */
inline detach() {
  if
  :: atomic { !detached[me] -> detached[me] = true };
     i = 0;
     do
     :: i < PARTS -> d_step { leaves[me].own[i] = leaves[me].shared[i]; leaves[me].parted[i] = true; i++ }
     :: else -> break
     od;
     i = 0;
     detach_done[me] = true
#if FAULT == 11
  :: detached[me]
#else
  :: detached[me] && detach_done[me]
#endif
  fi
}

/* The user has the leaves again, and writes them. */
inline use(c, content) {
  d_step {
    i = 0;
    do
    :: i < CHUNKS * RANKS ->
       assert(leaves[me].parted[FIRST(c) + i] || !leaves[me].writing[FIRST(c) + i]);
       if
       :: leaves[me].parted[FIRST(c) + i] -> leaves[me].own[FIRST(c) + i] = content
       :: else -> leaves[me].shared[FIRST(c) + i] = content
       fi;
       i++
    :: else -> break
    od;
    i = 0
  }
}

active [RANKS] proctype Rank() {
  byte me = _pid, q, i, call, k, epoch, first;
  bool again;
  do
  :: call == CALLS -> break
  :: else ->
     use(call, INPUT(call));
     /* A rank may know of the new epoch, or not yet. */
     if
     :: aborted[0] -> epoch = 1
     :: epoch == 0
     fi;
     d_step {
       if
       :: posted[call] == 0 -> call_epoch[call] = epoch
       :: else -> epochs_differ[call] = epochs_differ[call] || call_epoch[call] != epoch
       fi;
#if FAULT != 10
       elsewhere[call] = elsewhere[call] || detached[me];
#endif
       posted[call]++
     };
     if
     :: atomic { decision[call] == UNKNOWN && posted[call] == RANKS ->
           if
           :: epochs_differ[call] || aborted[epoch] -> decision[call] = REFUSED
           :: !epochs_differ[call] && !aborted[epoch] && elsewhere[call] -> decision[call] = SLOTS
           :: else -> decision[call] = ARENA
           fi }
     :: decision[call] != UNKNOWN
#if !OVERLAP
     :: dead != 0 -> aborted[epoch] = true; goto returned
#endif
#if !OVERLAP
     :: atomic { failures > 0 -> failures--; dead = me + 1 }; goto gone
#endif
     fi;
     if
     :: decision[call] == ARENA
     :: else -> goto returned
     fi;
     /* SharedMemory::AllReduce; ReduceStream::Add, which packs. */
     if
     :: aborted[epoch] -> goto returned
#if OVERLAP && FAULT != 10
     :: detached[me] -> aborted[epoch] = true; goto returned
     :: !detached[me] && !aborted[epoch]
#else
     :: !aborted[epoch]
#endif
     fi;
     LENT(call, me) = true;
     first = COUNTER(epoch, 3, me);
     COUNTER(epoch, 1, me) = first + CHUNKS;
     ring(1, first + CHUNKS);
     k = 0;
     again = false;
step:
     /* Between steps an abort is seen; this rank may have failed for its own part, or be killed. */
     if
     :: aborted[epoch] -> goto fail
     :: atomic { failures > 0 -> failures-- }; aborted[epoch] = true; goto fail
#if !OVERLAP
     :: atomic { failures > 0 -> failures--; dead = me + 1 }; goto gone
#endif
     :: true
     fi;
     if
     :: k == CHUNKS ->
#if FAULT == 2
        q = RANKS;
#else
        behind(2, first + CHUNKS);
#endif
        if
        :: q == RANKS ->
           q = 0;
           if
#if OVERLAP && FAULT != 6 && FAULT != 10
           :: detached[me] -> aborted[epoch] = true; goto fail
           :: !detached[me]
#else
           :: true
#endif
           fi;
           d_step {
             i = 0;
             do
             :: i < CHUNKS * RANKS -> assert(VIEW(FIRST(call) + i) == RESULT(call)); i++
             :: else -> break
             od;
             i = 0
           };
           want_event[me] = 0;
           COUNTER(epoch, 3, me) = first + CHUNKS;
           goto finish
        :: else
        fi
     :: else ->
#if FAULT == 1
        q = RANKS;
#else
        behind(1, first + k + 1);
#endif
        if
        :: q == RANKS ->
           want_event[me] = 0;
           i = FIRST(call) + k * RANKS + me;
#if SLEEP
           q = 0;
           do
           :: q < RANKS && q != me -> assert(leaves[q].shared[i] == INPUT(call)); q++
           :: q < RANKS && q == me -> assert(VIEW(i) == INPUT(call)); q++
           :: else -> break
           od;
#else
           d_step {
             q = 0;
             do
             :: q < RANKS && q != me -> assert(leaves[q].shared[i] == INPUT(call)); q++
             :: q < RANKS && q == me -> assert(VIEW(i) == INPUT(call)); q++
             :: else -> break
             od
           };
#endif
           q = 0;
           do
           :: q < RANKS && q == me ->
              d_step {
                if
                :: leaves[me].parted[i] -> leaves[me].own[i] = RESULT(call)
                :: else -> leaves[me].shared[i] = RESULT(call)
                fi
              };
              q++
           :: q < RANKS && q != me ->
              d_step {
                assert(LENT(call, q) || leaves[q].parted[i]);
                leaves[q].writing[i] = true
              };
              /* It may be killed, or stopped, in the midst. */
              if
#if !OVERLAP
              :: atomic { failures > 0 -> failures--; dead = me + 1 }; goto gone
#endif
              :: true
              fi;
              d_step { leaves[q].shared[i] = RESULT(call); leaves[q].writing[i] = false };
              q++
           :: else -> break
           od;
           q = 0;
           i = 0;
           k++;
#if FAULT == 3
           if
           :: k == 1 ->
#else
           if
           :: k == CHUNKS ->
#endif
              COUNTER(epoch, 2, me) = first + CHUNKS;
              ring(2, first + CHUNKS)
           :: else
           fi;
           again = false;
           goto step
        :: else
        fi
     fi;
#if SLEEP
     /* Nothing could be done: publish the want, look once more, then sleep, unless the look found that it
      * is another rank that has to be waited for. A death shows in the connections. */
     if
     :: again && want_event[me] == (k == CHUNKS -> 2 : 1) && want_rank[me] == q ->
asleep:
        if
        :: bell[me] -> again = false
        :: aborted[epoch]
#if !OVERLAP
        :: dead != 0 && COUNTER(epoch, 3, dead - 1) < first + CHUNKS -> aborted[epoch] = true
#endif
        fi
     :: else ->
        d_step {
          want_event[me] = 0; bell[me] = false; want_rank[me] = q;
          want_count[me] = first + (k == CHUNKS -> CHUNKS : k + 1)
        };
        want_event[me] = (k == CHUNKS -> 2 : 1);
        again = true;
#if FAULT == 8
        goto asleep
#endif
     fi;
#else
     if
     :: COUNTER(epoch, (k == CHUNKS -> 2 : 1), q) >= first + (k == CHUNKS -> CHUNKS : k + 1)
     :: aborted[epoch]
#if !OVERLAP
     :: dead != 0 && COUNTER(epoch, 3, dead - 1) < first + CHUNKS -> aborted[epoch] = true
#endif
     fi;
     q = 0;
#endif
     goto step;

fail:
     want_event[me] = 0;
     q = 0;
#if OVERLAP
     if
     :: call == 0 -> failed[me] = true; goto next
     :: else
     fi;
#endif
#if FAULT == 5
     LENT(call, me) = false;
     use(call, 0);
#endif
#if FAULT == 7
     if
     :: k == 0 -> detach()
     :: else
     fi;
#elif FAULT != 4
     detach();
#endif
finish:
     LENT(call, me) = false;
returned:
     use(call, 0);
#if OVERLAP
next:
     skip;
#endif
     d_step { k = 0; first = 0; q = 0; again = false; call++ }
  od;
gone:
#if OVERLAP
  through[me] = true;
#endif
  skip
}

#if OVERLAP
/* Ends the first call, if that failed: ReduceStream::Fail of its context, by whoever drives that one. */
active [RANKS] proctype Ender() {
  byte me = _pid - RANKS, i;
  if
  :: failed[me] ->
#if FAULT != 4
     detach();
#endif
     LENT(0, me) = false;
     use(0, 0)
  :: through[me] && !failed[me]
  fi
}
#endif
