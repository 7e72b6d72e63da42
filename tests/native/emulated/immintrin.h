// AVX-512 in plain code, so that its kernels run on a processor without it.
//
// Stands for the compiler's header in the translation units of the AVX-512 kernels, which are then compiled for AVX2,
// and holds what csrc/simd/avx512.h uses. The logic of the kernels is tested so; the instructions themselves are not.
#pragma once

#include_next <immintrin.h>

#if defined(WAVECORE_EMULATE_VNNI)
#define __AVX512VNNI__  // for what follows: the compiler's header would take it for an option that is set
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

namespace emulated {

typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));

template <typename To, typename From>
To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// Lanes of another type of a vector.
template <typename T, int N>
struct Lanes {
  T lane[N];
  template <typename Vector>
  static Lanes of(Vector v) {
    return bits<Lanes>(v);
  }
  template <typename F>
  static Lanes make(F f) {
    Lanes made;
    for (int i = 0; i < N; ++i) made.lane[i] = f(i);
    return made;
  }
};

template <typename F>
Floats floats(F f) {
  return bits<Floats>(Lanes<float, 16>::make(f));
}
template <typename F>
Ints ints(F f) {
  return bits<Ints>(Lanes<int32_t, 16>::make(f));
}

inline Floats set1_ps(float x) {
  return floats([=](int) { return x; });
}
inline Floats setzero_ps() { return set1_ps(0.0f); }
inline Ints set1_epi32(int x) {
  return ints([=](int) { return x; });
}
inline Ints setzero_si512() { return set1_epi32(0); }
inline Ints set1_epi8(char x) { return bits<Ints>(Lanes<int8_t, 64>::make([=](int) { return int8_t(x); })); }

template <typename V>
V loadu(const void* p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
template <typename V>
void storeu(void* p, V v) {
  std::memcpy(p, &v, sizeof v);
}

// Past the caches, which the instruction does to whole lines only.
inline void stream(float* p, Floats v) {
  if (reinterpret_cast<uintptr_t>(p) % sizeof v) __builtin_trap();
  std::memcpy(p, &v, sizeof v);
}

inline Floats fmadd_ps(Floats a, Floats b, Floats c) {
  return floats([&](int i) { return std::fma(a[i], b[i], c[i]); });
}
inline Floats fmaddsub_ps(Floats a, Floats b, Floats c) {
  return floats([&](int i) { return std::fma(a[i], b[i], i % 2 ? c[i] : -c[i]); });
}
inline Floats max_ps(Floats a, Floats b) {
  return floats([&](int i) { return a[i] > b[i] ? a[i] : b[i]; });
}
inline Floats min_ps(Floats a, Floats b) {
  return floats([&](int i) { return a[i] < b[i] ? a[i] : b[i]; });
}
inline Floats add_ps(Floats a, Floats b) { return a + b; }
inline Floats sub_ps(Floats a, Floats b) { return a - b; }
inline Floats mul_ps(Floats a, Floats b) { return a * b; }
inline Ints add_epi32(Ints a, Ints b) {
  return ints([&](int i) { return int32_t(uint32_t(a[i]) + uint32_t(b[i])); });
}
inline Ints and_si512(Ints a, Ints b) { return a & b; }
inline Ints xor_si512(Ints a, Ints b) { return a ^ b; }
inline Ints slli_epi32(Ints a, int n) {
  return ints([&](int i) { return int32_t(uint32_t(a[i]) << n); });
}
inline Ints srli_epi32(Ints a, int n) {
  return ints([&](int i) { return int32_t(uint32_t(a[i]) >> n); });
}

inline Floats moveldup_ps(Floats v) {
  return floats([&](int i) { return v[i & ~1]; });
}
inline Floats movehdup_ps(Floats v) {
  return floats([&](int i) { return v[i | 1]; });
}
inline Floats permute_ps(Floats v, int control) {
  return floats([&](int i) { return v[(i & ~3) | (control >> 2 * (i & 3) & 3)]; });
}
// An element of one of two vectors is chosen after it is taken: GCC 12 loses the index of (c ? a : b)[i] under the
// undefined-behaviour sanitizer.
inline Floats shuffle_ps(Floats a, Floats b, int control) {
  return floats([&](int i) {
    int from = (i & ~3) | (control >> 2 * (i & 3) & 3);
    return i % 4 < 2 ? a[from] : b[from];
  });
}
inline Floats shuffle_f32x4(Floats a, Floats b, int control) {
  return floats([&](int i) {
    int from = 4 * (control >> 2 * (i / 4) & 3) + i % 4;
    return i < 8 ? a[from] : b[from];
  });
}
inline Floats unpacklo_ps(Floats a, Floats b) {
  return floats([&](int i) {
    int from = (i & ~3) + i % 4 / 2;
    return i % 2 ? b[from] : a[from];
  });
}
inline Floats unpackhi_ps(Floats a, Floats b) {
  return floats([&](int i) {
    int from = (i & ~3) + 2 + i % 4 / 2;
    return i % 2 ? b[from] : a[from];
  });
}

inline Floats reduce_ps(Floats v, int) {  // an infinity becomes 0
  return floats([&](int i) { return std::isinf(v[i]) ? 0.0f : v[i] - std::nearbyint(v[i]); });
}
inline Floats scalef_ps(Floats a, Floats b) {  // 0 and infinity beyond the powers of a float
  return floats([&](int i) {
    if (b[i] != b[i]) return b[i];
    float power = std::floor(b[i]);
    return std::ldexp(a[i], power > 1000.0f ? 1000 : power < -1000.0f ? -1000 : int(power));
  });
}

template <typename F>
float reduce(Floats v, F f) {
  for (int width = 8; width; width /= 2)
    for (int i = 0; i < width; ++i) v[i] = f(v[i], v[i + width]);
  return v[0];
}
inline float reduce_add_ps(Floats v) {
  return reduce(v, [](float a, float b) { return a + b; });
}
inline float reduce_max_ps(Floats v) {
  return reduce(v, [](float a, float b) { return a > b ? a : b; });
}

inline __mmask16 unordered(Floats a, Floats b, int) {
  __mmask16 mask = 0;
  for (int i = 0; i < 16; ++i) mask |= __mmask16((a[i] != a[i] || b[i] != b[i]) << i);
  return mask;
}
inline __mmask16 movepi32_mask(Ints v) {
  __mmask16 mask = 0;
  for (int i = 0; i < 16; ++i) mask |= __mmask16((v[i] < 0) << i);
  return mask;
}
inline Floats mask_mov_ps(Floats a, __mmask16 mask, Floats b) {
  return floats([&](int i) { return mask >> i & 1 ? b[i] : a[i]; });
}
inline Ints mask_mov_epi32(Ints a, __mmask16 mask, Ints b) {
  return ints([&](int i) { return mask >> i & 1 ? b[i] : a[i]; });
}

inline Ints cvtps_epi32(Floats v) {  // out of range and NaN give the instruction's indefinite value
  return ints([&](int i) { return std::fabs(v[i]) < 0x1p31f ? int32_t(std::nearbyint(v[i])) : INT32_MIN; });
}
inline Floats cvtepi32_ps(Ints v) {
  return floats([&](int i) { return float(v[i]); });
}
inline Ints cvtepu16_epi32(__m256i v) {
  auto x = Lanes<uint16_t, 16>::of(v);
  return ints([&](int i) { return int32_t(x.lane[i]); });
}
inline __m256i cvtepi32_epi16(Ints v) {
  return bits<__m256i>(Lanes<uint16_t, 16>::make([&](int i) { return uint16_t(v[i]); }));
}
inline __m128i cvtsepi32_epi8(Ints v) {
  return bits<__m128i>(Lanes<int8_t, 16>::make([&](int i) { return int8_t(v[i] > 127 ? 127 : v[i] < -128 ? -128 : v[i]); }));
}
inline Floats cvtph_ps(__m256i v) {
  auto x = Lanes<uint16_t, 16>::of(v);
  return floats([&](int i) { return _cvtsh_ss(x.lane[i]); });
}
inline __m256i cvtps_ph(Floats v, int) {
  return bits<__m256i>(
      Lanes<uint16_t, 16>::make([&](int i) { return uint16_t(_cvtss_sh(v[i], _MM_FROUND_TO_NEAREST_INT)); }));
}
inline Ints cvtepi8_epi16(__m256i v) {
  auto x = Lanes<int8_t, 32>::of(v);
  return bits<Ints>(Lanes<int16_t, 32>::make([&](int i) { return int16_t(x.lane[i]); }));
}
inline Ints madd_epi16(Ints a, Ints b) {
  auto x = Lanes<int16_t, 32>::of(a), y = Lanes<int16_t, 32>::of(b);
  return ints([&](int i) { return x.lane[2 * i] * y.lane[2 * i] + x.lane[2 * i + 1] * y.lane[2 * i + 1]; });
}
inline Ints dpbusd_epi32(Ints sums, Ints a, Ints b) {
  auto x = Lanes<uint8_t, 64>::of(a);
  auto y = Lanes<int8_t, 64>::of(b);
  return ints([&](int i) {
    int32_t sum = sums[i];
    for (int j = 4 * i; j < 4 * i + 4; ++j) sum += int32_t(x.lane[j]) * int32_t(y.lane[j]);
    return sum;
  });
}
inline __m256i half_of_ints(Ints v, int half) {
  return loadu<__m256i>(reinterpret_cast<const char*>(&v) + 32 * half);
}

}  // namespace emulated

#define __m512 emulated::Floats
#define __m512i emulated::Ints
#define _mm512_set1_ps emulated::set1_ps
#define _mm512_setzero_ps emulated::setzero_ps
#define _mm512_set1_epi32 emulated::set1_epi32
#define _mm512_setzero_si512 emulated::setzero_si512
#define _mm512_set1_epi8 emulated::set1_epi8
#define _mm512_loadu_ps emulated::loadu<emulated::Floats>
#define _mm512_loadu_si512 emulated::loadu<emulated::Ints>
#define _mm512_storeu_ps emulated::storeu<emulated::Floats>
#define _mm512_stream_ps emulated::stream
#define _mm512_storeu_si512 emulated::storeu<emulated::Ints>
#define _mm512_castsi512_ps emulated::bits<emulated::Floats>
#define _mm512_castps_si512 emulated::bits<emulated::Ints>
#define _mm512_fmadd_ps emulated::fmadd_ps
#define _mm512_fmaddsub_ps emulated::fmaddsub_ps
#define _mm512_max_ps emulated::max_ps
#define _mm512_min_ps emulated::min_ps
#define _mm512_add_ps emulated::add_ps
#define _mm512_sub_ps emulated::sub_ps
#define _mm512_mul_ps emulated::mul_ps
#define _mm512_reduce_ps emulated::reduce_ps
#define _mm512_scalef_ps emulated::scalef_ps
#define _mm512_add_epi32 emulated::add_epi32
#define _mm512_and_si512 emulated::and_si512
#define _mm512_xor_si512 emulated::xor_si512
#define _mm512_slli_epi32 emulated::slli_epi32
#define _mm512_srli_epi32 emulated::srli_epi32
#define _mm512_moveldup_ps emulated::moveldup_ps
#define _mm512_movehdup_ps emulated::movehdup_ps
#define _mm512_permute_ps emulated::permute_ps
#define _mm512_shuffle_ps emulated::shuffle_ps
#define _mm512_shuffle_f32x4 emulated::shuffle_f32x4
#define _mm512_unpacklo_ps emulated::unpacklo_ps
#define _mm512_unpackhi_ps emulated::unpackhi_ps
#define _mm512_reduce_add_ps emulated::reduce_add_ps
#define _mm512_reduce_max_ps emulated::reduce_max_ps
#define _mm512_cmp_ps_mask emulated::unordered
#define _mm512_movepi32_mask emulated::movepi32_mask
#define _mm512_mask_mov_ps emulated::mask_mov_ps
#define _mm512_mask_mov_epi32 emulated::mask_mov_epi32
#define _mm512_cvtps_epi32 emulated::cvtps_epi32
#define _mm512_cvtepi32_ps emulated::cvtepi32_ps
#define _mm512_cvtepu16_epi32 emulated::cvtepu16_epi32
#define _mm512_cvtepi32_epi16 emulated::cvtepi32_epi16
#define _mm512_cvtsepi32_epi8 emulated::cvtsepi32_epi8
#define _mm512_cvtph_ps emulated::cvtph_ps
#define _mm512_cvtps_ph emulated::cvtps_ph
#define _mm512_cvtepi8_epi16 emulated::cvtepi8_epi16
#define _mm512_madd_epi16 emulated::madd_epi16
#define _mm512_dpbusd_epi32 emulated::dpbusd_epi32
#define _mm512_castsi512_si256(v) emulated::half_of_ints(v, 0)
#define _mm512_extracti64x4_epi64(v, half) emulated::half_of_ints(v, half)
