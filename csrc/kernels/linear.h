// Linear layer: products in float32, then bias, GELU, gate and residual.
//
// A work item is a block of rows times a few panels of output columns; a panel of the weight is packed, a block of
// inputs at a time, once for all rows of the block. An element of the result is summed in an order that depends on
// the number of inputs alone: it does not change with the rows that are computed beside it.
#pragma once

#include "ending.h"
#include "panel.h"

namespace wavecore::WAVECORE_ISA {

constexpr int64_t kLinearRowBlock = 480;  // rows that share the packing of a panel
constexpr int64_t kLinearPanels = 2;      // of a work item
constexpr int64_t kLinearDepth = 1024;    // inputs whose panel stays in the second-level cache

struct LinearScratch {
  float* x;      // [rows][inputs], where they are not float32 already
  float* panel;  // [kLinearDepth][kPanel]
  float* sums;   // [rows][kPanel], between blocks of inputs
};

inline int64_t linear_row_block(const LinearArgs& a) {
  int64_t blocks = (a.rows + kLinearRowBlock - 1) / kLinearRowBlock;
  return round_up((a.rows + blocks - 1) / blocks, kRows);
}

inline int64_t scratch_layout(const LinearArgs& a, float* base, LinearScratch& s) {
  s.panel = base;
  s.sums = s.panel + kLinearDepth * kPanel;
  s.x = s.sums + linear_row_block(a) * kPanel;
  return s.x - base + linear_row_block(a) * a.inputs;
}

// Bias and GELU of a tile of sums, in place.
inline void activate_tile(const LinearArgs& a, float* tile, int64_t first, int64_t columns) {
  V bias[kVectors];
#pragma GCC unroll 4
  for (int j = 0; j < kVectors; ++j) {
    int64_t count = columns - j * W;
    bias[j] = !a.bias || count <= 0 ? zero() : load_some(a.bias + first + j * W, count < W ? count : W);
  }
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      V value = load(tile + r * kPanel + j * W) + bias[j];
      store(tile + r * kPanel + j * W, a.gelu ? gelu(value) : value);
    }
}

// Rows of a block as float32: in place where they are, else copied. The last tile is filled up with zeros.
inline const float* linear_left(const float* x, int64_t, int64_t, int64_t, int64_t, float*) { return x; }
template <typename T>
const float* linear_left(const T* x, int64_t stride, int64_t rows, int64_t inputs, int64_t padded, float* copy) {
  for (int64_t r = 0; r < rows; ++r)
    for_vectors(inputs, [&](int64_t at, int64_t count) {
      store_some(copy + r * inputs + at, load_some(x + r * stride + at, count), count);
    });
  __builtin_memset(copy + rows * inputs, 0, sizeof(float) * (padded - rows) * inputs);
  return copy;
}

template <typename T>
void linear_item(const LinearArgs& a, int64_t item, const LinearScratch& s) {
  int64_t block = linear_row_block(a), blocks = (a.rows + block - 1) / block;
  int64_t first_row = item % blocks * block, rows = a.rows - first_row < block ? a.rows - first_row : block;
  const T* x = static_cast<const T*>(a.x) + first_row * a.x_stride;
  bool in_place = a.dtype == DType::float32;
  int64_t stride = in_place ? a.x_stride : a.inputs, whole = in_place ? rows / kRows * kRows : rows;
  const float* left = linear_left(x, a.x_stride, rows, a.inputs, round_up(rows, kRows), s.x);
  if (whole < rows) {  // the rows of the last tile may not be read past the end of the tensor
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t i = 0; i < a.inputs; ++i)
        s.x[r * a.inputs + i] = whole + r < rows ? left[(whole + r) * stride + i] : 0.0f;
  }
  int64_t begin = item / blocks * kLinearPanels * kPanel;
  for (int64_t first = begin; first < begin + kLinearPanels * kPanel && first < a.outputs; first += kPanel) {
    int64_t columns = a.outputs - first < kPanel ? a.outputs - first : kPanel;
    for (int64_t k = 0; k == 0 || k < a.inputs; k += kLinearDepth) {
      int64_t depth = a.inputs - k < kLinearDepth ? a.inputs - k : kLinearDepth;
      const T* weight[kPanel];
      for (int64_t n = 0; n < columns; ++n) weight[n] = static_cast<const T*>(a.weight) + (first + n) * a.inputs + k;
      pack_panels(weight, columns, depth, s.panel);
      RowWalk walk(a, first_row);
      for (int64_t row = 0; row < rows; row += kRows) {
        alignas(64) float tile[kRows * kPanel];
        if (row < whole)
          panel_tile(left + row * stride + k, stride, s.panel, depth, tile, kPanel);
        else
          panel_tile(s.x + k, a.inputs, s.panel, depth, tile, kPanel);
        float* before = s.sums + row * kPanel;
        if (k > 0)
          for (int64_t i = 0; i < kRows * kPanel; i += W) store(tile + i, load(before + i) + load(tile + i));
        if (k + kLinearDepth < a.inputs) {
          __builtin_memcpy(before, tile, sizeof tile);
          continue;
        }
        int64_t present = rows - row < kRows ? rows - row : kRows;
        activate_tile(a, tile, first, columns);
        for (int64_t r = 0; r < present; ++r, walk.next())
          finish_row<T>(a, walk, first, columns, [&](int64_t at, int64_t) { return load(tile + r * kPanel + at); });
      }
    }
  }
}

inline void linear(const LinearArgs& a, int64_t begin, int64_t end, float* base) {
  LinearScratch scratch;
  scratch_layout(a, base, scratch);
  for_dtype(a.dtype, [&](auto* type) {
    for (int64_t item = begin; item < end; ++item)
      linear_item<typename Pointee<decltype(type)>::type>(a, item, scratch);
  });
}

inline int64_t linear_items(const LinearArgs& a) {
  int64_t chunk = kLinearPanels * kPanel;
  return (a.rows + linear_row_block(a) - 1) / linear_row_block(a) * ((a.outputs + chunk - 1) / chunk);
}

inline int64_t linear_scratch(const LinearArgs& a) {
  LinearScratch scratch;
  return scratch_layout(a, nullptr, scratch);
}

}  // namespace wavecore::WAVECORE_ISA
