// Products of int8 rows: the tile that the int8 linear layer and the scores of int8 attention share.
#pragma once

#include "common.h"

namespace wavecore::WAVECORE_ISA {

constexpr int kDotColumns = 4;
constexpr int64_t kDepthBlock = 1024;  // of operands: four rows of the right side fit the first-level cache

// `count` int8 numbers to `padded` operands (whole vectors), zeros behind them.
template <typename Operand, typename Widen>
inline void widen_row(const int8_t* from, int64_t count, int64_t padded, Operand* to, Widen widen) {
  int64_t at = 0;
  for (; at + kDot <= count; at += kDot) widen(from + at, to + at);
  for (; at < padded; at += kDot) {
    int8_t part[kDot] = {};
    for (int64_t i = at; i < count; ++i) part[i - at] = from[i];
    widen(part, to + at);
  }
}

inline void widen_left_row(const int8_t* from, int64_t count, int64_t padded, Left* to) {
  widen_row(from, count, padded, to, [](const int8_t* a, Left* b) { widen_left(a, b); });
}
inline void widen_right_row(const int8_t* from, int64_t count, int64_t padded, Right* to) {
  widen_row(from, count, padded, to, [](const int8_t* a, Right* b) { widen_right(a, b); });
}

// What the shift of a left side adds to the products with four right rows.
inline void shift_totals(const Right* right, int64_t stride, int64_t depth, int32_t* out) {
  for (int j = 0; j < kDotColumns; ++j) out[j] = 0;
#if defined(__AVX512VNNI__)
  Sums parts[kDotColumns] = {no_sums(), no_sums(), no_sums(), no_sums()};
  for (int64_t at = 0; at < depth; at += kDot)
    for (int j = 0; j < kDotColumns; ++j)
      parts[j] = dot(shifted_zeros(), load_operands(right + j * stride + at), parts[j]);
  add_totals(parts, out);
#else
  (void)right, (void)stride, (void)depth;
#endif
}

// sums[kDotRows][kDotColumns] += left[kDotRows][depth] * right[kDotColumns][depth] - shift
inline void dot_tile(const Left* left, int64_t left_stride, const Right* right, int64_t right_stride, int64_t depth,
                     const int32_t* shift, int32_t* sums, int64_t sums_stride) {
  Sums acc[kDotRows][kDotColumns];
#pragma GCC unroll 4
  for (int r = 0; r < kDotRows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < kDotColumns; ++j) acc[r][j] = no_sums();
  for (int64_t at = 0; at < depth; at += kDot) {
    Sums columns[kDotColumns];
#pragma GCC unroll 4
    for (int j = 0; j < kDotColumns; ++j) columns[j] = load_operands(right + j * right_stride + at);
#pragma GCC unroll 4
    for (int r = 0; r < kDotRows; ++r) {
      Sums row = load_operands(left + r * left_stride + at);
#pragma GCC unroll 4
      for (int j = 0; j < kDotColumns; ++j) acc[r][j] = dot(row, columns[j], acc[r][j]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kDotRows; ++r) {
    int32_t* to = sums + r * sums_stride;
    add_totals(acc[r], to);
    if (kLeftIsShifted)
      for (int j = 0; j < kDotColumns; ++j) to[j] -= shift[j];
  }
}

// Parts of scratch memory, each on a cache line of its own.
struct Carver {
  char* base;
  int64_t used = 0;

  template <typename P>
  void take(P*& part, int64_t count) {
    part = reinterpret_cast<P*>(base + used);
    used += round_up(count * int64_t(sizeof(P)), 64);
  }
  int64_t floats() const { return used / int64_t(sizeof(float)); }
};

}  // namespace wavecore::WAVECORE_ISA
