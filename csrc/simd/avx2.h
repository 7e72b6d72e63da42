// Vectors of eight floats: AVX2, FMA and F16C.
#pragma once

#include <immintrin.h>

#include "../kernels.h"

namespace wavecore::WAVECORE_ISA {

constexpr int W = 8;
constexpr int kRows = 6;  // 6 x 2 accumulators, two vectors of the right side and a broadcast fill 16 registers
constexpr int kVectors = 2;

typedef __m256 V;

inline V set1(float x) { return _mm256_set1_ps(x); }
inline V zero() { return _mm256_setzero_ps(); }

inline V load(const float* p) { return _mm256_loadu_ps(p); }
inline V load(const bf16* p) {
  __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
inline V load(const fp16* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

inline __m256i rounded_to_bf16(V v) {  // in the upper halves, but for a NaN
  __m256i bits = _mm256_castps_si256(v);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}
inline __m128i narrow_bf16(V v) {
  __m256i rounded = rounded_to_bf16(v);
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  rounded = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc00000), nan), 16);
  __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08);
  return _mm256_castsi256_si128(packed);
}
inline __m128i narrow_fp16(V v) { return _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
inline void store(float* p, V v) { _mm256_storeu_ps(p, v); }
inline void store(bf16* p, V v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow_bf16(v)); }
inline void store(fp16* p, V v) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow_fp16(v)); }

// Two vectors of numbers as those at even and those at odd places.
inline void load_pairs(const bf16* p, V& even, V& odd) {
  __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  even = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
  odd = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(int32_t(0xffff0000))));
}
// The other way round; a NaN stays one if its lower half is zero.
inline void store_pairs(bf16* p, V even, V odd) {
  __m256i low = _mm256_srli_epi32(rounded_to_bf16(even), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_blend_epi16(low, rounded_to_bf16(odd), 0xaa));
}

// Past the caches, to an address that is a multiple of the vector's size in memory: for what is not read soon. Visible
// to other threads after `finish_streams`.
inline void stream(float* p, V v) { _mm256_stream_ps(p, v); }
inline void stream(bf16* p, V v) { _mm_stream_si128(reinterpret_cast<__m128i*>(p), narrow_bf16(v)); }
inline void stream(fp16* p, V v) { _mm_stream_si128(reinterpret_cast<__m128i*>(p), narrow_fp16(v)); }
inline void finish_streams() { _mm_sfence(); }

inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
inline V maximum(V a, V b) { return _mm256_max_ps(a, b); }
inline V minimum(V a, V b) { return _mm256_min_ps(a, b); }

inline float sum(V v) {
  __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_add_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}
inline float largest(V v) {
  __m128 half = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  half = _mm_max_ps(half, _mm_movehl_ps(half, half));
  return _mm_cvtss_f32(_mm_max_ss(half, _mm_movehdup_ps(half)));
}

inline V rotate(V x, V r) {
  V swapped = _mm256_permute_ps(x, 0xb1);
  return _mm256_fmaddsub_ps(x, _mm256_moveldup_ps(r), _mm256_mul_ps(swapped, _mm256_movehdup_ps(r)));
}

inline V split_exponent(V x, V& whole) {
  V magic = set1(0x1.8p23f);
  whole = _mm256_add_ps(x, magic);
  return _mm256_sub_ps(x, _mm256_sub_ps(whole, magic));
}
inline V times_power(V v, V whole) {
  __m256i power = _mm256_add_epi32(_mm256_castps_si256(whole), _mm256_set1_epi32(127));
  return _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(power, 23)));
}
constexpr bool kPowersSaturate = false;

// The nearest integers, within int8.
inline void store_rounded(int8_t* p, V v) {
  __m256i wide = _mm256_cvtps_epi32(v);
  __m128i narrow = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(narrow, narrow));
}
inline V load_integers(const int32_t* p) {
  return _mm256_cvtepi32_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

// Dot products of int8 numbers, which are widened to int16 for the pairwise multiply-add. With unsigned operands of
// 8 bits the sum of a pair could saturate.
typedef __m256i Sums;
typedef int16_t Left;
typedef int16_t Right;
constexpr int kDot = 16;  // operands of a vector
constexpr int kDotRows = 2;
constexpr bool kLeftIsShifted = false;

inline Sums no_sums() { return _mm256_setzero_si256(); }
inline void widen_left(const int8_t* from, Left* to) {
  __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_cvtepi8_epi16(narrow));
}
inline void widen_right(const int8_t* from, Right* to) { widen_left(from, to); }
inline Sums load_operands(const int16_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
// The compiler would read the right side from memory for every row and copy each sum: half the speed.
inline Sums dot(Sums left, Sums right, Sums sums) {
  Sums product;
  __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sums), "=&x"(product) : "x"(left), "x"(right));
  return sums;
}
// Adds the totals of four vectors to four numbers.
inline void add_totals(const Sums* parts, int32_t* out) {
  __m256i pairs = _mm256_hadd_epi32(_mm256_hadd_epi32(parts[0], parts[1]), _mm256_hadd_epi32(parts[2], parts[3]));
  __m128i totals = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  __m128i* to = reinterpret_cast<__m128i*>(out);
  _mm_storeu_si128(to, _mm_add_epi32(_mm_loadu_si128(to), totals));
}

inline void transpose(V* r) {
  V t[8];
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  V u[8];
#pragma GCC unroll 8
  for (int i = 0; i < 2; ++i) {
    u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

}  // namespace wavecore::WAVECORE_ISA
