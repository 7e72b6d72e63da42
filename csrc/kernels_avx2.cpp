// The kernels for AVX2, FMA and F16C.
#define WAVECORE_ISA avx2
#include "simd/avx2.h"
#include "kernels/table.h"
