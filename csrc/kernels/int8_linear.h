// Linear layer in int8: integer products, then scales, bias, gate and residual in float32.
//
// A work item is a block of tokens times a chunk of output channels. The block's tokens are widened once for the
// chunk; four channels at a time are widened into the first-level cache and multiplied with every pair of tokens.
#pragma once

#include "dot.h"
#include "ending.h"

namespace wavecore::WAVECORE_ISA {

constexpr int64_t kTokenBlock = 96;     // with a block of depth they fit the second-level cache
constexpr int64_t kColumnBlock = 128;   // channels whose sums are kept at a time
constexpr int64_t kColumnChunk = 1024;  // channels of a work item
constexpr int64_t kWeightPadding = 64;  // of the inputs of a packed weight

struct Int8LinearScratch {
  Left* left;     // [rows][depth]
  Right* right;   // [kDotColumns][kDepthBlock]
  int32_t* sums;  // [rows][kColumnBlock]
};

inline int64_t token_block(const Int8LinearArgs& a) {
  int64_t blocks = (a.rows + kTokenBlock - 1) / kTokenBlock;
  return round_up((a.rows + blocks - 1) / blocks, kDotRows);
}

inline int64_t scratch_layout(const Int8LinearArgs& a, float* base, Int8LinearScratch& s) {
  Carver carver{reinterpret_cast<char*>(base)};
  carver.take(s.left, token_block(a) * round_up(a.inputs, kDot));
  carver.take(s.right, kDotColumns * kDepthBlock);
  carver.take(s.sums, token_block(a) * kColumnBlock);
  return carver.floats();
}

template <typename T>
void finish_columns(const Int8LinearArgs& a, const int32_t* sums, int64_t first_row, int64_t rows, int64_t first,
                    int64_t columns) {
  RowWalk walk(a, first_row);
  for (int64_t r = 0; r < rows; ++r, walk.next()) {
    V token_scale = set1(a.token_scale[walk.row]);
    finish_row<T>(a, walk, first, columns, [&](int64_t at, int64_t count) {
      return scaled(a, sums + r * kColumnBlock + at, token_scale, first + at, count);
    });
  }
}

template <typename T>
void int8_linear_item(const Int8LinearArgs& a, int64_t item, const Int8LinearScratch& s) {
  int64_t block = token_block(a), blocks = (a.rows + block - 1) / block, depth = round_up(a.inputs, kDot);
  int64_t first_row = item % blocks * block;
  int64_t rows = a.rows - first_row < block ? a.rows - first_row : block;
  for (int64_t r = 0; r < round_up(rows, kDotRows); ++r)
    widen_left_row(a.tokens + (first_row + r) * a.inputs, r < rows ? a.inputs : 0, depth, s.left + r * depth);
  int64_t chunk = item / blocks * kColumnChunk;
  int64_t chunk_end = chunk + kColumnChunk < a.outputs ? chunk + kColumnChunk : a.outputs;
  for (int64_t first = chunk; first < chunk_end; first += kColumnBlock) {
    int64_t columns = chunk_end - first < kColumnBlock ? chunk_end - first : kColumnBlock;
    __builtin_memset(s.sums, 0, sizeof(int32_t) * rows * kColumnBlock);
    if (rows % kDotRows) __builtin_memset(s.sums + rows * kColumnBlock, 0, sizeof(int32_t) * kColumnBlock *
                                          (kDotRows - rows % kDotRows));
    for (int64_t k = 0; k < depth; k += kDepthBlock) {
      int64_t width = depth - k < kDepthBlock ? depth - k : kDepthBlock;
      for (int64_t n = 0; n < columns; n += kDotColumns) {
        for (int j = 0; j < kDotColumns; ++j)
          widen_right_row(a.weight + (first + n + j) * a.weight_stride + k, width, width, s.right + j * kDepthBlock);
        int32_t shift[kDotColumns];
        shift_totals(s.right, kDepthBlock, width, shift);
        for (int64_t r = 0; r < rows; r += kDotRows)
          dot_tile(s.left + r * depth + k, depth, s.right, kDepthBlock, width, shift, s.sums + r * kColumnBlock + n,
                   kColumnBlock);
      }
    }
    finish_columns<T>(a, s.sums, first_row, rows, first, columns);
  }
}

inline void int8_linear(const Int8LinearArgs& a, int64_t begin, int64_t end, float* base) {
  Int8LinearScratch scratch;
  scratch_layout(a, base, scratch);
  for_dtype(a.dtype, [&](auto* type) {
    for (int64_t item = begin; item < end; ++item)
      int8_linear_item<typename Pointee<decltype(type)>::type>(a, item, scratch);
  });
}

inline int64_t int8_linear_items(const Int8LinearArgs& a) {
  return (a.rows + token_block(a) - 1) / token_block(a) * ((a.outputs + kColumnChunk - 1) / kColumnChunk);
}

inline int64_t int8_linear_scratch(const Int8LinearArgs& a) {
  Int8LinearScratch scratch;
  return scratch_layout(a, nullptr, scratch);
}

}  // namespace wavecore::WAVECORE_ISA
