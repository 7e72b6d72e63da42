// Attention with int8 scores over pages of quantised keys; everything behind the scores is that of attention.h.
//
// A key is data * scale + mean, the mean that of its page, so a score is the integer product times both scales plus
// the product of the query, unrounded, with the mean. Blocks of keys do not cross a page: the second part is then
// one number for each row.
#pragma once

#include "attention.h"
#include "dot.h"
#include "quantize.h"

namespace wavecore::WAVECORE_ISA {

static_assert(kRows % kDotRows == 0 && kKeyBlock % kDotColumns == 0, "tiles of scores are whole");

struct AttentionInt8Scratch {
  float* q;        // [rows][d]
  Left* left;      // [rows][depth]
  float* q_scale;  // [rows]
  float* page;     // [rows], products with the mean of the page
  float* out;      // [rows][padded d]
  Right* right;    // [kKeyBlock][depth]
  int32_t* shift;  // [kKeyBlock]
  float* k_scale;  // [kKeyBlock]
  float* v;        // panels, see pack_values
  int32_t* sums;   // [kRows][kKeyBlock]
  float* scores;   // [kRows][kKeyBlock]
  float* max;      // [rows]
  float* sum;      // [rows]
};

inline int64_t scratch_layout(const PagedAttentionArgs& a, float* base, AttentionInt8Scratch& s) {
  int64_t rows = round_up(a.query_block, kRows), padded = round_up(a.head_dim, W), depth = round_up(a.head_dim, kDot);
  Carver carver{reinterpret_cast<char*>(base)};
  carver.take(s.q, rows * a.head_dim);
  carver.take(s.left, rows * depth);
  carver.take(s.q_scale, rows);
  carver.take(s.page, rows);
  carver.take(s.out, rows * padded);
  carver.take(s.right, kKeyBlock * depth);
  carver.take(s.shift, kKeyBlock);
  carver.take(s.k_scale, kKeyBlock);
  carver.take(s.v, kKeyBlock * padded);
  carver.take(s.sums, kRows * kKeyBlock);
  carver.take(s.scores, kRows * kKeyBlock);
  carver.take(s.max, rows);
  carver.take(s.sum, rows);
  return carver.floats();
}

template <typename T>
void load_queries(const PagedAttentionArgs& a, const T* q, int64_t rows, const AttentionInt8Scratch& s) {
  int64_t dim = a.head_dim, depth = round_up(dim, kDot);
  for (int64_t r = 0; r < round_up(rows, kRows); ++r) {
    float* to = s.q + r * dim;
    if (r < rows)
      for_vectors(dim, [&](int64_t at, int64_t count) {
        store_some(to + at, load_some(q + r * a.q_token_stride + at, count), count);
      });
    else
      __builtin_memset(to, 0, sizeof(float) * dim);
    int8_t data[kMaxHeadDim];
    s.q_scale[r] = quantize_row(to, dim, data) * (a.scale * kLog2E);
    widen_left_row(data, dim, depth, s.left + r * depth);
    s.max[r] = -__builtin_inff();
    s.sum[r] = 0.0f;
  }
}

// Scores of kRows queries with the keys of a block.
inline void score_rows(const AttentionInt8Scratch& s, int64_t row, int64_t keys, int64_t depth) {
  int64_t whole = round_up(keys, kDotColumns);
  for (int r = 0; r < kRows; ++r) __builtin_memset(s.sums + r * kKeyBlock, 0, sizeof(int32_t) * whole);
  for (int r = 0; r < kRows; r += kDotRows)
    for (int64_t key = 0; key < keys; key += kDotColumns)
      dot_tile(s.left + (row + r) * depth, depth, s.right + key * depth, depth, depth, s.shift + key,
               s.sums + r * kKeyBlock + key, kKeyBlock);
  for (int r = 0; r < kRows; ++r) {
    V q_scale = set1(s.q_scale[row + r]), page = set1(s.page[row + r]);
    for (int64_t key = 0; key < keys; key += W) {
      V product = load_integers(s.sums + r * kKeyBlock + key) * load(s.k_scale + key);
      store(s.scores + r * kKeyBlock + key, fma(product, q_scale, page));
    }
  }
}

template <typename T>
void paged_attention_int8_item(const PagedAttentionInt8Args& args, int64_t item, const AttentionInt8Scratch& s) {
  const PagedAttentionArgs& a = args.base;
  int64_t blocks = (a.queries + a.query_block - 1) / a.query_block;
  int64_t block = item % blocks, head = item / blocks % a.heads, slot = item / blocks / a.heads;
  int64_t first = block * a.query_block, dim = a.head_dim, padded = round_up(dim, W), depth = round_up(dim, kDot);
  int64_t rows = a.queries - first < a.query_block ? a.queries - first : a.query_block;
  const T* q = static_cast<const T*>(a.q) + slot * a.q_slot_stride + first * a.q_token_stride + head * a.q_head_stride;
  load_queries(a, q, rows, s);
  __builtin_memset(s.out, 0, sizeof(float) * round_up(rows, kRows) * padded);

  const T* v_rows[kKeyBlock];
  for (int64_t entry = slot * a.pages_per_slot; entry < (slot + 1) * a.pages_per_slot; ++entry) {
    int64_t page = a.page_table[entry], length = a.page_lengths[entry];
    if (length == 0) continue;
    const int8_t* k = static_cast<const int8_t*>(a.k_pages.data) + page * a.k_pages.page_stride +
                      head * a.k_pages.head_stride;
    const T* v = static_cast<const T*>(a.v_pages.data) + page * a.v_pages.page_stride + head * a.v_pages.head_stride;
    const float* k_scale = args.k_scale + page * args.scale_page_stride + head;
    const float* mean = args.k_mean + page * args.mean_page_stride + head * dim;
    for (int64_t r = 0; r < round_up(rows, kRows); ++r)
      s.page[r] = a.scale * kLog2E * row_sum(dim, [&](int64_t at, int64_t count, V part) {
        return fma(load_some(s.q + r * dim + at, count), load_some(mean + at, count), part);
      });
    for (int64_t start = 0; start < length; start += kKeyBlock) {
      int64_t keys = length - start < kKeyBlock ? length - start : kKeyBlock;
      for (int64_t key = 0; key < round_up(keys, W); ++key) {
        s.k_scale[key] = key < keys ? k_scale[(start + key) * a.heads] : 0.0f;
        widen_right_row(k + (start + key) * a.k_pages.token_stride, key < keys ? dim : 0, depth, s.right + key * depth);
        if (key < keys) v_rows[key] = v + (start + key) * a.v_pages.token_stride;
      }
      for (int64_t key = 0; key < keys; key += kDotColumns)
        shift_totals(s.right + key * depth, depth, depth, s.shift + key);
      pack_values(v_rows, keys, dim, padded, s.v);
      for (int64_t row = 0; row < rows; row += kRows) {
        score_rows(s, row, keys, depth);
        weigh_values(s.scores, keys, s.v, padded, s.max + row, s.sum + row, s.out + row * padded);
      }
    }
  }
  store_attention<T>(a, slot, head, first, rows, s.out, padded, s.max, s.sum);
}

inline void paged_attention_int8(const PagedAttentionInt8Args& a, int64_t begin, int64_t end, float* base) {
  AttentionInt8Scratch scratch;
  scratch_layout(a.base, base, scratch);
  for_dtype(a.base.dtype, [&](auto* type) {
    for (int64_t item = begin; item < end; ++item)
      paged_attention_int8_item<typename Pointee<decltype(type)>::type>(a, item, scratch);
  });
}

inline int64_t paged_attention_int8_scratch(const PagedAttentionInt8Args& a) {
  AttentionInt8Scratch scratch;
  return scratch_layout(a.base, nullptr, scratch);
}

}  // namespace wavecore::WAVECORE_ISA
