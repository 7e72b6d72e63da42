// Attention on the matrix units, bfloat16 products and float32 sums: what the scores are made of is for the caller.
//
// A work item is a block of query rows of one head of one slot, as in attention.h. Keys and values are packed into
// tiles in groups of 32 keys of one page; a block of up to 16 groups serves all query rows, a strip of 32 at a time:
// scores, softmax, weighted values. Keys that a group lacks are zero in the tiles, and their scores minus infinity.
#pragma once

#include "amx_groups.h"
#include "attention.h"

namespace wavecore::WAVECORE_ISA {

// Buffers for heads whose keys are of `key_bytes` bytes.
inline void carve(const PagedAttentionArgs& a, int64_t key_bytes, Carver& carver, AttentionTiles& s) {
  int64_t rows = round_up(a.query_block, kSide);
  s.steps = (key_bytes + kTileRow - 1) / kTileRow;
  s.values = round_up(a.head_dim, kSide);
  carver.take(s.q, rows * s.steps * kTileRow);
  carver.take(s.k, kBlockGroups * kGroup * s.steps * kTileRow);
  carver.take(s.v, kBlockGroups * kGroup * s.values * int64_t(sizeof(bf16)));
  carver.take(s.scores, 2 * kSide * kScoreRow);
  carver.take(s.weights, 2 * kSide * kWeightRow);
  carver.take(s.out, rows * s.values);
  carver.take(s.max, rows);
  carver.take(s.sum, rows);
}

// Values of a group to right tiles [values / 16]: pairs of keys side by side.
inline void pack_value_group(const bf16* from, int64_t stride, int64_t keys, int64_t dim, int64_t values, char* tiles) {
  for (int64_t key = 0; key < kGroup; key += 2)
    for (int64_t at = 0; at < values; at += kTile) {
      int64_t count = dim - at < kTile ? dim - at : kTile;
      auto bits = [&](int64_t one) {  // in the upper halves
        return _mm512_castps_si512(one < keys && count > 0 ? load_some(from + one * stride + at, count) : zero());
      };
      __m512i pair = _mm512_xor_si512(bits(key + 1), _mm512_srli_epi32(bits(key), 16));
      _mm512_storeu_si512(tiles + at / kTile * kTileBytes + key / 2 * kTileRow, pair);
    }
}

inline V minus_infinity_behind(V v, int64_t count) {
  float lanes[W];
  store(lanes, v);
  for (int64_t i = count < 0 ? 0 : count; i < W; ++i) lanes[i] = -__builtin_inff();
  return load(lanes);
}

static_assert(kPowersSaturate, "a weight far above its reference is infinite");

// Weights of a row may add up to this in a block before they are taken anew, from a higher reference.
constexpr float kLargestSum = 0x1p20f;

// Scores of one row to weights relative to a reference: the largest score of the row's first block. Later blocks take
// it unseen, since bfloat16 and float32 have room above it, and look at what came out. score(at, shift) is a vector of
// scores in units of log 2, from column `at` on, plus `shift`; meanwhile() is called once for each group. Returns the
// decay of what came before.
template <typename Score, typename Meanwhile>
inline float weigh_row(const int64_t* keys, int64_t groups, bf16* weights, float& reference, float& running_sum,
                       Score score, Meanwhile meanwhile) {
  const float infinity = __builtin_inff();
  auto each_group = [&](float shift, auto take) {
    for (int64_t group = 0; group < groups; ++group) {
      int64_t at = group * kGroup;
      V low = score(at, set1(shift)), high = score(at + W, set1(shift));
      if (keys[group] < kGroup) {
        low = minus_infinity_behind(low, keys[group]);
        high = minus_infinity_behind(high, keys[group] - W);
      }
      take(at, low, high);
    }
  };
  auto highest = [&] {
    V found = set1(-infinity);
    each_group(0.0f, [&](int64_t, V low, V high) { found = maximum(maximum(found, low), high); });
    return largest(found);
  };
  auto weigh = [&](auto meanwhile) {
    V low_total = zero(), high_total = zero();
    each_group(-reference, [&](int64_t at, V low, V high) {
      meanwhile();
      low = exp2_within(low);
      high = exp2_within(high);
      store_pair(weights + at, low, high);
      low_total = low_total + low;
      high_total = high_total + high;
    });
    return sum(low_total + high_total);
  };
  bool first = reference == -infinity;
  if (first) reference = highest();
  float total = weigh(meanwhile), decay = 1.0f;
  if (!first && !(total <= kLargestSum)) {
    float before = reference;
    reference = highest();
    decay = __builtin_exp2f(before - reference);
    total = weigh([] {});
  }
  running_sum = running_sum * decay + total;
  return decay;
}

// Adds a block of groups to the results of all rows. score(row, at, sums, shift) is a vector of a row's scores from
// the sums of its products, see weigh_row. While the vector units weigh a strip, the matrix units do the values of the
// strip before and the scores of the one behind.
template <typename Products, typename Score, typename Ahead>
inline void attend(const AttentionTiles& s, const int64_t* keys, int64_t groups, int64_t rows, Score score,
                   Ahead ahead) {
  StripProducts<Products> products(s, groups);
  products.queue_scores(0);
  products.finish();
  for (int64_t row = 0; row < rows; row += kSide) {
    if (row > 0) products.queue_values(row - kSide);
    if (row + kSide < rows) products.queue_scores(row + kSide);
    for (int64_t r = 0; r < kSide; ++r) {
      ahead.fetch();
      const float* sums = s.strip_scores(row) + r * kScoreRow;
      float decay = weigh_row(
          keys, groups, s.strip_weights(row) + r * kWeightRow, s.max[row + r], s.sum[row + r],
          [&](int64_t at, V shift) { return score(row + r, at, sums + at, shift); }, [&] { products.advance(); });
      if (decay == 1.0f) continue;
      float* out = s.out + (row + r) * s.values;
      for (int64_t at = 0; at < s.values; at += W) store(out + at, load(out + at) * set1(decay));
    }
    products.finish();
  }
  products.queue_values((rows - 1) / kSide * kSide);
  products.finish();
}

inline void start_rows(const AttentionTiles& s, int64_t rows) {
  for (int64_t r = 0; r < round_up(rows, kSide); ++r) {
    s.max[r] = -__builtin_inff();
    s.sum[r] = 0.0f;
  }
  __builtin_memset(s.out, 0, sizeof(float) * round_up(rows, kSide) * s.values);
}

inline void paged_attention_tiles_item(const PagedAttentionArgs& a, int64_t item, const AttentionTiles& s) {
  QueryBlock block(a, item);
  int64_t bytes = a.head_dim * int64_t(sizeof(bf16));
  const bf16* q = static_cast<const bf16*>(a.q) + block.slot * a.q_slot_stride + block.first * a.q_token_stride +
                  block.head * a.q_head_stride;
  for (int64_t r = 0; r < round_up(block.rows, kSide); ++r)
    pack_left_row(q + (r < block.rows ? r : 0) * a.q_token_stride, r < block.rows ? bytes : 0, r, s.steps, s.q);
  start_rows(s, block.rows);

  V factor = set1(a.scale * kLog2E);
  auto score = [&](int64_t, int64_t, const float* sums, V shift) { return fma(load(sums), factor, shift); };
  for (GroupWalk walk(a, block); walk.more();) {
    int64_t keys[kBlockGroups], groups = 0;
    for (; groups < kBlockGroups && walk.more(); ++groups, walk.next()) {
      keys[groups] = walk.keys();
      pack_right(walk.rows<bf16>(a.k_pages), a.k_pages.token_stride * int64_t(sizeof(bf16)), keys[groups], bytes,
                 s.steps, s.k + groups * 2 * s.steps * kTileBytes);
      pack_value_group(walk.rows<bf16>(a.v_pages), a.v_pages.token_stride, keys[groups], a.head_dim, s.values,
                       s.v + groups * s.values / kTile * kTileBytes);
    }
    attend<Bfloat16Products>(s, keys, groups, block.rows, score, KeysAhead<bf16>(a, walk, block.rows));
  }
  store_attention<bf16>(a, block.slot, block.head, block.first, block.rows, s.out, s.values, s.max, s.sum);
}

inline int64_t paged_attention_tiles_layout(const PagedAttentionArgs& a, float* base, AttentionTiles& s) {
  Carver carver{reinterpret_cast<char*>(base)};
  carve(a, a.head_dim * int64_t(sizeof(bf16)), carver, s);
  return carver.floats();
}

inline void paged_attention_tiles(const PagedAttentionArgs& a, int64_t begin, int64_t end, float* base) {
  if (a.dtype != DType::bfloat16) return avx512_vnni_kernels().paged_attention(a, begin, end, base);
  AttentionTiles scratch;
  paged_attention_tiles_layout(a, base, scratch);
  TileScope tiles;
  for (int64_t item = begin; item < end; ++item) paged_attention_tiles_item(a, item, scratch);
}

inline int64_t paged_attention_tiles_scratch(const PagedAttentionArgs& a) {
  if (a.dtype != DType::bfloat16) return avx512_vnni_kernels().paged_attention_scratch(a);
  AttentionTiles scratch;
  return paged_attention_tiles_layout(a, nullptr, scratch);
}

}  // namespace wavecore::WAVECORE_ISA
