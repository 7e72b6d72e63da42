// RMS norm, rotary embedding and page write; rotation of cached keys to a new position.
#pragma once

#include "common.h"

namespace wavecore::WAVECORE_ISA {

template <typename T>
inline T* page_row(const Pages& pages, int64_t page, int64_t row) {
  return static_cast<T*>(pages.data) + page * pages.page_stride + row * pages.token_stride;
}

template <typename T>
inline const T* token_row(const Rows& rows, int64_t slot, int64_t token) {
  return static_cast<const T*>(rows.data) + slot * rows.slot_stride + token * rows.token_stride;
}

// Where the rotated and the un-rotated heads of a token go; either may be null.
template <typename T>
struct HeadRows {
  T* data;
  int64_t head_stride;
};

// Whether results go past the caches: where they would take most of a third-level cache, and lie on whole vectors.
template <typename T>
inline bool streams(const QkvPageWriteArgs& a) {
  constexpr int64_t kMostCached = int64_t(16) << 20, kVector = W * int64_t(sizeof(T));
  if (3 * a.tokens * a.heads * a.head_dim * int64_t(sizeof(T)) <= kMostCached) return false;
  uintptr_t places = reinterpret_cast<uintptr_t>(a.q_out) | uintptr_t(a.head_dim * int64_t(sizeof(T)));
  const Pages written[] = {a.k_pages, a.v_pages, a.unroped_pages, a.peer_k_pages, a.peer_v_pages};
  for (const Pages& pages : written)
    places |= reinterpret_cast<uintptr_t>(pages.data) |
              uintptr_t((pages.page_stride | pages.token_stride | pages.head_stride) * int64_t(sizeof(T)));
  return places % kVector == 0;
}

template <bool past, typename T>
inline __attribute__((always_inline)) void put(T* p, V v, int64_t count) {
  if (past)
    stream(p, v);
  else
    store_some(p, v, count);
}

template <bool past, typename T>
inline void norm_and_rotate(const T* x, const float* weight, float factor, const float* rope, int64_t heads,
                            int64_t head_dim, HeadRows<T> rotated, HeadRows<T> plain) {
  V scale = set1(factor);
  for (int64_t head = 0; head < heads; ++head) {
    const T* from = x + head * head_dim;
    const float* w = weight + head * head_dim;
    for_vectors(head_dim, [&](int64_t at, int64_t count) {
      V normed = load_some(from + at, count) * scale * load_some(w + at, count);
      if (plain.data) put<past>(plain.data + head * plain.head_stride + at, normed, count);
      if (rotated.data) {
        V turned = rotate(normed, load_some(rope + at, count));
        put<past>(rotated.data + head * rotated.head_stride + at, turned, count);
      }
    });
  }
}

template <bool past, typename T>
inline void copy_heads(const T* x, int64_t head_stride, int64_t heads, int64_t head_dim, HeadRows<T> out) {
  for (int64_t head = 0; head < heads; ++head) {
    T* to = out.data + head * out.head_stride;
    const T* from = x + head * head_stride;
    if constexpr (past && sizeof(T) == sizeof(float))
      for (int64_t at = 0; at < head_dim; at += W) stream(to + at, load(from + at));
    else
      __builtin_memcpy(to, from, sizeof(T) * head_dim);
  }
}

template <typename T>
inline void zero_heads(int64_t heads, int64_t head_dim, HeadRows<T> out) {
  for (int64_t head = 0; head < heads; ++head)
    __builtin_memset(out.data + head * out.head_stride, 0, sizeof(T) * head_dim);
}

template <bool past, typename T>
void qkv_page_write_rows(const QkvPageWriteArgs& a, int64_t begin, int64_t end) {
  int64_t rows = a.pages_per_slot * a.page_tokens;
  int64_t dim = a.heads * a.head_dim;
  auto target = [&](const Pages& pages, int32_t page, int64_t row) {
    return HeadRows<T>{page < 0 ? nullptr : page_row<T>(pages, page, row), pages.head_stride};
  };
  for (int64_t item = begin; item < end; ++item) {
    int64_t slot = item / rows, token = item % rows;
    int64_t entry = slot * a.pages_per_slot + token / a.page_tokens, row = token % a.page_tokens;
    HeadRows<T> k_out = target(a.k_pages, a.page_ids[entry], row);
    HeadRows<T> v_out = target(a.v_pages, a.page_ids[entry], row);
    HeadRows<T> plain = target(a.unroped_pages, a.unroped_ids ? a.unroped_ids[entry] : -1, row);
    int32_t peer = a.peer_ids ? a.peer_ids[entry] : -1;
    HeadRows<T> peer_k = target(a.peer_k_pages, peer, row), peer_v = target(a.peer_v_pages, peer, row);
    if (token >= a.tokens) {
      const HeadRows<T> outputs[] = {k_out, v_out, plain, peer_k, peer_v};
      for (const HeadRows<T>& out : outputs)
        if (out.data) zero_heads(a.heads, a.head_dim, out);
      continue;
    }
    const float* rope = a.rope + slot * a.rope_slot_stride + token * a.rope_token_stride;
    const T* q = token_row<T>(a.q, slot, token);
    const T* k = token_row<T>(a.k, slot, token);
    HeadRows<T> q_out{static_cast<T*>(a.q_out) + (slot * a.tokens + token) * dim, a.head_dim};
    norm_and_rotate<past>(q, a.q_weight, rms_factor(q, dim, a.eps), rope, a.heads, a.head_dim, q_out,
                    HeadRows<T>{nullptr, 0});
    HeadRows<T> k_first = k_out.data ? k_out : peer_k;
    if (k_first.data || plain.data)
      norm_and_rotate<past>(k, a.k_weight, rms_factor(k, dim, a.eps), rope, a.heads, a.head_dim, k_first, plain);
    if (k_out.data && peer_k.data) copy_heads<past>(k_out.data, k_out.head_stride, a.heads, a.head_dim, peer_k);
    const HeadRows<T> values[] = {v_out, peer_v};
    for (const HeadRows<T>& out : values)
      if (out.data) copy_heads<past>(token_row<T>(a.v, slot, token), a.head_dim, a.heads, a.head_dim, out);
  }
}

template <typename T>
void rope_shift_rows(const RopeShiftArgs& a, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    int64_t entry = item / a.page_tokens, row = item % a.page_tokens;
    if (a.target_ids[entry] < 0) continue;
    const T* from = page_row<T>(a.source, a.source_ids[entry], row);
    T* to = page_row<T>(a.target, a.target_ids[entry], row);
    const float* rope = a.rope + entry * a.rope_page_stride + row * a.rope_token_stride;
    for (int64_t head = 0; head < a.heads; ++head)
      for_vectors(a.head_dim, [&](int64_t at, int64_t count) {
        V x = load_some(from + head * a.source.head_stride + at, count);
        store_some(to + head * a.target.head_stride + at, rotate(x, load_some(rope + at, count)), count);
      });
  }
}

inline void qkv_page_write(const QkvPageWriteArgs& a, int64_t begin, int64_t end) {
  for_dtype(a.dtype, [&](auto* type) {
    using T = typename Pointee<decltype(type)>::type;
    if (!streams<T>(a)) return qkv_page_write_rows<false, T>(a, begin, end);
    qkv_page_write_rows<true, T>(a, begin, end);
    finish_streams();
  });
}

inline void rope_shift(const RopeShiftArgs& a, int64_t begin, int64_t end) {
  for_dtype(a.dtype, [&](auto* type) {
    rope_shift_rows<typename Pointee<decltype(type)>::type>(a, begin, end);
  });
}

}  // namespace wavecore::WAVECORE_ISA
