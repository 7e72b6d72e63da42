// Attention over pages: online softmax in float32 over blocks of keys.
//
// A work item is a block of query rows of one head of one slot. Keys and values of the context, from whatever
// pages, are packed block by block: keys transposed into panels for the register tiles of the score product,
// values as rows of whole vectors. Packing costs one pass over a block, the products `query_block` passes. Only
// valid tokens are read, so what lies behind them in a page cannot leak.
#pragma once

#include "key_blocks.h"

namespace wavecore::WAVECORE_ISA {

constexpr int64_t kMostQueries = 1600;  // of a block

constexpr float kLn2 = 0.69314718055994530942f;

struct AttentionScratch {
  float* q;       // [rows][d], scaled
  float* out;     // [rows][padded d]
  float* k;       // [panels][d][kPanel]
  float* v;       // panels, see pack_values
  float* scores;  // [kRows][kKeyBlock]
  float* max;     // [rows]
  float* sum;     // [rows]
};

inline int64_t scratch_layout(const PagedAttentionArgs& a, float* base, AttentionScratch& s) {
  int64_t rows = round_up(a.query_block, kRows), padded = round_up(a.head_dim, W), used = 0;
  auto take = [&](float*& part, int64_t floats) {
    part = base + used;
    used += round_up(floats, 16);
  };
  take(s.q, rows * a.head_dim);
  take(s.out, rows * padded);
  take(s.k, kKeyBlock * a.head_dim);
  take(s.v, kKeyBlock * padded);
  take(s.scores, kRows * kKeyBlock);
  take(s.max, rows);
  take(s.sum, rows);
  return used;
}

// N vectors of every row, from element `at` on; `whole` says that no row ends within them.
template <int N, bool whole, typename T>
inline void pack_columns(const T* const* rows, int64_t count, int64_t head_dim, int64_t at, float* out) {
  for (int64_t key = 0; key < count; ++key) {
    if (key + kRowsAhead < count) __builtin_prefetch(rows[key + kRowsAhead] + at);
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      int64_t left = whole ? int64_t(W) : head_dim - at - j * W;
      store(out + (key * N + j) * W, load_some(rows[key] + at + j * W, left < W ? left : int64_t(W)));
    }
  }
}

// Values to panels [panel][kKeyBlock][kPanel], and behind those the vectors that fill no panel, [kKeyBlock][W] each.
// Rows of whole values would lie a power of two apart and crowd into a few sets of the first-level cache.
template <typename T>
inline void pack_values(const T* const* rows, int64_t count, int64_t head_dim, int64_t padded, float* out) {
  int64_t at = 0;
  auto pack = [&](auto whole, auto partial, int64_t width) {
    (at + width <= head_dim ? whole : partial)(rows, count, head_dim, at, out + at * kKeyBlock);
    at += width;
  };
  while (at + kPanel <= padded) pack(pack_columns<kVectors, true, T>, pack_columns<kVectors, false, T>, kPanel);
  while (at < padded) pack(pack_columns<1, true, T>, pack_columns<1, false, T>, W);
}

// out[kRows][N vectors] = out * decay + p[kRows][keys] * panel[keys][N vectors]
template <int N>
inline void value_tile(const float* p, const float* decay, const float* panel, int64_t keys, int64_t padded, float* out) {
  V acc[kRows][N];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) acc[r][j] = load(out + r * padded + j * W) * set1(decay[r]);
  for (int64_t key = 0; key < keys; ++key) {
    V right[N];
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) right[j] = load(panel + (key * N + j) * W);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      V left = set1(p[r * kKeyBlock + key]);
#pragma GCC unroll 4
      for (int j = 0; j < N; ++j) acc[r][j] = fma(left, right[j], acc[r][j]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) store(out + r * padded + j * W, acc[r][j]);
}

// Scores of one row to probabilities relative to the running maximum; returns the decay of what came before.
inline float softmax_row(float* scores, int64_t keys, float& running_max, float& running_sum) {
  const float infinity = __builtin_inff();
  int64_t padded = round_up(keys, W);
  for (int64_t i = keys; i < padded; ++i) scores[i] = -infinity;
  V high = load(scores);
  for (int64_t i = W; i < padded; i += W) high = maximum(high, load(scores + i));
  float now = largest(high);
  if (now < running_max) now = running_max;
  V reference = set1(now), total = zero();
  for (int64_t i = 0; i < padded; i += W) {
    V p = exp2_negative(load(scores + i) - reference);
    store(scores + i, p);
    total = total + p;
  }
  // The first block decays nothing (running_max is -infinity, the sums are zero).
  float decay = running_max == now || running_max == -infinity ? 1.0f : __builtin_exp2f(running_max - now);
  running_sum = running_sum * decay + sum(total);
  running_max = now;
  return decay;
}

// Softmax of kRows rows of scores, and their values added to what came before.
inline void weigh_values(float* scores, int64_t keys, const float* v, int64_t padded, float* max, float* sum,
                         float* out) {
  float decay[kRows];
  for (int r = 0; r < kRows; ++r) decay[r] = softmax_row(scores + r * kKeyBlock, keys, max[r], sum[r]);
  int64_t at = 0;
  for (; at + kVectors * W <= padded; at += kVectors * W)
    value_tile<kVectors>(scores, decay, v + at * kKeyBlock, keys, padded, out + at);
  for (; at < padded; at += W) value_tile<1>(scores, decay, v + at * kKeyBlock, keys, padded, out + at);
}

// Rows of a head, `out_stride` apart, to the output, and their log-sum-exp.
template <typename T>
inline void store_attention(const PagedAttentionArgs& a, int64_t slot, int64_t head, int64_t first, int64_t rows,
                            const float* out, int64_t out_stride, const float* max, const float* sum) {
  for (int64_t r = 0; r < rows; ++r) {
    int64_t place = (slot * a.queries + first + r) * a.heads + head;
    V inverse = set1(sum[r] == 0.0f ? 0.0f : 1.0f / sum[r]);
    for_vectors(a.head_dim, [&](int64_t at, int64_t width) {
      store_some(static_cast<T*>(a.out) + place * a.head_dim + at, load(out + r * out_stride + at) * inverse, width);
    });
    if (a.lse) a.lse[place] = (max[r] + __builtin_log2f(sum[r])) * kLn2;
  }
}

template <typename T>
void paged_attention_item(const PagedAttentionArgs& a, int64_t item, KeyBlocks<T>& blocks, const AttentionScratch& s) {
  int64_t parts = (a.queries + a.query_block - 1) / a.query_block;
  int64_t block = item % parts, head = item / parts % a.heads, slot = item / parts / a.heads;
  int64_t first = block * a.query_block, dim = a.head_dim, padded = round_up(dim, W);
  int64_t rows = a.queries - first < a.query_block ? a.queries - first : a.query_block;
  int64_t tiles = (rows + kRows - 1) / kRows;

  const T* q = static_cast<const T*>(a.q) + slot * a.q_slot_stride + head * a.q_head_stride;
  V factor = set1(a.scale * kLog2E);
  for (int64_t r = 0; r < tiles * kRows; ++r) {
    float* to = s.q + r * dim;
    if (r < rows)
      for_vectors(dim, [&](int64_t at, int64_t width) {
        store_some(to + at, load_some(q + (first + r) * a.q_token_stride + at, width) * factor, width);
      });
    else
      __builtin_memset(to, 0, sizeof(float) * dim);
    s.max[r] = -__builtin_inff();
    s.sum[r] = 0.0f;
  }
  __builtin_memset(s.out, 0, sizeof(float) * tiles * kRows * padded);

  for (bool more = true; more; blocks.advance()) {
    const KeyBlock<T>& now = *blocks.now;
    more = blocks.look_ahead();
    if (now.keys == 0) continue;  // an empty context
    pack_panels(now.k, now.keys, dim, s.k);
    pack_values(now.v, now.keys, dim, padded, s.v);
    int64_t fetched = (blocks.then->keys + tiles - 1) / tiles;
    for (int64_t tile = 0; tile < tiles; ++tile) {
      int64_t row = tile * kRows;
      blocks.then->fetch(fetched, dim);
      for (int64_t key = 0; key < now.keys; key += kPanel)
        panel_tile(s.q + row * dim, dim, s.k + key * dim, dim, s.scores + key, kKeyBlock);
      weigh_values(s.scores, now.keys, s.v, padded, s.max + row, s.sum + row, s.out + row * padded);
    }
  }

  store_attention<T>(a, slot, head, first, rows, s.out, padded, s.max, s.sum);
}

inline void paged_attention(const PagedAttentionArgs& a, int64_t begin, int64_t end, float* base) {
  AttentionScratch scratch;
  scratch_layout(a, base, scratch);
  for_dtype(a.dtype, [&](auto* type) {
    using T = typename Pointee<decltype(type)>::type;
    KeyBlocks<T> blocks(a, begin, end);
    for (int64_t item = begin; item < end; ++item) paged_attention_item(a, item, blocks, scratch);
  });
}

inline int64_t paged_attention_scratch(const PagedAttentionArgs& a) {
  AttentionScratch scratch;
  return scratch_layout(a, nullptr, scratch);
}

}  // namespace wavecore::WAVECORE_ISA
