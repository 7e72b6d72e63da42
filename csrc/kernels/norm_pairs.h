// Norms of bfloat16 rows whose length is a multiple of two vectors.
//
// A row is taken apart into its numbers at even and at odd places: one load and two instructions widen two vectors, and
// results are put together without a shuffle. What they are scaled and shifted by lies ready in the same order.
#pragma once

#include "common.h"

namespace wavecore::WAVECORE_ISA {

constexpr int64_t kPairs = 2 * W;  // numbers of two vectors

// `store_pairs` keeps a NaN whose lower half is zero, as those of bfloat16 and of arithmetic are.
inline void load_pairs(const float* p, V& even, V& odd) {
  float apart[2][W];
  for (int i = 0; i < kPairs; ++i) apart[i % 2][i / 2] = p[i] == p[i] ? p[i] : __builtin_nanf("");
  even = load(apart[0]);
  odd = load(apart[1]);
}

// Sum over a row: term(vector of the row, sum) adds to one of four vectors of partial sums.
template <typename Term>
inline __attribute__((always_inline)) float pair_sum(const bf16* row, int64_t dim, Term term) {
  V parts[4] = {zero(), zero(), zero(), zero()};
  auto add = [&](int64_t at, V& first, V& second) {
    V even, odd;
    load_pairs(row + at, even, odd);
    first = term(even, first);
    second = term(odd, second);
  };
  int64_t at = 0;
  for (; at + 2 * kPairs <= dim; at += 2 * kPairs) {
    add(at, parts[0], parts[1]);
    add(at + kPairs, parts[2], parts[3]);
  }
  if (at < dim) add(at, parts[0], parts[1]);
  return sum((parts[0] + parts[1]) + (parts[2] + parts[3]));
}

// Norm and modulation of a row, with weights and biases in the order of pairs.
inline void norm_pairs(const bf16* row, int64_t dim, float eps, const float* weight, const float* bias, bf16* out) {
  V centre = set1(pair_sum(row, dim, [](V value, V part) { return part + value; }) / float(dim));
  float squares = pair_sum(row, dim, [&](V value, V part) { return fma(value - centre, value - centre, part); });
  float root = reciprocal_root(squares / float(dim) + eps);
  // (x - centre) * factor in one rounding; what it adds is far below that of a bfloat16.
  V factor = set1(root), offset = zero() - centre * factor;
#pragma GCC unroll 2
  for (int64_t at = 0; at < dim; at += kPairs) {
    V even, odd;
    load_pairs(row + at, even, odd);
    store_pairs(out + at, fma(fma(even, factor, offset), load(weight + at), load(bias + at)),
                fma(fma(odd, factor, offset), load(weight + at + W), load(bias + at + W)));
  }
}

inline void gate_residual_pairs(const bf16* x, const bf16* y, const bf16* gate, int64_t dim, bf16* out) {
  for (int64_t at = 0; at < dim; at += kPairs) {
    V x_even, x_odd, y_even, y_odd, gate_even, gate_odd;
    load_pairs(x + at, x_even, x_odd);
    load_pairs(y + at, y_even, y_odd);
    load_pairs(gate + at, gate_even, gate_odd);
    store_pairs(out + at, fma(y_even, gate_even, x_even), fma(y_odd, gate_odd, x_odd));
  }
}

}  // namespace wavecore::WAVECORE_ISA
