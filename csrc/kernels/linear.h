// Linear layer: products in float32, then bias, GELU, gate and residual.
//
// A work item is a block of rows times a few panels of output columns; a panel of the weight is packed, a block of
// inputs at a time, once for all rows of the block. An element of the result is summed in an order that depends on
// the number of inputs alone: it does not change with the rows that are computed beside it.
#pragma once

#include "norm.h"
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

// Where a row of the result begins, and what is added to it.
template <typename T, typename M>
struct LinearRow {
  T* out;
  const T* residual;
  const M* gate;

  LinearRow(const LinearArgs& a, int64_t row, int64_t first) {
    int64_t slot = row / a.tokens_per_slot, token = row % a.tokens_per_slot;
    out = static_cast<T*>(a.out) + row * a.outputs + first;
    residual = nullptr;
    gate = nullptr;
    if (a.residual.data)
      residual = static_cast<const T*>(a.residual.data) + slot * a.residual.slot_stride +
                 token * a.residual.token_stride + first;
    if (a.gate.data) gate = modulation_row<M>(a.gate, slot, token / a.tokens_per_frame) + first;
  }
};

template <typename T, typename M>
void finish_linear(const LinearArgs& a, const float* sums, int64_t first_row, int64_t rows, int64_t first,
                   int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    LinearRow<T, M> row(a, first_row + r, first);
    for_vectors(columns, [&](int64_t at, int64_t count) {
      V value = load(sums + r * kPanel + at);
      if (a.bias) value = value + load_some(a.bias + first + at, count);
      if (a.gelu) value = gelu(value);
      if (row.gate) value = value * load_some(row.gate + at, count);
      if (row.residual) value = value + load_some(row.residual + at, count);
      store_some(row.out + at, value, count);
    });
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
        if (a.gate.data && a.gate.dtype != a.dtype)
          finish_linear<T, float>(a, tile, first_row + row, present, first, columns);
        else
          finish_linear<T, T>(a, tile, first_row + row, present, first, columns);
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
