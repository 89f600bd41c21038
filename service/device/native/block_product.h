// Rows of integers times one panel of weights in blocks, and rows of floats times one of fp8.

#pragma once

#include "blocks.h"

namespace ps {

// Rows to multiply: floats, and where weights are integers also quantized, with a scale for each
// row and the sums of each kSumInputs.
struct Rows {
  const float* floats;
  long stride;
  const int16_t* quantized;
  long quantized_stride;
  const float* scales;
  const int32_t* sums;
  long sums_stride;
};

template <class F, int R>
static PS_INLINE void block_tile(const F& format, BlockRows rows, const uint8_t* panel, int inputs,
                                 float* to) {
  Totals<R> totals = {};
  for (int at = 0; at < inputs; at += format.inputs) {
    format.template add<R>(panel, rows, totals);
    panel += format.bytes;
    rows.quantized += format.inputs;
    rows.sums += format.inputs / kSumInputs;
  }
  PS_UNROLL for (int r = 0; r < R; r++) {
    PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++)
      store(to + r * kGroup + vec * kWidth, totals[r][vec]);
  }
}

template <class F, int R>
static PS_INLINE void block_tile_of(int height, const F& format, const BlockRows& rows,
                                    const uint8_t* panel, int inputs, float* to) {
  if constexpr (R > 0) {
    if (height == R) {
      block_tile<F, R>(format, rows, panel, inputs, to);
    } else {
      block_tile_of<F, R - 1>(height, format, rows, panel, inputs, to);
    }
  }
}

// to [count, 16] = rows [first, first + count) times one panel, before the rows' own scales.
template <class F>
void block_product(const F& format, const Rows& rows, int first, int count, const uint8_t* panel,
                   int inputs, float* to) {
  const int tiles = (count + kTileRows - 1) / kTileRows;
  for (int i = 0, done = 0; i < tiles; i++) {
    const int height = (count - done + tiles - i - 1) / (tiles - i);  // nearly equal heights
    const int row = first + done;
    const BlockRows of_tile{rows.quantized + row * rows.quantized_stride, rows.quantized_stride,
                            rows.sums + row * rows.sums_stride, rows.sums_stride};
    block_tile_of<F, kTileRows>(height, format, of_tile, panel, inputs, to + long(done) * kGroup);
    done += height;
  }
}

// Fp8 in blocks of `group` inputs, the last perhaps shorter: scales float32 [16], then [input][16].
constexpr size_t kFp8ScaleBytes = kGroup * 4;

static inline size_t fp8_panel_bytes(int inputs, int group) {
  return (inputs + group - 1) / group * kFp8ScaleBytes + size_t(inputs) * kGroup;
}

constexpr int kRowBlock = 48;  // rows of a block: with one panel they stay in the L2 cache
constexpr int kMostBlockRows = kRowBlock + kTileRows;

inline void fp8_product(const Rows& rows, int first, int count, const uint8_t* panel, int inputs,
                        int group, float* to) {
  float of_block[kMostBlockRows * kGroup];
  for (int at = 0; at < inputs; at += group) {
    const int width = inputs - at < group ? inputs - at : group;
    const uint8_t* weights = panel + kFp8ScaleBytes;
    product<Fp8>(rows.floats + first * rows.stride + at, rows.stride, count, weights, width,
                 of_block, kGroup, false);
    for (int vec = 0; vec < kGroupVectors; vec++) {
      const Floats scale = load<Floats>(panel + vec * kWidth * 4);
      for (int r = 0; r < count; r++) {
        float* total = to + r * kGroup + vec * kWidth;
        const Floats found = load<Floats>(of_block + r * kGroup + vec * kWidth) * scale;
        store(total, at > 0 ? load<Floats>(total) + found : found);
      }
    }
    panel = weights + width * kGroup;
  }
}

}  // namespace ps
