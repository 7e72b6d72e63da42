/* The flags and credits of the stream scheduler: three stages, two generations of pages, at most one crash.
 *
 * A rank runs its stages of a tick one after the other, cleanest (the highest) first. Stage s reads what the stages above
 * it write in the same tick. A slot goes once to every other rank that reads it. For each stage there is a counter of
 * what is ready at a rank, and for each pair of ranks one of the tick that was read. Layers have counters and pages of
 * their own and so are independent of each other: one is enough. A page holds the tick that was written to it, and TORN
 * while it is being written. Rank 1 may end at any time; the others then end.
 *
 *   spin -a wave.pml && cc -O2 -DSAFETY -o pan pan.c && ./pan      no torn or stale page, no deadlock
 *   spin -DRANKS=2 -a wave.pml && ...                              the same with two ranks that take the stages in turn
 *   spin -DNO_CREDITS -a wave.pml && ...                           finds a page overwritten while it is read
 */
#define STAGES 3
#define TICKS 3
#define GENERATIONS 2
#define TORN 99
#ifndef RANKS
#define RANKS STAGES
#endif

#define RANK(stage, tick) (((stage) + RANKS * STAGES * TICKS - (tick) * STAGES) % RANKS)
#define EDGE(stage, rank) ((stage) * RANKS + (rank))
#define PAGE(stage, rank, tick) (EDGE(stage, rank) * GENERATIONS + (tick) % GENERATIONS)

byte ready[STAGES * RANKS];
byte credit[RANKS * RANKS]; /* of the rank that reads, at the one that writes */
byte page[STAGES * RANKS * GENERATIONS];
byte published[STAGES]; /* the tick whose keys and values stage s has computed */
bool ended = false;     /* a rank has crashed */
byte finished = 0;

/* Copies of what a stage writes to one rank, in order, apart from the ranks that asked for them. */
proctype Copies(byte stage; byte to) {
  byte tick = 1, reader;
  bool reads;
  do
  :: tick > TICKS -> break
  :: else ->
     if
     :: published[stage] >= tick
     :: ended -> break
     fi;
     atomic {
       reader = 0;
       do
       :: reader < stage && RANK(reader, tick) != to -> reader++
       :: else -> break
       od;
       reads = reader < stage && RANK(stage, tick) != to; /* or it has it */
       reader = 0
     }
     if
     :: !reads -> tick++
     :: reads ->
#ifndef NO_CREDITS
        if
        :: tick <= GENERATIONS || credit[to * RANKS + RANK(stage, tick)] >= tick - GENERATIONS
        :: ended -> break
        fi;
#endif
        page[PAGE(stage, to, tick)] = TORN;
        page[PAGE(stage, to, tick)] = tick;
        atomic { ready[EDGE(stage, to)] = tick; tick++ }
     fi
  od
}

proctype Rank(byte self) {
  byte tick = 1, stage, other;
  do
  :: tick > TICKS -> break
  :: else ->
     if
     :: self == 1 && !ended -> ended = true; break /* a crash */
     :: true
     fi;
     stage = STAGES;
     do
     :: atomic {
          do /* to the next stage of this rank */
          :: stage > 0 && RANK(stage - 1, tick) != self -> stage--
          :: else -> break
          od;
          if
          :: stage == 0 -> break
          :: else -> stage--; published[stage] = tick; other = stage + 1
          fi
        }
        do
        :: atomic {
             do /* to the next one that it reads from another rank */
             :: other < STAGES && RANK(other, tick) == self -> other++
             :: else -> break
             od;
             if
             :: other == STAGES -> break
             :: else
             fi
           }
           if
           :: ready[EDGE(other, self)] >= tick
           :: ended -> goto over
           fi;
           assert(page[PAGE(other, self, tick)] == tick); /* attention begins */
           atomic { assert(page[PAGE(other, self, tick)] == tick); other++ } /* and ends */
        od
     od;
     atomic {
       other = 0;
       do
       :: other < RANKS -> credit[self * RANKS + other] = tick; other++
       :: else -> break
       od;
       other = 0;
       tick++
     }
  od;
over:
  finished++
}

init {
  byte stage, rank = 0;
  atomic {
    do
    :: rank < RANKS ->
       run Rank(rank);
       stage = 1;
       do
       :: stage < STAGES ->
          if
          :: RANKS < STAGES || stage > rank -> run Copies(stage, rank)
          :: else
          fi;
          stage++
       :: else -> break
       od;
       rank++
    :: else -> break
    od
  }
  finished == RANKS
}
