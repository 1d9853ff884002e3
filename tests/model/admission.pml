/* Admission, permits, schedule word, doorbell and a producer's death (M-18), step by step as in shardpool/_core.
 *
 * One object, one shard, PRODUCERS x MESSAGES. One d_step is one operation on shared memory; what is private between
 * two of them belongs to the first. Where it is stored does not matter to anybody but the supervisor, an announced step
 * is part of the next d_step, so only the mortal producer 0 announces (DEATH).
 *
 *   header     schedule.h step                              here
 *   word       phase, dirty, in flight, reservation         phase, dirty, in_flight, reserved (one exchange: merged)
 *   permits    in use, flips                                permits, flip
 *   ring       producer, consumer                           published, taken
 *   slot       done                                         done; the lane is lane[done .. linked-1]
 *
 * Checked: S2, S3 and S4 where they could break, S1, S5, T1, T2 and D1 at rest (nobody can move: `timeout`).
 *
 * Switches    -DPRODUCERS=2 -DMESSAGES=2 -DPERMITS=1 -DLANE=9   sizes
 *             -DDEATH          producer 0 may die at any step; the supervisor settles for it
 *             -DSTOP           producer 0 may stop for ever without being dead: the others' messages run all the same
 *             -DX_...          one planted mistake; each must be found (test_spin.py names them)
 */
#ifndef PRODUCERS
#define PRODUCERS 2
#endif
#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef MORTAL_MESSAGES
#define MORTAL_MESSAGES MESSAGES
#endif
#ifndef PERMITS
#define PERMITS 1
#endif
#ifndef LANE
#define LANE 9
#endif

#define ALL (PRODUCERS * MESSAGES)
#define SUPERVISOR PRODUCERS
#define LINKS (PRODUCERS + 1)
#define PLACES (2 * MESSAGES + 1)
#define BIT(p) (1 << (p))
#define TOKEN 31

/* phases */
#define IDLE 0
#define RUNNABLE 1
#define RUNNING 2
#define FINALIZING 4

/* steps of an intent */
#define NONE 0
#define TAKE 1
#define OPEN 2
#define GIVE 3
#define JOIN 4
#define WRITE 5
#define COMMIT_RUN 6
#define COMMIT_PLAIN 7

/* the schedule word and the reservations */
byte phase, in_flight, reserved, done, linked;
bit dirty;
byte lane[ALL];
/* the shard's header */
byte permits, parked;
bit flip, bell, queued;
/* the links into the shard */
byte record[LINKS * PLACES];
byte published[LINKS], taken[LINKS];
/* the intent of producer 0 */
byte step, position;
bit next_flip, dead, settled;
/* declarations that producers have seen and not dealt with */
byte seen_park[3];
/* what is true, whatever the words say */
bit real[ALL], ran[ALL], inside;

#define PUT(link, what) record[(link) * PLACES + published[link]] = what; published[link] = published[link] + 1
#define ROOM (reserved - done < LANE)
#define SEEN(n) (seen_park[0] == n || seen_park[1] == n || seen_park[2] == n)
#define HELD (phase == RUNNABLE || phase == RUNNING || phase == FINALIZING)
#define CHECK_S4 assert(permits >= HELD)

/* S3: no record (tokens do not count) is published and not linked. Only ever asked when nothing is in flight. */
inline check_idle(i, k) {
    assert(in_flight == 0 && done == linked);
    i = 0;
    do
    :: i < PRODUCERS ->
        k = taken[i];
        do
        :: k < published[i] -> assert(record[i * PLACES + k] == TOKEN); k++
        :: else -> break
        od;
        i++
    :: else -> break
    od;
    i = 0; k = 0
}

/* sp_word_committed: what clearing one's bit does; owed: a token */
inline commit_word(p, owed) {
    in_flight = in_flight & ~BIT(p);
    if
    :: phase == FINALIZING -> phase = RUNNABLE; owed = 1
#ifdef X_NO_DIRTY
#else
    :: phase == RUNNING -> dirty = 1; owed = 0
#endif
    :: else -> owed = 0
    fi
}

/* A producer: `Mortal` announces each step, and stops where it is once `dead` is set. */
#if defined(DEATH) || defined(STOP)
#define MORTAL 1
#define ALIVE (!dead)
#define ANNOUNCE(what) d_step { ALIVE -> what };
#define NOTE_POSITION position = published[0]
#define CLEAR_STEP step = NONE; position = 0; next_flip = 0
#define FLIP flip = 1 - flip
#define COUNT MORTAL_MESSAGES
proctype Mortal(byte p) {
#include "producer.pml"
}
#undef MORTAL
#undef ALIVE
#undef ANNOUNCE
#undef NOTE_POSITION
#undef CLEAR_STEP
#undef FLIP
#undef COUNT
#endif
#define MORTAL 0
#define ALIVE 1
#define ANNOUNCE(what)
#define NOTE_POSITION skip
#define CLEAR_STEP skip
#define FLIP skip
#define COUNT MESSAGES
proctype Producer(byte p) {
#include "producer.pml"
}

/* The shard */

/* sp_executor_link and sp_executor_take: a token, or a record into the lane; either makes a Runnable object queued */
inline take(link, what) {
    what = record[link * PLACES + taken[link]];
    record[link * PLACES + taken[link]] = 0;
    taken[link] = taken[link] + 1;
    if
    :: what == TOKEN -> if :: phase == RUNNABLE -> queued = 1 :: else fi
    :: else ->
        lane[linked] = what;
        linked++;
        if
#ifndef X_LINK_IS_NO_TOKEN
        :: phase == FINALIZING -> phase = RUNNABLE; queued = 1
        :: phase == RUNNABLE -> queued = 1
#endif
        :: else
        fi
    fi;
    what = 0
}

inline look(link, what) {
    do
    :: d_step { link < LINKS && taken[link] < published[link] -> take(link, what) }
    :: d_step { link < LINKS && taken[link] == published[link] -> link++ }
    :: atomic { link == LINKS -> link = 0; break }
    od
}

proctype Shard() {
    byte link = 0, what = 0, seen = 0;
    bit was_dirty = 0;
loop:
    look(link, what);
    if
    :: queued -> goto start
    :: !queued -> goto park
    fi;
start: skip;
#ifdef X_LOOK_BEFORE
    look(link, what);
#endif
    atomic {
        d_step { queued = 0 };
        if
        :: phase == RUNNABLE -> phase = RUNNING; dirty = 0
        :: else -> goto loop
        fi
    };
#ifndef X_LOOK_BEFORE
    look(link, what);   /* after Running, not before */
#endif
    do
    :: d_step { done < linked -> assert(!inside); inside = 1 };
       d_step {
           what = lane[done] - 1;
           assert(real[what] && !ran[what]);             /* T2, S1 */
           assert(what % MESSAGES == 0 || ran[what - 1] || !real[what - 1]); /* order */
           ran[what] = 1; what = 0; inside = 0; lane[done] = 0; done++
       };
       if :: skip :: break fi                            /* the budget may end any drain */
    :: else -> break
    od;
finish: skip;
#ifdef X_PERMIT_FIRST
    d_step { if :: !(done < linked || dirty) && !in_flight -> permits--; was_dirty = 1 :: else fi };
#endif
    atomic {
        if
        :: done < linked || dirty -> phase = RUNNABLE; dirty = 0; queued = 1;
#ifdef X_PERMIT_FIRST
           if :: was_dirty -> permits++; was_dirty = 0 :: else fi;
#endif
           CHECK_S4; goto loop
#ifndef X_NO_IN_FLIGHT
        :: !(done < linked || dirty) && in_flight -> phase = FINALIZING;
#ifdef X_PERMIT_FIRST
           if :: was_dirty -> permits++; was_dirty = 0 :: else fi;
#endif
           CHECK_S4; goto loop
        :: !(done < linked || dirty) && !in_flight ->
#else
        :: !(done < linked || dirty) ->
#endif
#ifdef X_PERMIT_FIRST
           CHECK_S4;
#endif
           d_step { phase = IDLE; check_idle(what, seen) }
        fi
    };
#ifndef X_PERMIT_FIRST
    d_step { assert(permits > 0); permits-- };
#else
    d_step { was_dirty = 0 };
#endif
    goto loop;
park: skip;
    /* the number of this park: any that no producer still holds does for a new one, and keeps the states few */
    d_step { parked = 1; do :: SEEN(parked) -> parked++ :: else -> break od };
#ifndef X_NO_RECHECK
    do
    :: atomic { link < LINKS && taken[link] == published[link] -> link++ }
    :: atomic { link < LINKS && taken[link] != published[link] -> link = 0; parked = 0; goto loop }
    :: atomic { link == LINKS -> link = 0; break }
    od;
#endif
    skip;
    d_step { bell -> bell = 0 };
    d_step { parked = 0 };
    goto loop
}

#ifdef DEATH
/* settle.h; `inside_word`: the own bit in the word says that the announced exchange took place */
#define INSIDE_WORD (in_flight & BIT(0))
#define REACHED (flip == next_flip)
proctype Supervisor() {
    bit owed = 0, give = 0;
    byte i = 0, k = 0;
    dead = 1;
    if
    :: step == NONE -> goto rings
    :: step == TAKE -> give = REACHED; goto permit
    :: step == GIVE -> give = !REACHED; goto permit
    :: step == OPEN && !INSIDE_WORD -> give = 1; goto permit
    :: step == OPEN && INSIDE_WORD -> goto cancel
    :: step == JOIN -> if :: INSIDE_WORD -> goto cancel :: else -> goto rings fi
    :: step == WRITE ->
#ifdef X_SETTLE_CANCELS
       goto cancel
#elif defined(X_SETTLE_COMMITS)
       goto commit
#else
       if :: published[0] == position -> goto cancel :: else -> goto commit fi
#endif
    :: step == COMMIT_RUN ->
       if :: INSIDE_WORD -> goto commit :: else -> owed = (published[0] == position + 1); goto token fi
    :: step == COMMIT_PLAIN -> if :: INSIDE_WORD -> goto commit :: else -> goto rings fi
    fi;
cancel: skip;
    d_step {
        in_flight = in_flight & ~BIT(0);
        reserved--;
        if
        :: phase == FINALIZING && in_flight == 0 -> phase = IDLE; give = 1; check_idle(i, k)
        :: else
        fi
    };
permit: skip;
    d_step { if :: give -> assert(permits > 0); permits--; give = 0 :: else fi };
    goto rings;
commit: skip;
    d_step { commit_word(0, owed) };
token: skip;
#ifndef X_SETTLE_NO_TOKEN
    d_step { if :: owed -> PUT(SUPERVISOR, TOKEN) :: else fi; owed = 0 };
#endif
rings: skip;
#ifdef X_SETTLE_RINGS_NOBODY
    d_step { step = NONE; owed = 0; settled = 1 }
#else
    d_step { bell = 1; step = NONE; owed = 0; settled = 1 }
#endif
}
#endif

#ifdef STOP
proctype Stop() { dead = 1 }
#endif

/* At rest: everyone has ended, sleeps, or is dead. */
proctype Rest() {
    byte i = 0;
    timeout ->
    d_step {
        do
        :: i < ALL ->
#ifdef STOP
            assert(i < MESSAGES || !real[i] || ran[i]);
#else
            assert(real[i] == ran[i]);   /* S1, T2 */
#endif
            i++
        :: else -> break
        od;
#ifndef STOP
        assert(phase == IDLE && in_flight == 0 && permits == 0 && step == NONE);
        assert(reserved == done && done == linked && !queued);
        i = 0;
        do :: i < LINKS -> assert(taken[i] == published[i]); i++ :: else -> break od;
#endif
        i = 0
    }
}

init {
    atomic {
#if defined(DEATH) || defined(STOP)
        run Mortal(0);
#else
        run Producer(0);
#endif
#if PRODUCERS > 1
        run Producer(1);
#endif
#if PRODUCERS > 2
        run Producer(2);
#endif
        run Shard();
#ifdef DEATH
        run Supervisor();
#endif
#ifdef STOP
        run Stop();
#endif
        run Rest()
    }
}
