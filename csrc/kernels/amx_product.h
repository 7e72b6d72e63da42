// Products of 32 x 32 sums on the matrix units, and the layout of their operands.
//
// Left operands are tiles of 16 rows of 64 bytes (32 bfloat16 or 64 int8 numbers along the depth). Right operands are
// tiles of 16 columns: row i of a tile holds, for each column, the i-th four bytes of its 64 along the depth.
#pragma once

#include "dot.h"

namespace wavecore::WAVECORE_ISA {

constexpr int64_t kTile = 16;        // rows of a tile, and its columns of four bytes
constexpr int64_t kTileRow = 64;     // bytes
constexpr int64_t kTileBytes = 1024;
constexpr int64_t kSide = 2 * kTile;  // rows and columns of a product
static_assert(W == kTile, "a vector is a row of a tile");

// The tiles of the calling thread for the time of a call. Other libraries configure them too, and tiles left in use
// make every switch of threads dearer.
struct TileScope {
  TileScope() { configure_tiles(); }
  ~TileScope() { release_tiles(); }
  TileScope(const TileScope&) = delete;
};

struct Bfloat16Products {
  template <int sums, int left, int right>
  static void add() {
    tile_dot_bf16<sums, left, right>();
  }
};
struct Int8Products {
  template <int sums, int left, int right>
  static void add() {
    tile_dot_int8<sums, left, right>();
  }
};

// Two tiles, and those behind them along the depth. Distances are in bytes.
struct Operand {
  const void* data;
  int64_t row = kTileRow;     // from a row of a tile to the next
  int64_t step = kTileBytes;  // from a tile to the next along the depth
  int64_t second;             // from the first tile to the second
};

// Sums are tiles 0 and 1 above 2 and 3; rows of them lie `row` bytes apart in memory.
inline void zero_sums() {
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
}
inline void load_sums(const void* from, int64_t row) {
  const char* p = static_cast<const char*>(from);
  tile_load<0>(p, row);
  tile_load<1>(p + kTileRow, row);
  tile_load<2>(p + kTile * row, row);
  tile_load<3>(p + kTile * row + kTileRow, row);
}
inline void store_sums(void* to, int64_t row) {
  char* p = static_cast<char*>(to);
  tile_store<0>(p, row);
  tile_store<1>(p + kTileRow, row);
  tile_store<2>(p + kTile * row, row);
  tile_store<3>(p + kTile * row + kTileRow, row);
}

// Left operands come from the second-level cache, once, and right ones stay in the first. meanwhile() is called once
// for each step.
template <typename Products, typename Meanwhile>
inline void add_products(const Operand& left, const Operand& right, int64_t steps, Meanwhile meanwhile) {
  const char* a = static_cast<const char*>(left.data);
  const char* b = static_cast<const char*>(right.data);
  for (int64_t i = 0; i < steps; ++i, a += left.step, b += right.step) {
    tile_load_once<4>(a, left.row);
    tile_load<6>(b, right.row);
    Products::template add<0, 4, 6>();
    tile_load<7>(b + right.second, right.row);
    Products::template add<1, 4, 7>();
    meanwhile();
    tile_load_once<5>(a + left.second, left.row);
    Products::template add<2, 5, 6>();
    Products::template add<3, 5, 7>();
  }
}

// Row `row` of left tiles [rows / 16][steps]: `bytes` bytes, zeros behind them.
inline void pack_left_row(const void* from, int64_t bytes, int64_t row, int64_t steps, char* tiles) {
  const char* p = static_cast<const char*>(from);
  char* to = tiles + (row / kTile * steps * kTile + row % kTile) * kTileRow;
  for (; steps && bytes >= kTileRow; --steps, bytes -= kTileRow, p += kTileRow, to += kTileBytes)
    __builtin_memcpy(to, p, kTileRow);
  for (; steps; --steps, bytes = 0, to += kTileBytes) {
    __builtin_memset(to, 0, kTileRow);
    if (bytes) __builtin_memcpy(to, p, bytes);
  }
}

// `columns` rows of `bytes` bytes, `stride` bytes apart, to a right tile; `whole` says that none is missing.
template <bool whole>
inline void pack_right_tile(const char* from, int64_t stride, int64_t columns, int64_t bytes, char* tile) {
  V block[kTile];
#pragma GCC unroll 16
  for (int64_t i = 0; i < kTile; ++i) {
    block[i] = zero();
    if (whole)
      __builtin_memcpy(&block[i], from + i * stride, kTileRow);
    else if (i < columns)
      __builtin_memcpy(&block[i], from + i * stride, bytes);
  }
  transpose(block);
#pragma GCC unroll 16
  for (int64_t i = 0; i < kTile; ++i) store(reinterpret_cast<float*>(tile + i * kTileRow), block[i]);
}

// The same to right tiles [2][steps] of kSide columns; zeros for what is missing.
inline void pack_right(const void* from, int64_t stride, int64_t columns, int64_t bytes, int64_t steps, char* tiles) {
  const char* p = static_cast<const char*>(from);
  for (int64_t half = 0; half < 2; ++half, columns -= kTile, p += kTile * stride)
    for (int64_t step = 0; step < steps; ++step, tiles += kTileBytes) {
      int64_t at = step * kTileRow;
      if (columns >= kTile && bytes - at >= kTileRow)
        pack_right_tile<true>(p + at, stride, kTile, kTileRow, tiles);
      else
        pack_right_tile<false>(p + at, stride, columns, bytes - at < kTileRow ? bytes - at : kTileRow, tiles);
    }
}

}  // namespace wavecore::WAVECORE_ISA
