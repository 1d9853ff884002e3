/* A producer's batch of one message, as in schedule.h; included by admission.pml for the mortal and the other ones.
 * ALIVE guards every step; ANNOUNCE, NOTE_POSITION and CLEAR_STEP are stores to the intent, FLIP its bit in the permits. */
    byte m = 0, seen = 0;
    bit owed = 0, again = 0;
    do
    :: atomic { m == COUNT -> break }
    :: atomic { m < COUNT -> skip };
begin:
       /* sp_admission_enter */
       if
       :: atomic { ALIVE && !ROOM -> goto refused }
       :: atomic { ALIVE && ROOM && phase != IDLE -> goto join }
       :: d_step { ALIVE && ROOM && phase == IDLE -> NOTE_POSITION }
       fi;
#ifdef X_NO_PERMIT
       goto open;
#endif
       ANNOUNCE(step = TAKE; next_flip = 1 - flip)
       if
       :: d_step { ALIVE && permits < PERMITS -> permits++; FLIP }
       :: atomic { ALIVE && permits >= PERMITS ->
            d_step { CLEAR_STEP; if :: again -> again = 0; owed = 1 :: else -> again = 1; owed = 0 fi };
            if :: owed -> owed = 0; goto refused :: else -> goto begin fi }
       fi;
open:  skip;
       ANNOUNCE(step = OPEN)
       if
       :: atomic { ALIVE && phase == IDLE && ROOM ->
            d_step { phase = FINALIZING; in_flight = in_flight | BIT(p); reserved++; CHECK_S4 }; goto write }
       :: d_step { ALIVE && !(phase == IDLE && ROOM) -> skip }
       fi;
       ANNOUNCE(step = GIVE; next_flip = 1 - flip)
       d_step { ALIVE -> assert(permits > 0); permits--; FLIP };
       atomic { ALIVE -> d_step { CLEAR_STEP }; goto begin };
join:  skip;
       ANNOUNCE(NOTE_POSITION; step = JOIN)
       if
       :: d_step { ALIVE && phase != IDLE && ROOM -> in_flight = in_flight | BIT(p); reserved++ }
       :: atomic { ALIVE && !(phase != IDLE && ROOM) -> d_step { CLEAR_STEP }; goto begin }
       fi;
write: skip;
       /* sp_admission_commit: the batch is real once its position is published */
       ANNOUNCE(step = WRITE)
       d_step { ALIVE -> PUT(p, p * MESSAGES + m + 1); real[p * MESSAGES + m] = 1 };
commit: skip;
       /* sp_admission_settle */
#if MORTAL
       /* the step is announced for the word that was seen; another phase by then: once more */
       d_step { ALIVE -> seen = phase; if :: seen == FINALIZING -> step = COMMIT_RUN :: else -> step = COMMIT_PLAIN fi };
       if
       :: d_step { ALIVE && phase == seen -> seen = 0; commit_word(p, owed) }
       :: atomic { ALIVE && phase != seen -> goto commit }
       fi;
#else
       d_step { commit_word(p, owed) };
#endif
#ifdef X_NO_TOKEN
       owed = 0;
#endif
#ifndef X_RING_BEFORE_TOKEN
       if
       :: d_step { ALIVE && owed -> PUT(p, TOKEN); owed = 0 }
       :: atomic { ALIVE && !owed -> skip }
       fi;
       ANNOUNCE(CLEAR_STEP)
#endif
       /* sp_node_ring: ring, then clear the very declaration that was seen */
       if
       :: d_step { ALIVE && parked != 0 -> seen_park[p] = parked };
#ifdef X_CLEAR_THEN_RING
          if
          :: d_step { ALIVE && parked == seen_park[p] -> parked = 0 }; d_step { ALIVE -> bell = 1; seen_park[p] = 0 }
          :: d_step { ALIVE && parked != seen_park[p] -> seen_park[p] = 0 }
          fi
#else
          d_step { ALIVE -> bell = 1 };
          d_step { ALIVE -> if :: parked == seen_park[p] -> parked = 0 :: else fi; seen_park[p] = 0 }
#endif
       :: d_step { ALIVE && parked == 0 -> skip }
       fi;
#ifdef X_RING_BEFORE_TOKEN
       if
       :: d_step { ALIVE && owed -> PUT(p, TOKEN); owed = 0 }
       :: atomic { ALIVE && !owed -> skip }
       fi;
#endif
refused: skip;
       atomic { ALIVE -> d_step { CLEAR_STEP; m++; again = 0; owed = 0 } }
    od
