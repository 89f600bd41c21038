// Weights that files hold in blocks, kept in them: 16 outputs side by side, 4 to 8.5 bits a weight.
//
// A block is some inputs of a panel: scales of its 16 outputs, then the weights. GGUF's formats keep
// the bits that they have in the file (block structs of ggml-common.h), reordered so that 16 outputs
// are one vector; GPTQ's, AWQ's and compressed-tensors' 4 bits are one format, `Int4`.
//
// Rows are integers of 14 bits, as for int8 weights (int8_product.h): the idea of llama.cpp, whose
// activations have 8 bits a block. Sums of a block are exact; they meet the block's scale as floats.
//
//   bytes    weight of input k and output o of a block: byte k/2 * 32 + 2 o + k%2
//   nibbles  byte k/4 * 32 + 2 o + k%2, its upper half where k%4 >= 2
//   pairs    two bits of byte k/8 * 32 + 2 o + k%2, from bit k%8/2 * 2 on

#pragma once

#include "narrow.h"

namespace ps {

constexpr int kSumInputs = 16;  // sums of a row's integers are kept for so many inputs

static inline int sums_stride(int inputs) { return inputs / kSumInputs; }

// Sums of each kSumInputs integers of a row; inputs beyond the last whole ones have none.
static inline void sum_row(const int16_t* row, int count, int32_t* to) {
  for (int i = 0; i < sums_stride(count); i++) {
    to[i] = 0;
    for (int k = 0; k < kSumInputs; k++) to[i] += row[i * kSumInputs + k];
  }
}

static inline long byte_place(int k, int output) {
  return long(k / 2) * 2 * kGroup + 2 * output + k % 2;
}
static inline long nibble_place(int k, int output) {
  return long(k / 4) * 2 * kGroup + 2 * output + k % 2;
}
static inline int nibble_shift(int k) { return k % 4 >= 2 ? 4 : 0; }
static inline long pair_place(int k, int output) {
  return long(k / 8) * 2 * kGroup + 2 * output + k % 2;
}
static inline int pair_shift(int k) { return k % 8 / 2 * 2; }

// A tile's rows, from a block's first input on.
struct BlockRows {
  const int16_t* quantized;
  long stride;
  const int32_t* sums;  // of kSumInputs integers each
  long sums_stride;

  int sum(int row, int inputs) const {
    int total = 0;
    for (int i = 0; i < inputs / kSumInputs; i++) total += sums[row * sums_stride + i];
    return total;
  }
};

template <int R>
using Sums = Ints[R][kGroupVectors];
template <int R>
using Totals = Floats[R][kGroupVectors];

// sums += rows' inputs [at, at + inputs) times weights in nibbles.
template <int R>
static PS_INLINE void add_nibbles(const uint8_t* w, const BlockRows& rows, int at, int inputs,
                                  Sums<R>& sums) {
  for (int k = 0; k < inputs; k += 4, w += 2 * kGroup) {
    Shorts both[kGroupVectors];
    PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++)
      both[vec] = widen_unsigned(w + vec * kWidth * 2);
    PS_UNROLL for (int half = 0; half < 2; half++) {
      PS_UNROLL for (int r = 0; r < R; r++) {
        const Ints x = pair_of(rows.quantized + r * rows.stride + at + k + 2 * half);
        PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++)
          sums[r][vec] = add_pairs(sums[r][vec], x, half ? both[vec] >> 4 : both[vec] & 15);
      }
    }
  }
}

// GGUF's Q8_0: 32 inputs, scales float16 [16], bytes.
struct Q8Blocks {
  static constexpr int inputs = 32;
  static constexpr size_t raw_bytes = 34, weights_at = 2 * kGroup;
  static constexpr size_t bytes = weights_at + inputs * kGroup;

  static void pack(const uint8_t* raw, int output, uint8_t* to) {
    std::memcpy(to + 2 * output, raw, 2);
    for (int k = 0; k < inputs; k++) to[weights_at + byte_place(k, output)] = raw[2 + k];
  }

  static float value(const uint8_t* block, int output, int k) {
    return half_at(block + 2 * output) * int8_t(block[weights_at + byte_place(k, output)]);
  }

  template <int R>
  static PS_INLINE void add(const uint8_t* block, const BlockRows& rows, Totals<R>& totals) {
    Sums<R> sums = {};
    const auto* w = reinterpret_cast<const int8_t*>(block + weights_at);
    for (int k = 0; k < inputs; k += 2, w += 2 * kGroup) {
      Shorts group[kGroupVectors];
      PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++)
        group[vec] = widen(w + vec * kWidth * 2);
      PS_UNROLL for (int r = 0; r < R; r++) {
        const Ints x = pair_of(rows.quantized + r * rows.stride + k);
        PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++)
          sums[r][vec] = add_pairs(sums[r][vec], x, group[vec]);
      }
    }
    PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++) {
      const Floats scale = load_halves(block + vec * kWidth * 2);
      PS_UNROLL for (int r = 0; r < R; r++)
        totals[r][vec] += __builtin_convertvector(sums[r][vec], Floats) * scale;
    }
  }
};

// GGUF's Q4_K: 256 inputs in 8 parts. Scales and minima of all float16 [16] each, of a part
// uint8 [8][16] each, then nibbles. weight = scale * part's scale * nibble - minimum * part's.
struct Q4Blocks {
  static constexpr int inputs = 256, part = 32, parts = 8;
  static constexpr size_t raw_bytes = 144, minima_at = 2 * kGroup, scales_at = 4 * kGroup;
  static constexpr size_t part_minima_at = scales_at + parts * kGroup;
  static constexpr size_t weights_at = part_minima_at + parts * kGroup;
  static constexpr size_t bytes = weights_at + inputs * kGroup / 2;

  static void pack(const uint8_t* raw, int output, uint8_t* to) {
    std::memcpy(to + 2 * output, raw, 2);
    std::memcpy(to + minima_at + 2 * output, raw + 2, 2);
    const uint8_t *six = raw + 4, *nibbles = raw + 16;
    for (int j = 0; j < parts; j++) {  // 6 bits each, the last four parts' upper two set apart
      const bool low = j < 4;
      const int scale = low ? six[j] & 63 : (six[j + 4] & 15) | (six[j - 4] >> 6) << 4;
      const int minimum = low ? six[j + 4] & 63 : (six[j + 4] >> 4) | (six[j] >> 6) << 4;
      to[scales_at + j * kGroup + output] = uint8_t(scale);
      to[part_minima_at + j * kGroup + output] = uint8_t(minimum);
    }
    for (int k = 0; k < inputs; k++) {
      const int byte = nibbles[k / 64 * 32 + k % 32];
      const int nibble = k % 64 < 32 ? byte & 15 : byte >> 4;
      to[weights_at + nibble_place(k, output)] |= uint8_t(nibble << nibble_shift(k));
    }
  }

  static float value(const uint8_t* block, int output, int k) {
    const int at = k / part * kGroup + output;
    const int nibble = block[weights_at + nibble_place(k, output)] >> nibble_shift(k) & 15;
    return half_at(block + 2 * output) * block[scales_at + at] * nibble -
           half_at(block + minima_at + 2 * output) * block[part_minima_at + at];
  }

  template <int R>
  static PS_INLINE void add(const uint8_t* block, const BlockRows& rows, Totals<R>& totals) {
    Floats scales[kGroupVectors], minima[kGroupVectors];
    PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++) {
      scales[vec] = load_halves(block + vec * kWidth * 2);
      minima[vec] = load_halves(block + minima_at + vec * kWidth * 2);
    }
    for (int j = 0; j < parts; j++) {
      Sums<R> sums = {};
      add_nibbles<R>(block + weights_at + j * part * kGroup / 2, rows, j * part, part, sums);
      float row_sums[R];
      PS_UNROLL for (int r = 0; r < R; r++) {
        const int32_t* two = rows.sums + r * rows.sums_stride + 2 * j;
        row_sums[r] = float(two[0] + two[1]);
      }
      PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++) {
        const uint8_t* of_part = block + scales_at + j * kGroup + vec * kWidth;
        const Floats scale = __builtin_convertvector(load_octets(of_part), Floats) * scales[vec];
        const Ints part_minimum = load_octets(of_part + parts * kGroup);
        const Floats minimum = __builtin_convertvector(part_minimum, Floats) * minima[vec];
        PS_UNROLL for (int r = 0; r < R; r++)
          totals[r][vec] += __builtin_convertvector(sums[r][vec], Floats) * scale -
                            minimum * row_sums[r];
      }
    }
  }
};

// GGUF's Q6_K: 256 inputs in 16 parts. Scales float16 [16], of a part int8 [16][16], then of each
// part nibbles and pairs of bits: weight = scale * part's scale * (nibble + 16 * pair - 32).
struct Q6Blocks {
  static constexpr int inputs = 256, part = 16, parts = 16, middle = 32;
  static constexpr size_t raw_bytes = 210, scales_at = 2 * kGroup;
  static constexpr size_t weights_at = scales_at + parts * kGroup;
  static constexpr size_t pairs_at = part * kGroup / 2, part_bytes = pairs_at + part * kGroup / 4;
  static constexpr size_t bytes = weights_at + parts * part_bytes;

  static void pack(const uint8_t* raw, int output, uint8_t* to) {
    const uint8_t *nibbles = raw, *pairs = raw + 128, *scales = raw + 192;
    std::memcpy(to + 2 * output, raw + 208, 2);
    for (int j = 0; j < parts; j++) to[scales_at + j * kGroup + output] = scales[j];
    for (int k = 0; k < inputs; k++) {
      const int half = k / 128, quarter = k % 128 / 32, within = k % 32;
      const int byte = nibbles[half * 64 + quarter % 2 * 32 + within];
      const int nibble = quarter < 2 ? byte & 15 : byte >> 4;
      const int pair = pairs[half * 32 + within] >> (2 * quarter) & 3;
      uint8_t* of_part = to + weights_at + k / part * part_bytes;
      const int at = k % part;
      of_part[nibble_place(at, output)] |= uint8_t(nibble << nibble_shift(at));
      of_part[pairs_at + pair_place(at, output)] |= uint8_t(pair << pair_shift(at));
    }
  }

  static float value(const uint8_t* block, int output, int k) {
    const uint8_t* of_part = block + weights_at + k / part * part_bytes;
    const int at = k % part;
    const int nibble = of_part[nibble_place(at, output)] >> nibble_shift(at) & 15;
    const int pair = of_part[pairs_at + pair_place(at, output)] >> pair_shift(at) & 3;
    const int scale = int8_t(block[scales_at + k / part * kGroup + output]);
    return half_at(block + 2 * output) * scale * (nibble + 16 * pair - middle);
  }

  template <int R>
  static PS_INLINE void add(const uint8_t* block, const BlockRows& rows, Totals<R>& totals) {
    Floats scales[kGroupVectors];
    PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++)
      scales[vec] = load_halves(block + vec * kWidth * 2);
    for (int j = 0; j < parts; j++) {
      Sums<R> sums = {};
      const uint8_t* of_part = block + weights_at + j * part_bytes;
      PS_UNROLL for (int eight = 0; eight < 2; eight++)
        add_eight<R>(of_part + eight * 4 * kGroup, of_part + pairs_at + eight * 2 * kGroup, rows,
                     j * part + eight * 8, sums);
      PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++) {
        const uint8_t* from = block + scales_at + j * kGroup + vec * kWidth;
        const Ints part_scale = __builtin_convertvector(load<Bytes>(from), Ints);
        const Floats scale = __builtin_convertvector(part_scale, Floats) * scales[vec];
        PS_UNROLL for (int r = 0; r < R; r++) {
          const int shift = middle * rows.sums[r * rows.sums_stride + j];
          totals[r][vec] += __builtin_convertvector(sums[r][vec] - shift, Floats) * scale;
        }
      }
    }
  }

 private:
  // Eight inputs: 64 bytes of nibbles, 32 of pairs.
  template <int R>
  static PS_INLINE void add_eight(const uint8_t* nibbles, const uint8_t* pairs,
                                  const BlockRows& rows, int at, Sums<R>& sums) {
    PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++) {
      const Shorts low = widen_unsigned(nibbles + vec * kWidth * 2);
      const Shorts high = widen_unsigned(nibbles + 2 * kGroup + vec * kWidth * 2);
      const Shorts upper = widen_unsigned(pairs + vec * kWidth * 2);
      const Shorts weights[4] = {(low & 15) | (upper & 3) << 4, low >> 4 | (upper & 12) << 2,
                                 (high & 15) | (upper & 48), high >> 4 | (upper >> 2 & 48)};
      PS_UNROLL for (int two = 0; two < 4; two++) {
        PS_UNROLL for (int r = 0; r < R; r++) {
          const Ints x = pair_of(rows.quantized + r * rows.stride + at + 2 * two);
          sums[r][vec] = add_pairs(sums[r][vec], x, weights[two]);
        }
      }
    }
  }
};

// 4 bits of GPTQ, AWQ and compressed-tensors: `inputs` is the group's. Scales [16] as float16, or
// as float32 where one of them is none; zero points uint8 [16]; nibbles.
// weight = scale * (nibble - zero point).
template <bool kWide>
struct Int4Blocks {
  static constexpr size_t zeros_at = kGroup * (kWide ? 4 : 2), weights_at = zeros_at + kGroup;
  int inputs;
  size_t bytes;

  explicit Int4Blocks(int group) : inputs(group), bytes(weights_at + group * kGroup / 2) {}

  // `nibbles` are of one output: input k in byte k / 2, its upper half where k is odd.
  void pack(const uint8_t* nibbles, float scale, uint16_t half, uint8_t zero, int output,
            uint8_t* to) const {
    if (kWide) {
      std::memcpy(to + 4 * output, &scale, 4);
    } else {
      std::memcpy(to + 2 * output, &half, 2);
    }
    to[zeros_at + output] = zero;
    for (int k = 0; k < inputs; k++) {
      const int nibble = nibbles[k / 2] >> (k % 2 * 4) & 15;
      to[weights_at + nibble_place(k, output)] |= uint8_t(nibble << nibble_shift(k));
    }
  }

  float value(const uint8_t* block, int output, int k) const {
    const int nibble = block[weights_at + nibble_place(k, output)] >> nibble_shift(k) & 15;
    float scale;
    if (kWide) {
      std::memcpy(&scale, block + 4 * output, 4);
    } else {
      scale = half_at(block + 2 * output);
    }
    return scale * float(nibble - block[zeros_at + output]);
  }

  template <int R>
  PS_INLINE void add(const uint8_t* block, const BlockRows& rows, Totals<R>& totals) const {
    for (int from = 0; from < inputs; from += kExactInputs) {  // beyond, 32 bits overflow
      const int count = inputs - from < kExactInputs ? inputs - from : kExactInputs;
      Sums<R> sums = {};
      add_nibbles<R>(block + weights_at + from * kGroup / 2, rows, from, count, sums);
      int row_sums[R];
      const BlockRows here{nullptr, 0, rows.sums + from / kSumInputs, rows.sums_stride};
      PS_UNROLL for (int r = 0; r < R; r++) row_sums[r] = here.sum(r, count);
      PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++) {
        const Floats scale = kWide ? load<Floats>(block + vec * kWidth * 4)
                                   : load_halves(block + vec * kWidth * 2);
        const Ints zero = load_octets(block + zeros_at + vec * kWidth);
        PS_UNROLL for (int r = 0; r < R; r++) {
          const Ints centred = sums[r][vec] - zero * row_sums[r];
          totals[r][vec] += __builtin_convertvector(centred, Floats) * scale;
        }
      }
    }
  }
};

}  // namespace ps
