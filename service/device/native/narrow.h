// Numbers of 16 and 8 bits as vectors: float16 scales, unsigned bytes, fp8 (e4m3) weights.

#pragma once

#include "int8_product.h"

namespace ps {

static inline float half_to_float(uint16_t half) {
  const uint32_t sign = uint32_t(half & 0x8000u) << 16, rest = half & 0x7fffu;
  float value;
  if (rest >= 0x7c00u) {  // infinite, or not a number
    const uint32_t bits = sign | 0x7f800000u | (rest & 0x3ffu) << 13;
    std::memcpy(&value, &bits, 4);
    return value;
  }
  const uint32_t bits = rest << 13;  // the exponent is 112 too small, also of denormals
  std::memcpy(&value, &bits, 4);
  value *= 5.192296858534828e33f;  // 2^112
  return sign ? -value : value;
}

static inline float half_at(const uint8_t* from) {
  uint16_t half;
  std::memcpy(&half, from, 2);
  return half_to_float(half);
}

// A vector of halves as floats.
static PS_INLINE Floats load_halves(const uint8_t* from) {
#if defined(__AVX512F__) && PS_VECTOR_BYTES == 64
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__F16C__) && PS_VECTOR_BYTES == 32
  return (Floats)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  Floats values;
  for (int i = 0; i < kWidth; i++) values[i] = half_at(from + 2 * i);
  return values;
#endif
}

typedef uint8_t Octets __attribute__((vector_size(PS_VECTOR_BYTES / 4)));

static PS_INLINE Ints load_octets(const uint8_t* from) {
  return __builtin_convertvector(load<Octets>(from), Ints);
}

static PS_INLINE Shorts widen_unsigned(const uint8_t* from) {
#if defined(__AVX512BW__) && PS_VECTOR_BYTES == 64
  return (Shorts)_mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__AVX2__) && PS_VECTOR_BYTES == 32
  return (Shorts)_mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  typedef uint8_t Half __attribute__((vector_size(PS_VECTOR_BYTES / 2)));
  return __builtin_convertvector(load<Half>(from), Shorts);
#endif
}

// An e4m3 is a float16 without its upper exponent bits, 2^8 too small: kFp8Unit puts that right.
struct Fp8 {
  typedef uint8_t Number;
  static constexpr bool scaled = true;
  static inline void load16(const Number* from, Floats* to) {
    PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++) {
      const Halves wide = __builtin_convertvector(load<Octets>(from + vec * kWidth), Halves);
      const Halves halves = (wide & 0x80) << 8 | (wide & 0x7f) << 7;
      to[vec] = load_halves(reinterpret_cast<const uint8_t*>(&halves));
    }
  }
};

constexpr float kFp8Unit = 256.0f;

static inline float fp8_to_float(uint8_t code) {
  return half_to_float(uint16_t((code & 0x80) << 8 | (code & 0x7f) << 7)) * kFp8Unit;
}

}  // namespace ps
