// Products of rows with rows: the right side is packed into panels, which a register tile streams through.
#pragma once

#include "common.h"

namespace wavecore::WAVECORE_ISA {

constexpr int64_t kPanel = kVectors * W;  // rows of the right side in a panel

// W rows to columns of a panel; `whole` says that none is missing.
template <bool whole, typename T>
inline void pack_group(const T* const* rows, int64_t present, int64_t depth, float* to) {
  for (int64_t at = 0; at < depth; at += W) {
    int64_t width = depth - at < W ? depth - at : W;
    V block[W];
#pragma GCC unroll 16
    for (int64_t i = 0; i < W; ++i)
      block[i] = whole || i < present ? load_some(rows[i] + at, width) : zero();
    transpose(block);
    if (width == W) {
#pragma GCC unroll 16
      for (int64_t i = 0; i < W; ++i) store(to + (at + i) * kPanel, block[i]);
    } else {
      for (int64_t i = 0; i < width; ++i) store(to + (at + i) * kPanel, block[i]);
    }
  }
}

// Rows of a page lie apart, so that the processor does not foresee the next one.
constexpr int64_t kRowsAhead = 16;

// Into the first-level cache, or with a locality of 2 into the second-level one.
template <int locality = 3, typename T>
inline void prefetch_row(const T* row, int64_t depth) {
  for (int64_t at = 0; at < depth; at += 64 / int64_t(sizeof(T))) __builtin_prefetch(row + at, 0, locality);
}

// Rows to panels [panel][depth][kPanel]; rows missing from the last panel are zero.
template <typename T>
inline void pack_panels(const T* const* rows, int64_t count, int64_t depth, float* out) {
  for (int64_t row = 0; row < round_up(count, kPanel); row += W) {
    float* to = out + row / kPanel * kPanel * depth + row % kPanel;
    for (int64_t ahead = row + kRowsAhead; ahead < row + kRowsAhead + W && ahead < count; ++ahead)
      prefetch_row(rows[ahead], depth);
    if (row + W <= count)
      pack_group<true>(rows + row, W, depth, to);
    else
      pack_group<false>(rows + row, count - row, depth, to);
  }
}

// left[kRows][depth] * panel[depth][kPanel] + before[kRows][kPanel] (nothing where null), each vector of which is handed
// to finish(row, vector of the row, sum) while it is in a register.
template <typename Finish>
inline __attribute__((always_inline)) void panel_product(const float* left, int64_t left_stride, const float* panel,
                                                         int64_t depth, const float* before, Finish finish) {
  V acc[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) acc[r][j] = before ? load(before + r * kPanel + j * W) : zero();
  for (int64_t i = 0; i < depth; ++i) {
    V right[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) right[j] = load(panel + i * kPanel + j * W);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      V one = set1(left[r * left_stride + i]);
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) acc[r][j] = fma(one, right[j], acc[r][j]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) finish(r, j, acc[r][j]);
}

// out[kRows][kPanel] = left[kRows][depth] * panel[depth][kPanel]
inline void panel_tile(const float* left, int64_t left_stride, const float* panel, int64_t depth, float* out,
                       int64_t out_stride) {
  panel_product(left, left_stride, panel, depth, nullptr,
                [&](int r, int j, V sum) { store(out + r * out_stride + j * W, sum); });
}

}  // namespace wavecore::WAVECORE_ISA
