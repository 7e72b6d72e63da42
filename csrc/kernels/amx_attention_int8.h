// Attention with int8 scores on the matrix units; values and their weights are bfloat16. Scores are made as in
// attention_int8.h: integer product times both scales, plus the product of the query, unrounded, with the mean key of
// the page. Blocks of groups do not cross a page, so the latter is one number for each row.
#pragma once

#include "amx_attention.h"
#include "quantize.h"

namespace wavecore::WAVECORE_ISA {

struct AttentionInt8Tiles {
  AttentionTiles tiles;
  float* q;        // [rows][d]
  float* q_scale;  // [rows], in units of log 2
  float* page;     // [rows], products with the mean of the page, likewise
  float* k_scale;  // [keys of a block]
};

inline int64_t paged_attention_int8_tiles_layout(const PagedAttentionArgs& a, float* base, AttentionInt8Tiles& s) {
  Carver carver{reinterpret_cast<char*>(base)};
  int64_t rows = round_up(a.query_block, kSide);
  carve(a, a.head_dim, carver, s.tiles);
  carver.take(s.q, rows * a.head_dim);
  carver.take(s.q_scale, rows);
  carver.take(s.page, rows);
  carver.take(s.k_scale, kBlockGroups * kGroup);
  return carver.floats();
}

inline void quantize_queries(const PagedAttentionArgs& a, const bf16* q, int64_t rows, const AttentionInt8Tiles& s) {
  for (int64_t r = 0; r < round_up(rows, kSide); ++r) {
    float* to = s.q + r * a.head_dim;
    if (r < rows)
      for_vectors(a.head_dim, [&](int64_t at, int64_t count) {
        store_some(to + at, load_some(q + r * a.q_token_stride + at, count), count);
      });
    else
      __builtin_memset(to, 0, sizeof(float) * a.head_dim);
    int8_t data[kMaxHeadDim];
    s.q_scale[r] = quantize_row(to, a.head_dim, data) * (a.scale * kLog2E);
    pack_left_row(data, a.head_dim, r, s.tiles.steps, s.tiles.q);
  }
}

inline void paged_attention_int8_tiles_item(const PagedAttentionInt8Args& args, int64_t item,
                                            const AttentionInt8Tiles& s) {
  const PagedAttentionArgs& a = args.base;
  const AttentionTiles& tiles = s.tiles;
  QueryBlock block(a, item);
  quantize_queries(a,
                   static_cast<const bf16*>(a.q) + block.slot * a.q_slot_stride + block.first * a.q_token_stride +
                       block.head * a.q_head_stride,
                   block.rows, s);
  start_rows(tiles, block.rows);

  auto score = [&](int64_t row, int64_t at, const float* sums, V shift) {
    V product = load_integers(reinterpret_cast<const int32_t*>(sums)) * load(s.k_scale + at);
    return fma(product, set1(s.q_scale[row]), set1(s.page[row]) + shift);
  };
  int64_t most = 0;  // groups of a block
  for (GroupWalk walk(a, block); walk.more();) {
    int64_t page = walk.page(), length = walk.length();
    if (walk.token() == 0) {
      const float* mean = args.k_mean + page * args.mean_page_stride + block.head * a.head_dim;
      for (int64_t r = 0; r < round_up(block.rows, kSide); ++r)
        s.page[r] = a.scale * kLog2E * row_sum(a.head_dim, [&](int64_t at, int64_t count, V part) {
          return fma(load_some(s.q + r * a.head_dim + at, count), load_some(mean + at, count), part);
        });
      // Blocks of a page are of about the same size: a short one costs as much besides its products.
      int64_t groups = (length + kGroup - 1) / kGroup, blocks = (groups + kBlockGroups - 1) / kBlockGroups;
      most = (groups + blocks - 1) / blocks;
    }
    const float* k_scale = args.k_scale + page * args.scale_page_stride + block.head;
    int64_t keys[kBlockGroups], groups = 0, end = walk.token() + most * kGroup;
    if (end > length) end = length;
    for (int64_t token = walk.token(); token < end; token += kGroup, ++groups, walk.next()) {
      keys[groups] = walk.keys();
      pack_right(walk.rows<int8_t>(a.k_pages), a.k_pages.token_stride, keys[groups], a.head_dim, tiles.steps,
                 tiles.k + groups * 2 * tiles.steps * kTileBytes);
      pack_value_group(walk.rows<bf16>(a.v_pages), a.v_pages.token_stride, keys[groups], a.head_dim, tiles.values,
                       tiles.v + groups * tiles.values / kTile * kTileBytes);
      for (int64_t i = 0; i < kGroup; ++i)
        s.k_scale[groups * kGroup + i] = i < keys[groups] ? k_scale[(token + i) * a.heads] : 0.0f;
    }
    attend<Int8Products>(tiles, keys, groups, block.rows, score, KeysAhead<int8_t>(a, walk, block.rows));
  }
  store_attention<bf16>(a, block.slot, block.head, block.first, block.rows, tiles.out, tiles.values, tiles.max,
                        tiles.sum);
}

inline void paged_attention_int8_tiles(const PagedAttentionInt8Args& a, int64_t begin, int64_t end, float* base) {
  if (a.base.dtype != DType::bfloat16) return avx512_vnni_kernels().paged_attention_int8(a, begin, end, base);
  AttentionInt8Tiles scratch;
  paged_attention_int8_tiles_layout(a.base, base, scratch);
  TileScope tiles;
  for (int64_t item = begin; item < end; ++item) paged_attention_int8_tiles_item(a, item, scratch);
}

inline int64_t paged_attention_int8_tiles_scratch(const PagedAttentionInt8Args& a) {
  if (a.base.dtype != DType::bfloat16) return avx512_vnni_kernels().paged_attention_int8_scratch(a);
  AttentionInt8Tiles scratch;
  return paged_attention_int8_tiles_layout(a.base, nullptr, scratch);
}

}  // namespace wavecore::WAVECORE_ISA
