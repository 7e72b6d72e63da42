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
  float* sums;   // [rows][kPanel]
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

// What follows the sums of a tile.
enum class Ending { bias, gelu, residual, gate };

// Rows of the weight that the next panel will be packed from, fetched from memory while this one is used: one part
// for each tile.
template <typename T>
struct PanelAhead {
  const T* rows;
  int64_t count, stride, depth, part, at = 0;

  PanelAhead(const LinearArgs& a, int64_t first, int64_t k, int64_t tiles) {
    k += kLinearDepth;
    if (k >= a.inputs) k = 0, first += kPanel;
    stride = a.inputs;
    depth = stride - k < kLinearDepth ? stride - k : kLinearDepth;
    count = a.outputs - first < kPanel ? a.outputs - first : kPanel;
    rows = static_cast<const T*>(a.weight) + first * stride + k;
    part = round_up((depth + tiles - 1) / tiles, kLine);
  }

  void fetch() {
    for (int64_t end = at + part; at < end && at < depth; at += kLine)
      for (int64_t n = 0; n < count; ++n) __builtin_prefetch(rows + n * stride + at);
  }

  static constexpr int64_t kLine = 64 / int64_t(sizeof(T));
};

// Whole tiles of the result, `rows` rows from `walk` on. Sums go from the registers to the result.
template <Ending ending, typename T, typename G>
void whole_tiles(const LinearArgs& a, RowWalk& walk, int64_t rows, int64_t first, const float* left,
                 int64_t left_stride, const float* panel, int64_t depth, const float* before, PanelAhead<T>& ahead) {
  constexpr bool adds = ending == Ending::residual || ending == Ending::gate;
  for (int64_t row = 0; row < rows; row += kRows) {
    ahead.fetch();
    T* out = static_cast<T*>(a.out) + walk.row * a.outputs + first;
    const T* residual[kRows];
    const G* gate[kRows];
    for (int r = 0; adds && r < kRows; ++r, walk.next()) {
      residual[r] = residual_row<T>(a, walk) + first;
      if constexpr (ending == Ending::gate) gate[r] = modulation_row<G>(a.gate, walk.slot, walk.frame) + first;
    }
    if constexpr (!adds) walk.row += kRows;
    const float* sums = before ? before + row * kPanel : nullptr;
    panel_product(left + row * left_stride, left_stride, panel, depth, sums, [&](int r, int j, V sum) {
      V value = a.bias ? sum + load(a.bias + first + j * W) : sum;
      if constexpr (ending == Ending::gelu) value = gelu(value);
      if constexpr (ending == Ending::residual) value = value + load(residual[r] + j * W);
      if constexpr (ending == Ending::gate) value = fma(value, load(gate[r] + j * W), load(residual[r] + j * W));
      store(out + r * a.outputs + j * W, value);
    });
  }
}

template <typename T>
using WholeTiles = void (*)(const LinearArgs&, RowWalk&, int64_t, int64_t, const float*, int64_t, const float*,
                            int64_t, const float*, PanelAhead<T>&);

template <typename T>
WholeTiles<T> choose_whole_tiles(const LinearArgs& a) {
  if (a.gelu) return a.residual.data ? nullptr : whole_tiles<Ending::gelu, T, T>;
  if (!a.residual.data) return whole_tiles<Ending::bias, T, T>;
  if (!a.gate.data) return whole_tiles<Ending::residual, T, T>;
  return a.gate.dtype == a.dtype ? whole_tiles<Ending::gate, T, T> : whole_tiles<Ending::gate, T, float>;
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
  WholeTiles<T> finish = choose_whole_tiles<T>(a);
  int64_t begin = item / blocks * kLinearPanels * kPanel;
  for (int64_t first = begin; first < begin + kLinearPanels * kPanel && first < a.outputs; first += kPanel) {
    int64_t columns = a.outputs - first < kPanel ? a.outputs - first : kPanel;
    for (int64_t k = 0; k == 0 || k < a.inputs; k += kLinearDepth) {
      int64_t depth = a.inputs - k < kLinearDepth ? a.inputs - k : kLinearDepth;
      const T* weight[kPanel];
      for (int64_t n = 0; n < columns; ++n) weight[n] = static_cast<const T*>(a.weight) + (first + n) * a.inputs + k;
      pack_panels(weight, columns, depth, s.panel);
      PanelAhead<T> ahead(a, first, k, (rows + kRows - 1) / kRows);
      RowWalk walk(a, first_row);
      bool last = k + depth >= a.inputs;
      int64_t row = 0;
      if (last && finish && columns == kPanel) {
        row = rows / kRows * kRows;
        finish(a, walk, row, first, left + k, stride, s.panel, depth, k > 0 ? s.sums : nullptr, ahead);
      }
      for (; row < rows; row += kRows) {
        ahead.fetch();
        float* sums = s.sums + row * kPanel;
        const float* before = k > 0 ? sums : nullptr;
        const float* from = row < whole ? left + row * stride + k : s.x + k;
        int64_t from_stride = row < whole ? stride : a.inputs;
        panel_product(from, from_stride, s.panel, depth, before,
                      [&](int r, int j, V sum) { store(sums + r * kPanel + j * W, sum); });
        if (!last) continue;
        activate_tile(a, sums, first, columns);
        int64_t present = rows - row < kRows ? rows - row : kRows;
        for (int64_t r = 0; r < present; ++r, walk.next())
          finish_row<T>(a, walk, first, columns, [&](int64_t at, int64_t) { return load(sums + r * kPanel + at); });
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
