// Linear layer in int8 on the matrix units: integer products, then the end of int8_linear.h's layer.
//
// A work item is a block of tokens times a chunk of output channels. The block's tokens lie in left tiles in the
// second-level cache; 32 channels at a time are packed into right tiles and multiplied with all of them. Where the
// inputs are too many for that cache they are taken in parts, and the sums wait in between. What follows the sums of a
// product is done between the steps of the next one, so that matrix and vector units work at the same time.
#pragma once

#include "amx_product.h"
#include "ending.h"

namespace wavecore::WAVECORE_ISA {

constexpr int64_t kTileTokens = 544;    // of a block: fewer repeat the packing of the weight more often
constexpr int64_t kTileInputs = 2048;   // with as many tokens 1.1 MB, of 2 MB of every processor with matrix units
constexpr int64_t kTileChannels = 1024; // of a work item

struct Int8LinearTiles {
  char* tokens;    // left tiles [rows / 16][steps]
  char* weight;    // right tiles [2][steps]
  int32_t* sums;   // [channels / 32][rows][32], where the inputs are taken in parts
  int32_t* block;  // [32][32]
};

// How `total` is cut: into parts of at most about `most`, multiples of `unit`, of the same size but for the last.
inline int64_t even_part(int64_t total, int64_t most, int64_t unit) {
  int64_t parts = (total + most - 1) / most;
  return parts ? round_up((total + parts - 1) / parts, unit) : unit;
}

inline int64_t tile_tokens(const Int8LinearArgs& a) { return even_part(a.rows, kTileTokens, kSide); }
inline int64_t tile_inputs(const Int8LinearArgs& a) { return even_part(a.inputs, kTileInputs, kTileRow); }

inline int64_t int8_linear_tiles_layout(const Int8LinearArgs& a, float* base, Int8LinearTiles& s) {
  Carver carver{reinterpret_cast<char*>(base)};
  carver.take(s.tokens, tile_tokens(a) * tile_inputs(a));
  carver.take(s.weight, kSide * tile_inputs(a));
  carver.take(s.sums, a.inputs > tile_inputs(a) ? tile_tokens(a) * kTileChannels : 0);
  carver.take(s.block, kSide * kSide);
  return carver.floats();
}

// Results that no cache holds until they are read are written past them, a line at a time: to be written there, a line
// would be read from memory first.
constexpr int64_t kStreamedBytes = 8 << 20;

inline bool streams(const Int8LinearArgs& a) {
  return a.rows * a.outputs * int64_t(sizeof(bf16)) >= kStreamedBytes && !a.residual.data;
}
inline void store_line(bf16* out, V low, V high, bool stream) {
  if (stream && reinterpret_cast<uintptr_t>(out) % kTileRow == 0) return stream_pair(out, low, high);
  store_pair(out, low, high);
}
template <typename T>
inline void store_line(T* out, V low, V high, bool) {
  store(out, low);
  store(out + W, high);
}

// What follows the sums of a product, row by row.
template <typename T>
class ProductEnd {
 public:
  ProductEnd(const Int8LinearArgs& a, const int32_t* sums, int64_t first_row, int64_t rows, int64_t first,
             int64_t columns)
      : a_(&a), walk_(a, first_row), sums_(sums), left_(rows), first_(first), columns_(columns), stream_(streams(a)) {}

  // Finishes up to `rows` more rows.
  void advance(int64_t rows) {
    for (; rows > 0 && left_ > 0; --rows, --left_, walk_.next(), sums_ += kSide) finish_one();
  }

 private:
  void finish_one() {
    V token_scale = set1(a_->token_scale[walk_.row]);
    auto result = [&](int64_t at, int64_t count) { return scaled(*a_, sums_ + at, token_scale, first_ + at, count); };
    if (columns_ == kSide && !a_->residual.data)
      return store_line(static_cast<T*>(a_->out) + walk_.row * a_->outputs + first_, result(0, W), result(W, W),
                        stream_);
    finish_row<T>(*a_, walk_, first_, columns_, result);
  }

  const Int8LinearArgs* a_;
  RowWalk walk_;
  const int32_t* sums_;
  int64_t left_, first_, columns_;
  bool stream_;
};

template <typename T>
void int8_linear_tiles_item(const Int8LinearArgs& a, int64_t item, const Int8LinearTiles& s) {
  int64_t block = tile_tokens(a), blocks = (a.rows + block - 1) / block, part = tile_inputs(a);
  int64_t first_row = item % blocks * block;
  int64_t rows = a.rows - first_row < block ? a.rows - first_row : block;
  int64_t chunk = item / blocks * kTileChannels;
  int64_t chunk_end = chunk + kTileChannels < a.outputs ? chunk + kTileChannels : a.outputs;
  ProductEnd<T> before(a, s.block, first_row, 0, chunk, 0);  // of the product before
  int64_t k = 0;
  do {
    int64_t width = a.inputs - k < part ? a.inputs - k : part, steps = (width + kTileRow - 1) / kTileRow;
    bool last = k + part >= a.inputs;
    int64_t rows_a_step = steps ? (kSide + steps - 1) / steps : 0;
    for (int64_t r = 0; r < round_up(rows, kSide); ++r)
      pack_left_row(a.tokens + (first_row + (r < rows ? r : 0)) * a.inputs + k, r < rows ? width : 0, r, steps,
                    s.tokens);
    for (int64_t first = chunk; first < chunk_end; first += kSide) {
      int64_t columns = chunk_end - first < kSide ? chunk_end - first : kSide;
      pack_right(a.weight + first * a.weight_stride + k, a.weight_stride, round_up(columns, kTile), steps * kTileRow,
                 steps, s.weight);
      for (int64_t row = 0; row < rows; row += kSide) {
        int32_t* kept = s.sums + ((first - chunk) * block + row * kSide);
        if (k == 0)
          zero_sums();
        else
          load_sums(kept, kSide * sizeof(int32_t));
        add_products<Int8Products>({s.tokens + row * steps * kTileRow, kTileRow, kTileBytes, kTile * steps * kTileRow},
                                   {s.weight, kTileRow, kTileBytes, steps * kTileBytes}, steps,
                                   [&] { before.advance(rows_a_step); });
        before.advance(kSide);  // what is left, where there are no inputs
        store_sums(last ? s.block : kept, kSide * sizeof(int32_t));
        if (last) before = {a, s.block, first_row + row, rows - row < kSide ? rows - row : kSide, first, columns};
      }
    }
    k += part;
  } while (k < a.inputs);
  before.advance(kSide);
}

inline void int8_linear_tiles(const Int8LinearArgs& a, int64_t begin, int64_t end, float* base) {
  Int8LinearTiles scratch;
  int8_linear_tiles_layout(a, base, scratch);
  TileScope tiles;
  for_dtype(a.dtype, [&](auto* type) {
    for (int64_t item = begin; item < end; ++item)
      int8_linear_tiles_item<typename Pointee<decltype(type)>::type>(a, item, scratch);
  });
  finish_streams();
}

inline int64_t int8_linear_tiles_items(const Int8LinearArgs& a) {
  return (a.rows + tile_tokens(a) - 1) / tile_tokens(a) * ((a.outputs + kTileChannels - 1) / kTileChannels);
}

inline int64_t int8_linear_tiles_scratch(const Int8LinearArgs& a) {
  Int8LinearTiles scratch;
  return int8_linear_tiles_layout(a, nullptr, scratch);
}

}  // namespace wavecore::WAVECORE_ISA
