/* The flags and credits of the stream scheduler: three stages, two generations of pages, at most one crash.
 *
 * Stage s sends each tick to every stage below it. An edge has a counter of what is ready and one of what was read.
 * Layers have counters and pages of their own and so are independent of each other: one is enough. A page holds the
 * tick that was written to it, and TORN while it is being written. Stage 1 may end at any time; the others then end.
 *
 *   spin -a wave.pml && cc -O2 -DSAFETY -o pan pan.c && ./pan      no torn or stale page, no deadlock
 *   spin -DNO_CREDITS -a wave.pml && ...                           finds a page overwritten while it is read
 */
#define STAGES 3
#define TICKS 3
#define GENERATIONS 2
#define TORN 99

#define EDGE(from, to) ((from) * STAGES + (to))
#define PAGE(from, to, tick) (EDGE(from, to) * GENERATIONS + (tick) % GENERATIONS)

byte ready[STAGES * STAGES];
byte credit[STAGES * STAGES];
byte page[STAGES * STAGES * GENERATIONS];
byte published[STAGES]; /* the tick whose keys and values stage s has computed */
bool ended = false;     /* a stage has crashed */
byte finished = 0;

/* Copies of one edge, in order, apart from the stage that asked for them. */
proctype Copies(byte from; byte to) {
  byte tick = 1;
  do
  :: tick > TICKS -> break
  :: else ->
     if
     :: published[from] >= tick
     :: ended -> break
     fi;
#ifndef NO_CREDITS
     if
     :: tick <= GENERATIONS || credit[EDGE(from, to)] >= tick - GENERATIONS
     :: ended -> break
     fi;
#endif
     page[PAGE(from, to, tick)] = TORN;
     page[PAGE(from, to, tick)] = tick;
     atomic { ready[EDGE(from, to)] = tick; tick++ }
  od
}

proctype Stage(byte self) {
  byte tick = 1, other;
  do
  :: tick > TICKS -> break
  :: else ->
     if
     :: self == 1 && !ended -> ended = true; break /* a crash */
     :: true
     fi;
     atomic { published[self] = tick; other = self + 1 };
     do
     :: other >= STAGES -> break
     :: else ->
        if
        :: ready[EDGE(other, self)] >= tick
        :: ended -> goto over
        fi;
        assert(page[PAGE(other, self, tick)] == tick); /* attention begins */
        assert(page[PAGE(other, self, tick)] == tick); /* and ends */
        atomic { credit[EDGE(other, self)] = tick; other++ }
     od;
     tick++
  od;
over:
  finished++
}

init {
  atomic {
    run Stage(0);
    run Stage(1);
    run Stage(2);
    run Copies(1, 0);
    run Copies(2, 0);
    run Copies(2, 1)
  }
  finished == STAGES
}
