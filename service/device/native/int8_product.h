// Int8 weights times rows of 14-bit integers.
//
// One instruction multiplies 16 pairs of 16-bit numbers and adds neighbours, and where a float
// multiply-add has two pipes, products and sums of integers have four between them: about 1.8
// times as fast on a CPU without any 8-bit dot product. Rows are scaled by their own largest
// value to 14 bits, which costs less accuracy than the weights' 8 bits by a factor of 64.
//
// A panel holds, for each pair of inputs, the pair's weights of output 0, of output 1, and so on.
// A sum of `kExactInputs` products cannot overflow 32 bits; longer rows are summed in pieces.

#pragma once

#include "product.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ps {

constexpr int kQuantizedMax = 8191;
constexpr int kExactInputs = 2048;  // 2048 * 127 * 8191 < 2^31

typedef int16_t Shorts __attribute__((vector_size(PS_VECTOR_BYTES)));

// sums + a[2i] * w[2i] + a[2i + 1] * w[2i + 1]
static PS_INLINE Ints add_pairs(Ints sums, Ints a, Shorts w) {
#if defined(__AVX512VNNI__) && PS_VECTOR_BYTES == 64
  return (Ints)_mm512_dpwssd_epi32((__m512i)sums, (__m512i)a, (__m512i)w);
#elif defined(__AVX512BW__) && PS_VECTOR_BYTES == 64
  return sums + (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)w);
#elif defined(__AVX2__) && PS_VECTOR_BYTES == 32
  return sums + (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)w);
#else
  Ints b = load<Ints>(&w);
  return sums + (a << 16 >> 16) * (b << 16 >> 16) + (a >> 16) * (b >> 16);
#endif
}

static PS_INLINE Shorts widen(const int8_t* from) {
#if defined(__AVX512BW__) && PS_VECTOR_BYTES == 64
  return (Shorts)_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__AVX2__) && PS_VECTOR_BYTES == 32
  return (Shorts)_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  typedef int8_t Half __attribute__((vector_size(PS_VECTOR_BYTES / 2)));
  return __builtin_convertvector(load<Half>(from), Shorts);
#endif
}

static PS_INLINE Ints pair_of(const int16_t* at) {
  int32_t both;
  std::memcpy(&both, at, 4);
  return both - Ints{};
}

template <int R, int U>
static PS_INLINE void accumulate_pairs(const int16_t* a, long stride, const int8_t* w, int pairs,
                                       Prefetch prefetch, Ints (&sums)[R][kGroupVectors]) {
  Ints separate[U][R][kGroupVectors] = {};
  for (int k = 0; k + U <= pairs; k += U) {
    if constexpr (R > 1) __builtin_prefetch(prefetch.from + k * prefetch.step, 0, 2);
    PS_UNROLL for (int u = 0; u < U; u++) {
      Shorts group[kGroupVectors];
      PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++)
        group[vec] = widen(w + (long(k + u) * kGroup + vec * kWidth) * 2);
      PS_UNROLL for (int r = 0; r < R; r++) {
        const Ints x = pair_of(a + r * stride + 2 * (k + u));
        PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++)
          separate[u][r][vec] = add_pairs(separate[u][r][vec], x, group[vec]);
      }
    }
  }
  PS_UNROLL for (int u = 0; u < U; u++) {
    PS_UNROLL for (int r = 0; r < R; r++) {
      PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++) sums[r][vec] += separate[u][r][vec];
    }
  }
}

// to [R, 16] (+)= the integer sums as floats; `pairs` is a multiple of 4.
template <int R>
static PS_INLINE void int8_tile(const int16_t* a, long stride, const int8_t* w, int pairs,
                                Prefetch prefetch, float* to, bool add) {
  constexpr int U = R == 1 ? 4 : R == 2 ? 2 : 1;
  Ints sums[R][kGroupVectors] = {};
  accumulate_pairs<R, U>(a, stride, w, pairs, prefetch, sums);
  PS_UNROLL for (int r = 0; r < R; r++) {
    PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++) {
      float* at = to + r * kGroup + vec * kWidth;
      Floats value = __builtin_convertvector(sums[r][vec], Floats);
      store(at, add ? load<Floats>(at) + value : value);
    }
  }
}

template <int R>
static PS_INLINE void int8_tile_of(int rows, const int16_t* a, long stride, const int8_t* w,
                                   int pairs, Prefetch prefetch, float* to, bool add) {
  if constexpr (R > 0) {
    if (rows == R) {
      int8_tile<R>(a, stride, w, pairs, prefetch, to, add);
    } else {
      int8_tile_of<R - 1>(rows, a, stride, w, pairs, prefetch, to, add);
    }
  }
}

// to [rows, 16] = a [rows, inputs] * one panel; `inputs` is a multiple of 8, `stride` of a row.
inline void int8_product(const int16_t* a, long stride, int rows, const int8_t* panel, int inputs,
                         float* to) {
  const int tiles = (rows + kTileRows - 1) / kTileRows;
  for (int from = 0; from < inputs; from += kExactInputs) {
    const int count = inputs - from < kExactInputs ? inputs - from : kExactInputs;
    const int8_t* w = panel + long(from) * kGroup;
    const long step = 2 * kGroup / tiles;
    for (int i = 0, first = 0; i < tiles; i++) {
      const int height = (rows - first + tiles - i - 1) / (tiles - i);
      const char* next = reinterpret_cast<const char*>(panel) + long(inputs + from) * kGroup;
      Prefetch prefetch{next + i * (count / 2) * step, step};
      if (tiles == 1) prefetch = {reinterpret_cast<const char*>(w) + kPrefetchBytes, 2 * kGroup};
      int8_tile_of<kTileRows>(height, a + first * stride + from, stride, w, count / 2, prefetch,
                          to + long(first) * kGroup, from > 0);
      first += height;
    }
  }
}

// Quantize x [count] to integers up to kQuantizedMax, with zeros up to `stride`; returns the scale.
inline float quantize_row(const float* x, int count, int stride, int16_t* to) {
  Floats most = {};
  int i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    const Floats v = load<Floats>(x + i);
    most = larger(most, larger(v, -v));
  }
  float top = largest(most);
  for (; i < count; i++) top = std::fmax(top, std::fabs(x[i]));
  const float scale = top > 0 ? top / kQuantizedMax : 1.0f, inverse = 1.0f / scale;
  for (i = 0; i < count; i++) to[i] = int16_t(x[i] * inverse + (x[i] < 0 ? -0.5f : 0.5f));
  for (; i < stride; i++) to[i] = 0;
  return scale;
}

}  // namespace ps
