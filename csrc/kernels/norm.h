// Layer norm with modulation, gated residual, RMS norm.
#pragma once

#include "common.h"

namespace wavecore::WAVECORE_ISA {

// Row of the modulation for a token: the frame of token i is i / tokens_per_frame.
template <typename M>
inline const M* modulation_row(const Modulation& m, int64_t slot, int64_t frame) {
  return static_cast<const M*>(m.data) + slot * m.slot_stride + frame * m.frame_stride;
}

// What a thread keeps while it norms rows: a row as floats, and the modulation of the frame that it is at.
template <typename M>
class Modulator {
 public:
  Modulator(const LayerNormModulateArgs& args, float* scratch)
      : a(args), values(scratch), weight(scratch + args.dim), bias(scratch + 2 * args.dim) {}

  // Norm and modulate a row of all slots; `out` may be `values`.
  template <typename T, typename O>
  void run(int64_t item, O* out) {
    int64_t slot = item / a.tokens, token = item % a.tokens, frame = token / a.tokens_per_frame;
    if (slot != at_slot || frame != at_frame) load_modulation(slot, frame);
    const T* x = static_cast<const T*>(a.x) + slot * a.x_slot_stride + token * a.x_token_stride;
    float mean = row_sum(a.dim, [&](int64_t at, int64_t count, V part) {
      V value = load_some(x + at, count);
      store_some(values + at, value, count);
      return part + value;
    });
    // The second pass reads the row from the first-level cache; one pass over sums of squares would cancel.
    V centre = set1(mean / float(a.dim));
    float squares = row_sum(a.dim, [&](int64_t at, int64_t count, V part) {
      V distance = load_some(values + at, count) - centre;
      if (count < W) distance = first_lanes(distance, count);
      return fma(distance, distance, part);
    });
    V factor = set1(reciprocal_root(squares / float(a.dim) + a.eps));
    for_vectors(a.dim, [&](int64_t at, int64_t count) {
      V normed = (load_some(values + at, count) - centre) * factor;
      store_some(out + at, fma(normed, load_some(weight + at, count), load_some(bias + at, count)), count);
    });
  }

 private:
  void load_modulation(int64_t slot, int64_t frame) {
    const M* scale = modulation_row<M>(a.scale, slot, frame);
    const M* shift = modulation_row<M>(a.shift, slot, frame);
    for_vectors(a.dim, [&](int64_t at, int64_t count) {
      store_some(weight + at, set1(a.base) + load_some(scale + at, count), count);
      store_some(bias + at, load_some(shift + at, count), count);
    });
    at_slot = slot;
    at_frame = frame;
  }

  const LayerNormModulateArgs& a;
  float* values;
  float* weight;
  float* bias;
  int64_t at_slot = -1;
  int64_t at_frame = -1;
};

template <typename T, typename M>
void layer_norm_modulate_rows(const LayerNormModulateArgs& a, int64_t begin, int64_t end, float* scratch) {
  Modulator<M> modulator(a, scratch);
  for (int64_t item = begin; item < end; ++item)
    modulator.template run<T>(item, static_cast<T*>(a.out) + item * a.dim);
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

inline void layer_norm_modulate(const LayerNormModulateArgs& a, int64_t begin, int64_t end, float* scratch) {
  for_dtype(a.dtype, [&](auto* type) {
    using T = typename Pointee<decltype(type)>::type;
    if (a.shift.dtype == a.dtype)
      layer_norm_modulate_rows<T, T>(a, begin, end, scratch);
    else
      layer_norm_modulate_rows<T, float>(a, begin, end, scratch);
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
