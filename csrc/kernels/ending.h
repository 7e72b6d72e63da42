// What follows the products of a linear layer: gate and residual, row by row.
#pragma once

#include "norm.h"

namespace wavecore::WAVECORE_ISA {

template <typename T, typename Args>
inline const T* residual_row(const Args& a, const RowWalk& place) {
  return static_cast<const T*>(a.residual.data) + place.slot * a.residual.slot_stride +
         place.token * a.residual.token_stride;
}

// Integer sums of a row, in columns from `first` on, with their scales and the bias.
inline V scaled(const Int8LinearArgs& a, const int32_t* sums, V token_scale, int64_t first, int64_t count) {
  V bias = a.bias ? load_some(a.bias + first, count) : zero();
  return fma(load_integers(sums) * token_scale, load_some(a.channel_scale + first, count), bias);
}

// Columns [first, first + columns) of a row of the result; `product(at, count)` is what is to be gated and added.
template <typename T, typename Args, typename Product>
inline __attribute__((always_inline)) void finish_row(const Args& a, const RowWalk& place, int64_t first,
                                                      int64_t columns, Product product) {
  T* out = static_cast<T*>(a.out) + place.row * a.outputs + first;
  if (!a.residual.data)
    return for_vectors(columns, [&](int64_t at, int64_t count) { store_some(out + at, product(at, count), count); });
  const T* residual = residual_row<T>(a, place) + first;
  if (!a.gate.data)
    return for_vectors(columns, [&](int64_t at, int64_t count) {
      store_some(out + at, product(at, count) + load_some(residual + at, count), count);
    });
  auto gated = [&](auto* gate) {
    for_vectors(columns, [&](int64_t at, int64_t count) {
      V open = load_some(gate + at, count);
      store_some(out + at, fma(product(at, count), open, load_some(residual + at, count)), count);
    });
  };
  if (a.gate.dtype == a.dtype)
    gated(modulation_row<T>(a.gate, place.slot, place.frame) + first);
  else
    gated(modulation_row<float>(a.gate, place.slot, place.frame) + first);
}

}  // namespace wavecore::WAVECORE_ISA
