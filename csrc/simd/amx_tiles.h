// Matrix units (AMX): eight tiles of sixteen rows of 64 bytes, and conversion to bfloat16 (AVX512-BF16).
//
// Every instruction beyond those of AVX-512 VNNI is here and nowhere else; tests/native/emulated/amx_tiles.h has the
// same functions in plain code. GCC 12's own intrinsics say nothing of the memory that they read and write, so that
// stores before a tile load may move behind it: hence the assembly.
#pragma once

#include <immintrin.h>

#include "../kernels.h"

namespace wavecore::WAVECORE_ISA {

// Operand of LDTILECFG.
struct alignas(64) TileConfiguration {
  uint8_t palette;
  uint8_t start_row;
  uint8_t reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

constexpr TileConfiguration kEightWholeTiles{
    1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

inline void configure_tiles() { asm volatile("ldtilecfg %0" ::"m"(kEightWholeTiles)); }
inline void release_tiles() { asm volatile("tilerelease" ::: "memory"); }

template <int tile>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" ::"i"(tile));
}

// Rows lie `stride` bytes apart.
template <int tile>
inline void tile_load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(tile) : "memory");
}
// The same, for rows that are not read again soon: they leave what the first-level cache holds where it is.
template <int tile>
inline void tile_load_once(const void* from, int64_t stride) {
  asm volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(tile) : "memory");
}
template <int tile>
inline void tile_store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(tile) : "memory");
}

// sums[m][n] += left[m][k] * right[k][n]: left has rows of 32 bfloat16, right pairs (k, k + 1) of each n.
template <int sums, int left, int right>
inline void tile_dot_bf16() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(left), "i"(right));
}
// The same with rows of 64 int8 and quadruples.
template <int sums, int left, int right>
inline void tile_dot_int8() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(sums), "i"(left), "i"(right));
}

inline __m512i narrow(V low, V high) {
  __m512bh both = _mm512_cvtne2ps_pbh(high, low);
  __m512i bits;
  __builtin_memcpy(&bits, &both, sizeof bits);
  return bits;
}
inline void store_pair(bf16* p, V low, V high) { _mm512_storeu_si512(p, narrow(low, high)); }

// Past the caches, to an aligned line that is not read soon; visible to other threads after `finish_streams`.
inline void stream_pair(bf16* p, V low, V high) { _mm512_stream_si512(reinterpret_cast<__m512i*>(p), narrow(low, high)); }

}  // namespace wavecore::WAVECORE_ISA
