/* The flags and credits of the stream scheduler: three stages, two layers, two generations of pages.
 *
 * Stage s sends each layer of each tick to every stage below it. An edge has, for each layer, a counter of what is
 * ready and a counter of what was read. A page holds the tick that was written to it; while it is being written it
 * holds TORN. Stage 1 may end at any time; the watchdog then ends the others.
 *
 *   spin -a wave.pml && cc -O2 -DSAFETY -o pan pan.c && ./pan          no torn or stale page, no deadlock
 *   spin -a -DNO_CREDITS wave.pml && ...                               finds a page overwritten while it is read
 */
#define STAGES 3
#define LAYERS 1
#define TICKS 4
#define GENERATIONS 2
#define TORN 99

#define EDGE(from, to, layer) (((from) * STAGES + (to)) * LAYERS + (layer))
#define PAGE(from, to, layer, tick) (EDGE(from, to, layer) * GENERATIONS + (tick) % GENERATIONS)

byte ready[STAGES * STAGES * LAYERS];
byte credit[STAGES * STAGES * LAYERS];
byte page[STAGES * STAGES * LAYERS * GENERATIONS];
byte handed[STAGES];  /* ticks whose latents stage s has handed on */
bool ended = false;   /* a stage has crashed */
byte finished = 0;

/* Copies of one edge, in order, apart from the stage that asked for them. */
proctype Copies(byte from; byte to) {
  byte tick = 1, layer;
  do
  :: tick > TICKS -> break
  :: else ->
     layer = 0;
     do
     :: layer == LAYERS -> break
     :: else ->
        /* What stage `from` has computed by then: it hands a tick on after its last layer. */
#ifndef NO_CREDITS
        if
        :: tick <= GENERATIONS || credit[EDGE(from, to, layer)] >= tick - GENERATIONS
        :: ended -> goto over
        fi;
#endif
        if
        :: handed[from] >= tick
        :: ended -> goto over
        fi;
        page[PAGE(from, to, layer, tick)] = TORN;
        page[PAGE(from, to, layer, tick)] = tick;
        ready[EDGE(from, to, layer)] = tick;
        layer++
     od;
     tick++
  od;
over:
  skip
}

proctype Stage(byte self) {
  byte tick = 1, layer, other;
  do
  :: tick > TICKS -> break
  :: else ->
     if
     :: self == 1 && !ended -> ended = true; goto over  /* a crash */
     :: true
     fi;
     /* The point of publication; what follows in the round reads others. */
     handed[self] = tick;
     layer = 0;
     do
     :: layer == LAYERS -> break
     :: else ->
        other = self + 1;
        do
        :: other >= STAGES -> break
        :: else ->
           if
           :: ready[EDGE(other, self, layer)] >= tick
           :: ended -> goto over
           fi;
           assert(page[PAGE(other, self, layer, tick)] == tick);  /* attention begins */
           assert(page[PAGE(other, self, layer, tick)] == tick);  /* and ends */
           credit[EDGE(other, self, layer)] = tick;
           other++
        od;
        layer++
     od;
     tick++
  od;
over:
  finished++
}

init {
  byte from, to;
  atomic {
    from = 0;
    do
    :: from == STAGES -> break
    :: else ->
       run Stage(from);
       to = 0;
       do
       :: to == from -> break
       :: else -> run Copies(from, to); to++
       od;
       from++
    od
  }
  finished == STAGES
}
