// Rows to int8 with one scale each: scale = largest magnitude / 127, data = the nearest integers.
#pragma once

#include "norm.h"

namespace wavecore::WAVECORE_ISA {

// Below this the reciprocal of a scale overflows; such rows, all-zero ones among them, become zeros.
constexpr float kSmallestMagnitude = 0x1p-100f;

// A NaN or an infinity makes the scale NaN, and so every result that is computed from the row.
inline float quantize_row(const float* values, int64_t dim, int8_t* data) {
  V high = zero(), bad = zero();
  for_vectors(dim, [&](int64_t at, int64_t count) {
    V x = load_some(values + at, count);
    high = maximum(absolute(x), high);
    bad = fma(x, zero(), bad);
  });
  float magnitude = largest(high), poison = sum(bad);
  V factor = set1(magnitude < kSmallestMagnitude ? 0.0f : 127.0f / magnitude);
  for_vectors(dim, [&](int64_t at, int64_t count) {
    V scaled = load_some(values + at, count) * factor;
    if (count == W) return store_rounded(data + at, scaled);
    int8_t whole[W];
    store_rounded(whole, scaled);
    for (int64_t i = 0; i < count; ++i) data[at + i] = whole[i];
  });
  return (magnitude < kSmallestMagnitude ? 0.0f : magnitude / 127.0f) + poison;
}

template <typename T>
void quantize_rows(const QuantizeArgs& a, int64_t begin, int64_t end, float* values) {
  for (int64_t item = begin; item < end; ++item) {
    const T* x = static_cast<const T*>(a.x) + item * a.x_stride;
    for_vectors(a.dim, [&](int64_t at, int64_t count) {
      V value = load_some(x + at, count);
      store_some(values + at, a.gelu ? gelu(value) : value, count);
    });
    a.scale[item] = quantize_row(values, a.dim, a.data + item * a.dim);
  }
}

template <typename T, typename M>
void layer_norm_modulate_quantize_rows(const LayerNormModulateQuantizeArgs& args, int64_t begin, int64_t end,
                                       float* values) {
  const LayerNormModulateArgs& a = args.norm;
  Modulator<M> modulator(a, begin, values);
  for (int64_t item = begin; item < end; ++item) {
    modulator.template run<T>(values);
    args.scale[item] = quantize_row(values, a.dim, args.data + item * a.dim);
  }
}

// Keys of one page and head, without their mean: a scale for each token, zeros behind the valid ones.
template <typename T>
void quantize_key_pages_items(const QuantizeKeyPagesArgs& a, int64_t begin, int64_t end, float* values) {
  for (int64_t item = begin; item < end; ++item) {
    int64_t entry = item / a.heads, head = item % a.heads, page = a.page_ids[entry], length = a.page_lengths[entry];
    if (page < 0) continue;
    const T* keys = static_cast<const T*>(a.source.data) + page * a.source.page_stride + head * a.source.head_stride;
    int8_t* data = static_cast<int8_t*>(a.data.data) + page * a.data.page_stride + head * a.data.head_stride;
    float* scale = a.scale + page * a.scale_page_stride + head;
    float* mean = a.mean + page * a.mean_page_stride + head * a.head_dim;
    __builtin_memset(mean, 0, sizeof(float) * a.head_dim);
    for (int64_t token = 0; token < length; ++token)
      for_vectors(a.head_dim, [&](int64_t at, int64_t count) {
        V key = load_some(keys + token * a.source.token_stride + at, count);
        store_some(mean + at, load_some(mean + at, count) + key, count);
      });
    V share = set1(length ? 1.0f / float(length) : 0.0f);
    for_vectors(a.head_dim,
                [&](int64_t at, int64_t count) { store_some(mean + at, load_some(mean + at, count) * share, count); });
    for (int64_t token = 0; token < a.page_tokens; ++token) {
      int8_t* row = data + token * a.data.token_stride;
      if (token >= length) {
        __builtin_memset(row, 0, a.head_dim);
        scale[token * a.heads] = 0.0f;
        continue;
      }
      for_vectors(a.head_dim, [&](int64_t at, int64_t count) {
        V key = load_some(keys + token * a.source.token_stride + at, count);
        store_some(values + at, key - load_some(mean + at, count), count);
      });
      scale[token * a.heads] = quantize_row(values, a.head_dim, row);
    }
  }
}

inline void quantize(const QuantizeArgs& a, int64_t begin, int64_t end, float* scratch) {
  for_dtype(a.dtype, [&](auto* type) {
    quantize_rows<typename Pointee<decltype(type)>::type>(a, begin, end, scratch);
  });
}

inline void layer_norm_modulate_quantize(const LayerNormModulateQuantizeArgs& a, int64_t begin, int64_t end,
                                         float* scratch) {
  for_dtype(a.norm.dtype, [&](auto* type) {
    using T = typename Pointee<decltype(type)>::type;
    if (a.norm.shift.dtype == a.norm.dtype)
      layer_norm_modulate_quantize_rows<T, T>(a, begin, end, scratch);
    else
      layer_norm_modulate_quantize_rows<T, float>(a, begin, end, scratch);
  });
}

inline void quantize_key_pages(const QuantizeKeyPagesArgs& a, int64_t begin, int64_t end, float* scratch) {
  for_dtype(a.dtype, [&](auto* type) {
    quantize_key_pages_items<typename Pointee<decltype(type)>::type>(a, begin, end, scratch);
  });
}

}  // namespace wavecore::WAVECORE_ISA
