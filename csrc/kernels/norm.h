// Layer norm with modulation, gated residual, RMS norm.
#pragma once

#include <type_traits>

#include "norm_pairs.h"

namespace wavecore::WAVECORE_ISA {

// Row of the modulation for a token: the frame of token i is i / tokens_per_frame.
template <typename M>
inline const M* modulation_row(const Modulation& m, int64_t slot, int64_t frame) {
  return static_cast<const M*>(m.data) + slot * m.slot_stride + frame * m.frame_stride;
}

// What a thread keeps while it norms rows: a row as floats, and the modulation of the frame that it is at. With `pairs`
// rows are bfloat16, and taken apart as in norm_pairs.h.
template <typename M, bool pairs = false>
class Modulator {
 public:
  Modulator(const LayerNormModulateArgs& args, float* scratch)
      : a(args), values(scratch), weight(scratch + args.dim), bias(scratch + 2 * args.dim) {}

  // Norm and modulate a row of all slots; `out` may be `values`.
  template <typename T, typename O>
  void run(int64_t item, O* out) {
    const T* x = go_to<T>(item);
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

  void run_pairs(int64_t item, bf16* out) { norm_pairs(go_to<bf16>(item), a.dim, a.eps, weight, bias, out); }

 private:
  // The row of an item, whose frame's modulation is then at hand.
  template <typename T>
  const T* go_to(int64_t item) {
    int64_t slot = item / a.tokens, token = item % a.tokens, frame = token / a.tokens_per_frame;
    if (slot != at_slot || frame != at_frame) load_modulation(slot, frame);
    return static_cast<const T*>(a.x) + slot * a.x_slot_stride + token * a.x_token_stride;
  }

  void load_modulation(int64_t slot, int64_t frame) {
    const M* scale = modulation_row<M>(a.scale, slot, frame);
    const M* shift = modulation_row<M>(a.shift, slot, frame);
    at_slot = slot;
    at_frame = frame;
    if constexpr (pairs)
      load_modulation_pairs(scale, shift);
    else
      for_vectors(a.dim, [&](int64_t at, int64_t count) {
        store_some(weight + at, set1(a.base) + load_some(scale + at, count), count);
        store_some(bias + at, load_some(shift + at, count), count);
      });
  }

  void load_modulation_pairs(const M* scale, const M* shift) {
    for (int64_t at = 0; at < a.dim; at += kPairs) {
      V even, odd;
      load_pairs(scale + at, even, odd);
      store(weight + at, set1(a.base) + even);
      store(weight + at + W, set1(a.base) + odd);
      load_pairs(shift + at, even, odd);
      store(bias + at, even);
      store(bias + at + W, odd);
    }
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
  T* out = static_cast<T*>(a.out);
  if constexpr (std::is_same_v<T, bf16>) {
    if (a.dim % kPairs == 0) {
      Modulator<M, true> modulator(a, scratch);
      for (int64_t item = begin; item < end; ++item) modulator.run_pairs(item, out + item * a.dim);
      return;
    }
  }
  Modulator<M> modulator(a, scratch);
  for (int64_t item = begin; item < end; ++item) modulator.template run<T>(item, out + item * a.dim);
}

template <typename T, typename M>
void gate_residual_rows(const GateResidualArgs& a, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    int64_t slot = item / a.tokens, token = item % a.tokens;
    const T* x = static_cast<const T*>(a.x) + slot * a.x_slot_stride + token * a.x_token_stride;
    const T* y = static_cast<const T*>(a.y) + slot * a.y_slot_stride + token * a.y_token_stride;
    const M* gate = modulation_row<M>(a.gate, slot, token / a.tokens_per_frame);
    T* out = static_cast<T*>(a.out) + item * a.dim;
    if constexpr (std::is_same_v<T, bf16> && std::is_same_v<M, bf16>) {
      if (a.dim % kPairs == 0) {
        gate_residual_pairs(x, y, gate, a.dim, out);
        continue;
      }
    }
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
