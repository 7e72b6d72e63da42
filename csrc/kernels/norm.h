// Layer norm with modulation, gated residual, RMS norm.
#pragma once

#include "common.h"

namespace wavecore::WAVECORE_ISA {

// Row of the modulation for a token: the frame of token i is i / tokens_per_frame.
template <typename M>
inline const M* modulation_row(const Modulation& m, int64_t slot, int64_t frame) {
  return static_cast<const M*>(m.data) + slot * m.slot_stride + frame * m.frame_stride;
}

template <typename T, typename M, typename O>
inline void layer_norm_modulate_row(const T* x, const M* shift, const M* scale, O* out, int64_t dim, float eps) {
  float mean = row_sum(dim, [&](int64_t at, int64_t count, V part) { return part + load_some(x + at, count); });
  mean /= float(dim);
  // The second pass reads the row from the first-level cache; one pass over sums of squares would cancel.
  V centre = set1(mean);
  float squares = row_sum(dim, [&](int64_t at, int64_t count, V part) {
    V distance = load_some(x + at, count) - centre;
    if (count < W) distance = first_lanes(distance, count);
    return fma(distance, distance, part);
  });
  V factor = set1(reciprocal_root(squares / float(dim) + eps));
  V one = set1(1.0f);
  for_vectors(dim, [&](int64_t at, int64_t count) {
    V normed = (load_some(x + at, count) - centre) * factor;
    V weight = one + load_some(scale + at, count);
    store_some(out + at, fma(normed, weight, load_some(shift + at, count)), count);
  });
}

template <typename T, typename M>
void layer_norm_modulate_rows(const LayerNormModulateArgs& a, int64_t begin, int64_t end) {
  const T* x = static_cast<const T*>(a.x);
  T* out = static_cast<T*>(a.out);
  for (int64_t item = begin; item < end; ++item) {
    int64_t slot = item / a.tokens, token = item % a.tokens, frame = token / a.tokens_per_frame;
    layer_norm_modulate_row(x + slot * a.x_slot_stride + token * a.x_token_stride,
                            modulation_row<M>(a.shift, slot, frame), modulation_row<M>(a.scale, slot, frame),
                            out + item * a.dim, a.dim, a.eps);
  }
}

template <typename T, typename M>
void gate_residual_rows(const GateResidualArgs& a, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    int64_t slot = item / a.tokens, token = item % a.tokens;
    const T* x = static_cast<const T*>(a.x) + slot * a.x_slot_stride + token * a.x_token_stride;
    const T* y = static_cast<const T*>(a.y) + slot * a.y_slot_stride + token * a.y_token_stride;
    const M* gate = modulation_row<M>(a.gate, slot, token / a.tokens_per_frame);
    T* out = static_cast<T*>(a.out) + item * a.dim;
    for_vectors(a.dim, [&](int64_t at, int64_t count) {
      V gated = fma(load_some(y + at, count), load_some(gate + at, count), load_some(x + at, count));
      store_some(out + at, gated, count);
    });
  }
}

template <typename T>
void rms_norm_rows(const RmsNormArgs& a, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    const T* x = static_cast<const T*>(a.x) + item * a.x_stride;
    T* out = static_cast<T*>(a.out) + item * a.dim;
    V factor = set1(rms_factor(x, a.dim, a.eps));
    for_vectors(a.dim, [&](int64_t at, int64_t count) {
      store_some(out + at, load_some(x + at, count) * factor * load_some(a.weight + at, count), count);
    });
  }
}

inline void layer_norm_modulate(const LayerNormModulateArgs& a, int64_t begin, int64_t end) {
  for_dtype(a.dtype, [&](auto* type) {
    using T = typename Pointee<decltype(type)>::type;
    if (a.shift.dtype == a.dtype)
      layer_norm_modulate_rows<T, T>(a, begin, end);
    else
      layer_norm_modulate_rows<T, float>(a, begin, end);
  });
}

inline void gate_residual(const GateResidualArgs& a, int64_t begin, int64_t end) {
  for_dtype(a.dtype, [&](auto* type) {
    using T = typename Pointee<decltype(type)>::type;
    if (a.gate.dtype == a.dtype)
      gate_residual_rows<T, T>(a, begin, end);
    else
      gate_residual_rows<T, float>(a, begin, end);
  });
}

inline void rms_norm(const RmsNormArgs& a, int64_t begin, int64_t end) {
  for_dtype(a.dtype, [&](auto* type) {
    rms_norm_rows<typename Pointee<decltype(type)>::type>(a, begin, end);
  });
}

}  // namespace wavecore::WAVECORE_ISA
