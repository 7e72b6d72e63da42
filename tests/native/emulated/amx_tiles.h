// Matrix units in plain code: the functions of csrc/simd/amx_tiles.h, for a processor without AMX.
//
// Follows the instructions' description in Intel's manual: bfloat16 products add even and odd members of the pairs
// apart, subnormal numbers count as zero on both sides. Tiles that are used without a configuration end the process,
// as the instruction would.
#pragma once

#include <immintrin.h>

#include <cmath>

#include "kernels.h"

namespace wavecore::WAVECORE_ISA {

struct EmulatedTiles {
  bool configured = false;
  alignas(64) char bytes[8][16][64];
};

inline EmulatedTiles& emulated_tiles() {
  thread_local EmulatedTiles tiles;
  return tiles;
}

template <int tile>
inline char (&emulated_tile())[16][64] {
  static_assert(tile >= 0 && tile < 8, "there are eight tiles");
  if (!emulated_tiles().configured) __builtin_trap();
  return emulated_tiles().bytes[tile];
}

inline void configure_tiles() {
  emulated_tiles().configured = true;
  std::memset(emulated_tiles().bytes, 0, sizeof emulated_tiles().bytes);
}
inline void release_tiles() { emulated_tiles().configured = false; }

template <int tile>
inline void tile_zero() {
  std::memset(emulated_tile<tile>(), 0, 1024);
}
template <int tile>
inline void tile_load(const void* from, int64_t stride) {
  auto& to = emulated_tile<tile>();
  for (int r = 0; r < 16; ++r) std::memcpy(to[r], static_cast<const char*>(from) + r * stride, 64);
}
template <int tile>
inline void tile_load_once(const void* from, int64_t stride) {
  tile_load<tile>(from, stride);
}
template <int tile>
inline void tile_store(void* to, int64_t stride) {
  auto& from = emulated_tile<tile>();
  for (int r = 0; r < 16; ++r) std::memcpy(static_cast<char*>(to) + r * stride, from[r], 64);
}

inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }
inline float flushed_bf16(const char* p) {
  uint16_t half;
  std::memcpy(&half, p, sizeof half);
  return flushed(emulated::bits<float>(uint32_t(half) << 16));
}

template <int sums_tile, int left_tile, int right_tile>
inline void tile_dot_bf16() {
  auto &sums = emulated_tile<sums_tile>(), &left = emulated_tile<left_tile>(), &right = emulated_tile<right_tile>();
  float wide[32][16];  // [k][n]
  for (int k = 0; k < 32; ++k)
    for (int n = 0; n < 16; ++n) wide[k][n] = flushed_bf16(right[k / 2] + 4 * n + 2 * (k % 2));
  for (int m = 0; m < 16; ++m) {
    float parts[2][16] = {};
    for (int k = 0; k < 32; ++k) {
      float x = flushed_bf16(left[m] + 2 * k);
      for (int n = 0; n < 16; ++n) parts[k % 2][n] = flushed(std::fma(x, wide[k][n], parts[k % 2][n]));
    }
    float row[16];
    std::memcpy(row, sums[m], sizeof row);
    for (int n = 0; n < 16; ++n) row[n] = flushed(flushed(row[n]) + flushed(parts[0][n] + parts[1][n]));
    std::memcpy(sums[m], row, sizeof row);
  }
}

template <int sums_tile, int left_tile, int right_tile>
inline void tile_dot_int8() {
  auto &sums = emulated_tile<sums_tile>(), &left = emulated_tile<left_tile>(), &right = emulated_tile<right_tile>();
  for (int m = 0; m < 16; ++m) {
    uint32_t row[16];
    std::memcpy(row, sums[m], sizeof row);
    for (int k = 0; k < 64; ++k)
      for (int n = 0; n < 16; ++n)
        row[n] += uint32_t(int32_t(int8_t(left[m][k])) * int32_t(int8_t(right[k / 4][4 * n + k % 4])));
    std::memcpy(sums[m], row, sizeof row);
  }
}

inline void store_pair(bf16* p, V low, V high) {
  store(p, low);
  store(p + 16, high);
}
inline void stream_pair(bf16* p, V low, V high) {
  if (reinterpret_cast<uintptr_t>(p) % 64) __builtin_trap();
  store_pair(p, low, high);
}

}  // namespace wavecore::WAVECORE_ISA
