// The kernels with the compiler baseline.
#define WAVECORE_ISA portable
#include "simd/portable.h"
#include "kernels/table.h"
