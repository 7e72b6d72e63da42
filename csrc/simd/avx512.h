// Vectors of sixteen floats: AVX-512 F, BW, DQ and VL.
#pragma once

#include <immintrin.h>

#include "../kernels.h"

namespace wavecore::WAVECORE_ISA {

constexpr int W = 16;
constexpr int kRows = 12;  // 12 x 2 accumulators of the 32 registers
constexpr int kVectors = 2;

typedef __m512 V;

inline V set1(float x) { return _mm512_set1_ps(x); }
inline V zero() { return _mm512_setzero_ps(); }

inline V load(const float* p) { return _mm512_loadu_ps(p); }
inline V load(const bf16* p) {
  __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
inline V load(const fp16* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

inline void store(float* p, V v) { _mm512_storeu_ps(p, v); }
inline __m512i rounded_to_bf16(V v) {  // in the upper halves, but for a NaN
  __m512i bits = _mm512_castps_si512(v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
}
inline __m256i narrow_bf16(V v) {
  __m512i rounded = rounded_to_bf16(v);
  __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  rounded = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc00000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}
inline __m256i narrow_fp16(V v) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT); }
inline void store(bf16* p, V v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(v)); }
inline void store(fp16* p, V v) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow_fp16(v)); }

// Two vectors of numbers as those at even and those at odd places.
inline __m512i upper_halves(__m512i v) { return _mm512_and_si512(v, _mm512_set1_epi32(int32_t(0xffff0000))); }
inline void load_pairs(const bf16* p, V& even, V& odd) {
  __m512i both = _mm512_loadu_si512(p);
  even = _mm512_castsi512_ps(_mm512_slli_epi32(both, 16));
  odd = _mm512_castsi512_ps(upper_halves(both));
}
// The other way round; a NaN stays one if its lower half is zero.
inline void store_pairs(bf16* p, V even, V odd) {
  __m512i low = _mm512_srli_epi32(rounded_to_bf16(even), 16);
  _mm512_storeu_si512(p, _mm512_xor_si512(low, upper_halves(rounded_to_bf16(odd))));
}

// Past the caches, to an address that is a multiple of the vector's size in memory: for what is not read soon. Visible
// to other threads after `finish_streams`.
inline void stream(float* p, V v) { _mm512_stream_ps(p, v); }
inline void stream(bf16* p, V v) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), narrow_bf16(v)); }
inline void stream(fp16* p, V v) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), narrow_fp16(v)); }
inline void finish_streams() { _mm_sfence(); }

inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
inline V maximum(V a, V b) { return _mm512_max_ps(a, b); }
inline V minimum(V a, V b) { return _mm512_min_ps(a, b); }

inline float sum(V v) { return _mm512_reduce_add_ps(v); }
inline float largest(V v) { return _mm512_reduce_max_ps(v); }

inline V rotate(V x, V r) {
  V swapped = _mm512_permute_ps(x, 0xb1);
  return _mm512_fmaddsub_ps(x, _mm512_moveldup_ps(r), _mm512_mul_ps(swapped, _mm512_movehdup_ps(r)));
}

inline V split_exponent(V x, V& whole) {
  V fraction = _mm512_reduce_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  whole = _mm512_sub_ps(x, fraction);
  return fraction;
}
inline V times_power(V v, V whole) { return _mm512_scalef_ps(v, whole); }
constexpr bool kPowersSaturate = true;

// The nearest integers, within int8.
inline void store_rounded(int8_t* p, V v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v)));
}
inline V load_integers(const int32_t* p) { return _mm512_cvtepi32_ps(_mm512_loadu_si512(p)); }

// Dot products of int8 numbers.
typedef __m512i Sums;
constexpr int kDotRows = 4;
inline Sums no_sums() { return _mm512_setzero_si512(); }

#if defined(__AVX512VNNI__)
// The instruction wants an unsigned left side: 128 is added to it, and what that adds to the sums is taken off.
typedef uint8_t Left;
typedef int8_t Right;
constexpr int kDot = 64;  // operands of a vector
constexpr bool kLeftIsShifted = true;

inline Sums load_operands(const void* p) { return _mm512_loadu_si512(p); }
inline void widen_left(const int8_t* from, Left* to) {
  _mm512_storeu_si512(to, _mm512_xor_si512(_mm512_loadu_si512(from), _mm512_set1_epi8(-128)));
}
inline void widen_right(const int8_t* from, Right* to) { _mm512_storeu_si512(to, _mm512_loadu_si512(from)); }
inline Sums shifted_zeros() { return _mm512_set1_epi8(-128); }
inline Sums dot(Sums left, Sums right, Sums sums) {
#if defined(WAVECORE_EMULATE_VNNI)
  return _mm512_dpbusd_epi32(sums, left, right);
#else
  // With the intrinsic GCC 12 copies every sum to another register and back.
  asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(left), "v"(right));
  return sums;
#endif
}
#else
// Widened to int16 for the pairwise multiply-add.
typedef int16_t Left;
typedef int16_t Right;
constexpr int kDot = 32;
constexpr bool kLeftIsShifted = false;

inline Sums load_operands(const int16_t* p) { return _mm512_loadu_si512(p); }
inline void widen_left(const int8_t* from, Left* to) {
  _mm512_storeu_si512(to, _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
}
inline void widen_right(const int8_t* from, Right* to) { widen_left(from, to); }
inline Sums dot(Sums left, Sums right, Sums sums) {
  return _mm512_add_epi32(sums, _mm512_madd_epi16(left, right));
}
#endif

// Adds the totals of four vectors to four numbers.
inline void add_totals(const Sums* parts, int32_t* out) {
  __m256i halves[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    halves[i] = _mm256_add_epi32(_mm512_castsi512_si256(parts[i]), _mm512_extracti64x4_epi64(parts[i], 1));
  __m256i pairs = _mm256_hadd_epi32(_mm256_hadd_epi32(halves[0], halves[1]), _mm256_hadd_epi32(halves[2], halves[3]));
  __m128i totals = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  __m128i* to = reinterpret_cast<__m128i*>(out);
  _mm_storeu_si128(to, _mm_add_epi32(_mm_loadu_si128(to), totals));
}

inline void transpose(V* r) {
  // 4 x 4 blocks inside the 128-bit lanes, then the lanes themselves.
  V t[16];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  V u[16];  // u[4 * i + c]: rows 4 * i to 4 * i + 3 of the columns c, c + 4, c + 8, c + 12
#pragma GCC unroll 8
  for (int i = 0; i < 4; ++i) {
    u[4 * i] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    u[4 * i + 1] = _mm512_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    u[4 * i + 2] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    u[4 * i + 3] = _mm512_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
#pragma GCC unroll 8
  for (int c = 0; c < 4; ++c) {
    V low01 = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x44);
    V high01 = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xee);
    V low23 = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x44);
    V high23 = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xee);
    r[c] = _mm512_shuffle_f32x4(low01, low23, 0x88);
    r[c + 4] = _mm512_shuffle_f32x4(low01, low23, 0xdd);
    r[c + 8] = _mm512_shuffle_f32x4(high01, high23, 0x88);
    r[c + 12] = _mm512_shuffle_f32x4(high01, high23, 0xdd);
  }
}

}  // namespace wavecore::WAVECORE_ISA
