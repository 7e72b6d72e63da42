// Layer norm with modulation, gated residual, RMS norm.
#pragma once

#include <type_traits>

#include "norm_pairs.h"

namespace wavecore::WAVECORE_ISA {

// A row of all slots, in slot, latent frame and token. Rows are walked, since a division for each would take as
// long as the rest of a short row.
struct RowWalk {
  int64_t tokens_per_slot, tokens_per_frame;
  int64_t row, slot, token, frame, in_frame;

  RowWalk(int64_t per_slot, int64_t per_frame, int64_t first)
      : tokens_per_slot(per_slot),
        tokens_per_frame(per_frame),
        row(first),
        slot(first / per_slot),
        token(first % per_slot),
        frame(token / per_frame),
        in_frame(token % per_frame) {}
  template <typename Args>
  RowWalk(const Args& a, int64_t first) : RowWalk(a.tokens_per_slot, a.tokens_per_frame, first) {}

  void next() {
    ++row, ++token, ++in_frame;
    if (in_frame == tokens_per_frame) in_frame = 0, ++frame;
    if (token == tokens_per_slot) token = frame = in_frame = 0, ++slot;
  }
};

// Row of the modulation for a token: the frame of token i is i / tokens_per_frame.
template <typename M>
inline const M* modulation_row(const Modulation& m, int64_t slot, int64_t frame) {
  return static_cast<const M*>(m.data) + slot * m.slot_stride + frame * m.frame_stride;
}

// What a thread keeps while it norms one row after the other: a row as floats, and the modulation of the frame that it
// is at. With `pairs` rows are bfloat16, and taken apart as in norm_pairs.h.
template <typename M, bool pairs = false>
class Modulator {
 public:
  Modulator(const LayerNormModulateArgs& args, int64_t first, float* scratch)
      : a(args),
        walk(args.tokens, args.tokens_per_frame, first),
        values(scratch),
        weight(scratch + args.dim),
        bias(scratch + 2 * args.dim) {}

  // Norm and modulate the next row; `out` may be `values`.
  template <typename T, typename O>
  void run(O* out) {
    const T* x = next_row<T>();
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

  void run_pairs(bf16* out) { norm_pairs(next_row<bf16>(), a.dim, a.eps, weight, bias, out); }

 private:
  // A row whose frame's modulation is at hand.
  template <typename T>
  const T* next_row() {
    if (walk.slot != at_slot || walk.frame != at_frame) load_modulation(walk.slot, walk.frame);
    const T* x = static_cast<const T*>(a.x) + walk.slot * a.x_slot_stride + walk.token * a.x_token_stride;
    walk.next();
    return x;
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
  RowWalk walk;
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
      Modulator<M, true> modulator(a, begin, scratch);
      for (int64_t item = begin; item < end; ++item) modulator.run_pairs(out + item * a.dim);
      return;
    }
  }
  Modulator<M> modulator(a, begin, scratch);
  for (int64_t item = begin; item < end; ++item) modulator.template run<T>(out + item * a.dim);
}

template <typename T, typename M>
void gate_residual_rows(const GateResidualArgs& a, int64_t begin, int64_t end) {
  for (RowWalk walk(a.tokens, a.tokens_per_frame, begin); walk.row < end; walk.next()) {
    const T* x = static_cast<const T*>(a.x) + walk.slot * a.x_slot_stride + walk.token * a.x_token_stride;
    const T* y = static_cast<const T*>(a.y) + walk.slot * a.y_slot_stride + walk.token * a.y_token_stride;
    const M* gate = modulation_row<M>(a.gate, walk.slot, walk.frame);
    T* out = static_cast<T*>(a.out) + walk.row * a.dim;
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
