// Pieces that the kernels share. Included after the vector header of an instruction set.
#pragma once

namespace wavecore::WAVECORE_ISA {

// The first `count` < W elements; zeros behind them.
template <typename T>
inline V load_part(const T* p, int64_t count) {
  T whole[W] = {};
  for (int64_t i = 0; i < count; ++i) whole[i] = p[i];
  return load(whole);
}

template <typename T>
inline void store_part(T* p, V v, int64_t count) {
  T whole[W];
  store(whole, v);
  for (int64_t i = 0; i < count; ++i) p[i] = whole[i];
}

// Calls body(offset, count) for whole vectors (count = W) and once for the rest of `size` elements.
template <typename Body>
inline __attribute__((always_inline)) void for_vectors(int64_t size, Body body) {
  int64_t i = 0;
  for (; i + W <= size; i += W) body(i, int64_t(W));
  if (i < size) body(i, size - i);
}

template <typename T>
inline __attribute__((always_inline)) V load_some(const T* p, int64_t count) {
  return count == W ? load(p) : load_part(p, count);
}

template <typename T>
inline __attribute__((always_inline)) void store_some(T* p, V v, int64_t count) {
  if (count == W)
    store(p, v);
  else
    store_part(p, v, count);
}

inline int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

// NaN stays NaN.
inline V absolute(V v) { return maximum(v, zero() - v); }

constexpr float kLog2E = 1.44269504088896340736f;

// 2^x for |x| <= 126, relative error below 2e-7 (minimax polynomial of degree 5); NaN stays NaN. Where powers saturate
// any x.
inline V exp2_within(V x) {
  V whole;
  V f = split_exponent(x, whole);
  V p = set1(0x1.5c08b0p-10f);
  p = fma(p, f, set1(0x1.3d0c48p-7f));
  p = fma(p, f, set1(0x1.c6b6e6p-5f));
  p = fma(p, f, set1(0x1.ebf918p-3f));
  p = fma(p, f, set1(0x1.62e428p-1f));
  p = fma(p, f, set1(0x1.000002p+0f));
  return times_power(p, whole);
}

// 2^x for x <= 0; where powers do not saturate at least 2^-126.
inline V exp2_negative(V x) { return exp2_within(kPowersSaturate ? x : maximum(set1(-126.0f), x)); }

// GELU by its tanh approximation, x / (1 + exp(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3). Where the exponential
// is cut off, the result is smaller than any that could be told from 0.
inline V gelu(V x) {
  constexpr float kLinear = -2.0f * 0.7978845608028654f * kLog2E;
  V power = x * fma(x * x, set1(kLinear * 0.044715f), set1(kLinear));
  if (!kPowersSaturate) power = minimum(set1(126.0f), maximum(set1(-126.0f), power));
  return x / (set1(1.0f) + exp2_within(power));
}

inline float reciprocal_root(float x) { return 1.0f / __builtin_sqrtf(x); }

// The first `count` lanes, zeros behind them.
inline V first_lanes(V v, int64_t count) {
  float lanes[W];
  store(lanes, v);
  for (int64_t i = count; i < W; ++i) lanes[i] = 0.0f;
  return load(lanes);
}

// Sum over a row: term(at, count, sum) adds the elements [at, at + count) to a vector of partial sums. Four such
// vectors, since one would wait for the latency of each addition.
template <typename Term>
inline __attribute__((always_inline)) float row_sum(int64_t dim, Term term) {
  V parts[4] = {zero(), zero(), zero(), zero()};
  int64_t at = 0;
  for (; at + 4 * W <= dim; at += 4 * W)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) parts[i] = term(at + i * W, int64_t(W), parts[i]);
  for (; at + W <= dim; at += W) parts[0] = term(at, int64_t(W), parts[0]);
  if (at < dim) parts[1] = term(at, dim - at, parts[1]);
  return sum((parts[0] + parts[1]) + (parts[2] + parts[3]));
}

// 1 / sqrt(mean square + eps) of a row.
template <typename T>
inline float rms_factor(const T* row, int64_t dim, float eps) {
  float squares = row_sum(dim, [&](int64_t at, int64_t count, V part) {
    V x = load_some(row + at, count);
    return fma(x, x, part);
  });
  return reciprocal_root(squares / float(dim) + eps);
}

// Calls body with a null pointer of the element type, as a template over types.
template <typename Body>
inline void for_dtype(DType dtype, Body body) {
  switch (dtype) {
    case DType::float32:
      return body(static_cast<const float*>(nullptr));
    case DType::bfloat16:
      return body(static_cast<const bf16*>(nullptr));
    case DType::float16:
      return body(static_cast<const fp16*>(nullptr));
    case DType::int32:
    case DType::int8:
      return;
  }
}

template <typename P>
struct Pointee;
template <typename T>
struct Pointee<const T*> {
  using type = T;
};

}  // namespace wavecore::WAVECORE_ISA
