// GELU, and the step from one noise level to the next.
#pragma once

#include "common.h"

namespace wavecore::WAVECORE_ISA {

template <typename T>
void gelu_rows(const GeluArgs& a, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    const T* x = static_cast<const T*>(a.x) + item * a.x_stride;
    T* out = static_cast<T*>(a.out) + item * a.dim;
    for_vectors(a.dim, [&](int64_t at, int64_t count) { store_some(out + at, gelu(load_some(x + at, count)), count); });
  }
}

// x0 = x - sigma v, then x' = (1 - sigma') x0 + sigma' noise, with the x0 that is returned.
template <typename T>
void renoise_step_rows(const RenoiseStepArgs& a, int64_t begin, int64_t end) {
  for (int64_t item = begin; item < end; ++item) {
    int64_t frame = item % a.frames, slot = item / a.frames / a.channels, at_row = item * a.plane;
    V sigma = set1(-a.sigma[slot * a.frames + frame]);
    float next = a.next_sigma[slot * a.frames + frame];
    V keep = set1(1.0f - next), add = set1(next);
    auto row = [&](const void* data) { return static_cast<const T*>(data) + at_row; };
    auto out = [&](void* data) { return static_cast<T*>(data) + at_row; };
    for_vectors(a.plane, [&](int64_t at, int64_t count) {
      V clean = fma(sigma, load_some(row(a.velocity) + at, count), load_some(row(a.x) + at, count));
      V noised = fma(add, load_some(row(a.noise) + at, count), keep * clean);
      store_some(out(a.x0) + at, clean, count);
      store_some(out(a.noised) + at, noised, count);
    });
  }
}

inline void gelu(const GeluArgs& a, int64_t begin, int64_t end) {
  for_dtype(a.dtype, [&](auto* type) { gelu_rows<typename Pointee<decltype(type)>::type>(a, begin, end); });
}

inline void renoise_step(const RenoiseStepArgs& a, int64_t begin, int64_t end) {
  for_dtype(a.dtype, [&](auto* type) { renoise_step_rows<typename Pointee<decltype(type)>::type>(a, begin, end); });
}

}  // namespace wavecore::WAVECORE_ISA
