// The kernels for AVX-512 with the integer dot products of VNNI.
#define WAVECORE_ISA avx512_vnni
#include "simd/avx512.h"
#include "kernels/table.h"
