// The one kernel under every product: a few rows of floats times one group of 16 columns.
//
// It keeps rows x 16 sums in registers. For each input a group of stored numbers is loaded and
// widened, and multiplied with one float of each row, with two multiply-adds a row. With six rows
// the multiply-adds are the limit. With one or two it is memory; sums of neighbouring inputs are
// then kept separate, so that no add waits for the one before it.

#pragma once

#include <type_traits>

#include "simd.h"

#define PS_INLINE inline __attribute__((always_inline))

namespace ps {

constexpr int kTileRows = kWidth == 16 ? 12 : 6;  // most rows of a tile
constexpr int kPrefetchBytes = 2048;

// What to prefetch while a tile is computed: `step` bytes for each input.
struct Prefetch {
  const char* from;
  long step;
};

template <class F, int R>
static PS_INLINE void accumulate(const float* a, long stride, const typename F::Number* w,
                                 int count, Prefetch prefetch, Floats (&sums)[R][kGroupVectors]) {
  for (int k = 0; k < count; k++) {
    __builtin_prefetch(prefetch.from + k * prefetch.step, 0, 2);
    Floats group[kGroupVectors];
    F::load16(w + long(k) * kGroup, group);
    PS_UNROLL for (int r = 0; r < R; r++) {
      Floats x = splat(a[r * stride + k]);
      PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++) sums[r][vec] += x * group[vec];
    }
  }
}

// The same with separate sums of `U` neighbouring inputs. One row is one long read, which the
// hardware prefetches better by itself.
template <class F, int R, int U>
static PS_INLINE void accumulate_separate(const float* a, long stride, const typename F::Number* w,
                                          int count, Floats (&sums)[R][kGroupVectors]) {
  Floats separate[U][R][kGroupVectors] = {};
  const int whole = count / U * U;
  for (int k = 0; k < whole; k += U) {
    if constexpr (R > 1)
      __builtin_prefetch(reinterpret_cast<const char*>(w + long(k) * kGroup) + kPrefetchBytes, 0,
                         3);
    PS_UNROLL for (int u = 0; u < U; u++) {
      Floats group[kGroupVectors];
      F::load16(w + long(k + u) * kGroup, group);
      PS_UNROLL for (int r = 0; r < R; r++) {
        Floats x = splat(a[r * stride + k + u]);
        PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++)
          separate[u][r][vec] += x * group[vec];
      }
    }
  }
  PS_UNROLL for (int u = 0; u < U; u++) {
    PS_UNROLL for (int r = 0; r < R; r++) {
      PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++) sums[r][vec] += separate[u][r][vec];
    }
  }
  const auto* rest = w + long(whole) * kGroup;
  const Prefetch none{reinterpret_cast<const char*>(rest), 0};
  accumulate<F, R>(a + whole, stride, rest, count - whole, none, sums);
}

template <class F, int R>
static PS_INLINE void tile(const float* a, long stride, const typename F::Number* w, int count,
                           Prefetch prefetch, float* to, long to_stride, bool add) {
  Floats sums[R][kGroupVectors] = {};
  if (add) {
    PS_UNROLL for (int r = 0; r < R; r++) {
      PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++)
        sums[r][vec] = load<Floats>(to + r * to_stride + vec * kWidth);
    }
  }
  if constexpr (R == 1) {
    accumulate_separate<F, R, 4>(a, stride, w, count, sums);
  } else if constexpr (R == 2) {
    accumulate_separate<F, R, 2>(a, stride, w, count, sums);
  } else {
    accumulate<F, R>(a, stride, w, count, prefetch, sums);
  }
  PS_UNROLL for (int r = 0; r < R; r++) {
    PS_UNROLL for (int vec = 0; vec < kGroupVectors; vec++)
      store(to + r * to_stride + vec * kWidth, sums[r][vec]);
  }
}

template <class F, int R>
static PS_INLINE void tile_of(int rows, const float* a, long stride, const typename F::Number* w,
                              int count, Prefetch prefetch, float* to, long to_stride, bool add) {
  if constexpr (R > 0) {
    if (rows == R) {
      tile<F, R>(a, stride, w, count, prefetch, to, to_stride, add);
    } else {
      tile_of<F, R - 1>(rows, a, stride, w, count, prefetch, to, to_stride, add);
    }
  }
}

// While a panel is computed, the next one in memory is prefetched, a part of it with each tile:
// otherwise the first tile of each panel would wait for memory, which the others leave idle.
// to [rows, 16] = (add ? to : 0) + a [rows, count] * w [count, 16]; strides in floats.
template <class F>
void product(const float* a, long stride, int rows, const void* w, int count, float* to,
             long to_stride, bool add) {
  const auto* group = static_cast<const typename F::Number*>(w);
  const int tiles = (rows + kTileRows - 1) / kTileRows;
  const long group_bytes = kGroup * sizeof(typename F::Number);
  const long step = group_bytes / tiles;
  for (int i = 0, first = 0; i < tiles; i++) {
    const int height = (rows - first + tiles - i - 1) / (tiles - i);  // nearly equal heights
    const Prefetch prefetch{static_cast<const char*>(w) + count * (group_bytes + i * step), step};
    tile_of<F, kTileRows>(height, a + first * stride, stride, group, count, prefetch,
                      to + first * to_stride, to_stride, add);
    first += height;
  }
}

typedef void (*Product)(const float*, long, int, const void*, int, float*, long, bool);

// How numbers are stored. Caches have the first three; the others are of weights that files hold in
// this form (blocks.h).
enum class Kind : int {
  kFloat32 = 0,
  kBfloat16 = 1,
  kInt8 = 2,
  kFp8 = 3,
  kQ8Blocks = 4,
  kQ4Blocks = 5,
  kQ6Blocks = 6,
  kInt4 = 7,
  kInt4Wide = 8,
};

static inline bool is_block(Kind kind) { return int(kind) >= int(Kind::kQ8Blocks); }

// `body` gets an empty Float32, Bfloat16 or Int8.
template <class Body>
static inline auto with_format(Kind kind, Body&& body) {
  switch (kind) {
    case Kind::kBfloat16:
      return body(Bfloat16{});
    case Kind::kInt8:
      return body(Int8{});
    default:
      return body(Float32{});
  }
}

static inline Product product_of(Kind kind) {
  return with_format(kind, [](auto format) -> Product { return &product<decltype(format)>; });
}

static inline int number_bytes(Kind kind) {
  return with_format(kind, [](auto format) { return int(sizeof(typename decltype(format)::Number)); });
}

}  // namespace ps
