// Vectors of float, and how 16 stored numbers become vectors.
//
// Everything is written with GCC's vector extensions, so one source serves AVX2, AVX-512 and
// NEON; the width follows from the compiler's flags. The unit of storage
// is a group of 16 numbers: 16 outputs of a weight, 16 tokens of a key page, 16 places of a
// value page.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
#define PS_VECTOR_BYTES 64
#elif defined(__AVX__)
#define PS_VECTOR_BYTES 32
#else
#define PS_VECTOR_BYTES 16
#endif

#define PS_UNROLL _Pragma("GCC unroll 16")

namespace ps {

typedef float Floats __attribute__((vector_size(PS_VECTOR_BYTES)));
typedef int32_t Ints __attribute__((vector_size(PS_VECTOR_BYTES)));
typedef uint32_t Words __attribute__((vector_size(PS_VECTOR_BYTES)));
typedef uint16_t Halves __attribute__((vector_size(PS_VECTOR_BYTES / 2)));
typedef int8_t Bytes __attribute__((vector_size(PS_VECTOR_BYTES / 4)));

constexpr int kWidth = PS_VECTOR_BYTES / 4;  // floats in a vector
constexpr int kGroup = 16;                   // numbers in a group
constexpr int kGroupVectors = kGroup / kWidth;  // vectors in a group

template <class V>
static inline V load(const void* from) {
  V value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class V>
static inline void store(void* to, V value) {
  std::memcpy(to, &value, sizeof value);
}

static inline Floats splat(float value) { return value - Floats{}; }

static inline float sum(Floats v) {
  float total = 0;
  for (int i = 0; i < kWidth; i++) total += v[i];
  return total;
}

static inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

static inline float largest(Floats v) {
  float most = v[0];
  for (int i = 1; i < kWidth; i++) most = v[i] > most ? v[i] : most;
  return most;
}

// e^x to 2 units in the last place (Cephes' polynomial); 0 and not a denormal far below.
static inline Floats exponential(Floats x) {
  const Floats low = splat(-87.0f), high = splat(88.0f), magic = splat(12582912.0f);
  Ints vanishes = x < low;
  x = x < low ? low : x;
  x = x > high ? high : x;
  Floats n = (x * 1.44269504f + magic) - magic;
  Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;
  Floats p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  Ints power = (__builtin_convertvector(n, Ints) + 127) << 23;
  Floats scaled = p * load<Floats>(&power);
  Ints kept = load<Ints>(&scaled) & ~vanishes;
  return load<Floats>(&kept);
}

static inline uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return uint16_t(bits >> 16 | 0x40);  // not a number
  return uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

// Formats of stored numbers: `encode` gives the stored form of a float, `load16` the vectors of a
// group, `place` the index of number `i` in the memory of its group.

struct Float32 {
  typedef float Number;
  static constexpr bool scaled = false;
  static int place(int i) { return i; }
  static Number encode(float value, float) { return value; }
  static inline void load16(const Number* from, Floats* to) {
    PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++)
      to[vec] = load<Floats>(from + vec * kWidth);
  }
};

// A bf16 is the upper half of a float32. Two numbers `kWidth` apart share a word, so that a shift
// and a mask give two vectors without a shuffle; with 16 numbers in a vector there are no pairs.
struct Bfloat16 {
  typedef uint16_t Number;
  static constexpr bool scaled = false;
  static int place(int i) {
    if (kGroupVectors == 1) return i;
    int pair = i / (2 * kWidth), within = i % (2 * kWidth);
    return pair * 2 * kWidth + (within % kWidth) * 2 + within / kWidth;
  }
  static Number encode(float value, float) { return to_bf16(value); }
  static inline void load16(const Number* from, Floats* to) {
    if constexpr (kGroupVectors == 1) {
      Words wide = __builtin_convertvector(load<Halves>(from), Words) << 16;
      to[0] = load<Floats>(&wide);
    } else {
      PS_UNROLL for (int pair = 0; pair < kGroupVectors / 2; pair++) {
        Words words = load<Words>(from + pair * 2 * kWidth);
        Words low = words << 16, high = words & 0xffff0000u;
        to[2 * pair] = load<Floats>(&low);
        to[2 * pair + 1] = load<Floats>(&high);
      }
    }
  }
};

struct Int8 {
  typedef int8_t Number;
  static constexpr bool scaled = true;
  static int place(int i) { return i; }
  static Number encode(float value, float inverse) {
    return Number(std::lrintf(value * inverse));
  }
  static inline void load16(const Number* from, Floats* to) {
    PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++) {
      Ints wide = __builtin_convertvector(load<Bytes>(from + vec * kWidth), Ints);
      to[vec] = __builtin_convertvector(wide, Floats);
    }
  }
};

}  // namespace ps
