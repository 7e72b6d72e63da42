// The kernels for AVX-512 F, BW, DQ and VL.
#define WAVECORE_ISA avx512
#include "simd/avx512.h"
#include "kernels/table.h"
