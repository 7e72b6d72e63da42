// Vectors of four floats in the compiler's vector types: SSE2, NEON or whatever the baseline has.
#pragma once

#include "../kernels.h"

namespace wavecore::WAVECORE_ISA {

constexpr int W = 4;          // floats in a vector
constexpr int kRows = 6;      // register tile of a matrix product: rows
constexpr int kVectors = 2;   // and vectors in a row

typedef float V __attribute__((vector_size(16)));
typedef uint32_t U __attribute__((vector_size(16)));

inline V set1(float x) { return V{x, x, x, x}; }
inline V zero() { return set1(0.0f); }

inline V load(const float* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
inline void store(float* p, V v) { __builtin_memcpy(p, &v, sizeof v); }

inline float widen(bf16 x) {
  uint32_t bits = uint32_t(x.bits) << 16;
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}
inline bf16 narrow_bf16(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  if (value != value) return bf16{0x7fc0};
  return bf16{uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

inline float widen(fp16 x) {
  // Shift exponent and mantissa into place and correct the exponent's bias by a product, which is exact and
  // takes care of subnormal numbers; infinity and NaN keep an exponent of all ones.
  uint32_t bits = uint32_t(x.bits & 0x7fff) << 13;
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  value *= 0x1p112f;
  __builtin_memcpy(&bits, &value, sizeof bits);
  if ((x.bits & 0x7c00) == 0x7c00) bits |= 0x7f800000;
  bits |= uint32_t(x.bits & 0x8000) << 16;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}
inline fp16 narrow_fp16(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  uint16_t sign = uint16_t((bits >> 16) & 0x8000);
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return fp16{uint16_t(sign | 0x7e00)};
  if (bits >= 0x477ff000) return fp16{uint16_t(sign | 0x7c00)};  // rounds to infinity
  if (bits < 0x38800000) {
    // Subnormal: adding 0.5 aligns the unit in the last place of float with 2^-24 and rounds to even.
    float magnitude;
    __builtin_memcpy(&magnitude, &bits, sizeof magnitude);
    magnitude += 0.5f;
    __builtin_memcpy(&bits, &magnitude, sizeof bits);
    return fp16{uint16_t(sign | (bits - 0x3f000000))};
  }
  bits += 0xfff + ((bits >> 13) & 1);
  return fp16{uint16_t(sign | ((bits - 0x38000000) >> 13))};
}

inline V load(const bf16* p) { return V{widen(p[0]), widen(p[1]), widen(p[2]), widen(p[3])}; }
inline V load(const fp16* p) { return V{widen(p[0]), widen(p[1]), widen(p[2]), widen(p[3])}; }
inline void store(bf16* p, V v) {
  for (int i = 0; i < W; ++i) p[i] = narrow_bf16(v[i]);
}
inline void store(fp16* p, V v) {
  for (int i = 0; i < W; ++i) p[i] = narrow_fp16(v[i]);
}

// There is no way past the caches.
template <typename T>
inline void stream(T* p, V v) {
  store(p, v);
}
inline void finish_streams() {}

// Two vectors of numbers as those at even and those at odd places.
inline void load_pairs(const bf16* p, V& even, V& odd) {
  for (int i = 0; i < W; ++i) {
    even[i] = widen(p[2 * i]);
    odd[i] = widen(p[2 * i + 1]);
  }
}
inline void store_pairs(bf16* p, V even, V odd) {
  for (int i = 0; i < W; ++i) {
    p[2 * i] = narrow_bf16(even[i]);
    p[2 * i + 1] = narrow_bf16(odd[i]);
  }
}

inline V fma(V a, V b, V c) { return a * b + c; }
// b where either is NaN, as the x86 instruction.
inline V maximum(V a, V b) { return a > b ? a : b; }
inline V minimum(V a, V b) { return a < b ? a : b; }

inline float sum(V v) { return (v[0] + v[2]) + (v[1] + v[3]); }
inline float largest(V v) {
  float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
  return a > b ? a : b;
}

// Rotate the pairs (x0, x1), (x2, x3) by r = (cos0, sin0, cos1, sin1).
inline V rotate(V x, V r) {
  return V{x[0] * r[0] - x[1] * r[1], x[1] * r[0] + x[0] * r[1], x[2] * r[2] - x[3] * r[3],
           x[3] * r[2] + x[2] * r[3]};
}

// x without the nearest integer n, which `whole` keeps for `times_power`; |x| < 2^22.
inline V split_exponent(V x, V& whole) {
  whole = x + set1(0x1.8p23f);  // the integer is now in the low bits
  return x - (whole - set1(0x1.8p23f));
}
// v * 2^n. Powers beyond those of a float are anything, or where they saturate 0 and infinity.
inline V times_power(V v, V whole) {
  U bits;
  __builtin_memcpy(&bits, &whole, sizeof bits);
  U power = (bits + 127) << 23;
  V scale;
  __builtin_memcpy(&scale, &power, sizeof scale);
  return v * scale;
}
constexpr bool kPowersSaturate = false;

// The nearest integers, within int8. NaN becomes -127.
inline void store_rounded(int8_t* p, V v) {
  V high = zero() - maximum(zero() - maximum(v, set1(-127.0f)), set1(-127.0f));
  for (int i = 0; i < W; ++i) p[i] = int8_t(__builtin_rintf(high[i]));
}
inline V load_integers(const int32_t* p) { return V{float(p[0]), float(p[1]), float(p[2]), float(p[3])}; }

// Dot products of int8 numbers, in floats: a sum of 1024 products of numbers up to 127 is exact.
typedef V Sums;
typedef float Left;
typedef float Right;
constexpr int kDot = 4;  // operands of a vector
constexpr int kDotRows = 2;
constexpr bool kLeftIsShifted = false;

inline Sums no_sums() { return zero(); }
inline void widen_left(const int8_t* from, Left* to) {
  for (int i = 0; i < W; ++i) to[i] = from[i];
}
inline void widen_right(const int8_t* from, Right* to) { widen_left(from, to); }
inline Sums load_operands(const float* p) { return load(p); }
inline Sums dot(Sums left, Sums right, Sums sums) { return fma(left, right, sums); }
// Adds the totals of four vectors to four numbers.
inline void add_totals(const Sums* parts, int32_t* out) {
  for (int i = 0; i < 4; ++i) out[i] += int32_t(sum(parts[i]));
}

inline void transpose(V* rows) {
  V a = rows[0], b = rows[1], c = rows[2], d = rows[3];
  for (int i = 0; i < W; ++i) rows[i] = V{a[i], b[i], c[i], d[i]};
}

}  // namespace wavecore::WAVECORE_ISA
