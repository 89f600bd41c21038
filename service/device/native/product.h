// The one kernel under every product: a few rows of floats times one group of 16 columns.
//
// It keeps rows x 16 sums in registers and walks the inputs: a group of stored numbers is loaded
// and widened, one float of each row is spread over a vector, two multiply-adds a row. With six
// rows that is bound by the multiply-adds alone. With one or two it is bound by memory; sums of
// neighbouring inputs are then kept apart so that adds need not wait for each other.

#pragma once

#include <type_traits>

#include "simd.h"

#define PS_INLINE inline __attribute__((always_inline))

namespace ps {

constexpr int kRows = kWidth == 16 ? 12 : 6;  // most rows of a tile
constexpr int kAheadBytes = 2048;

// What to ask memory for while a tile is computed: `step` bytes for each input.
struct Ahead {
  const char* from;
  long step;
};

template <class F, int R>
static PS_INLINE void walk(const float* a, long stride, const typename F::Number* w, int count,
                           Ahead ahead, Floats (&sums)[R][kParts]) {
  for (int k = 0; k < count; k++) {
    __builtin_prefetch(ahead.from + k * ahead.step, 0, 2);
    Floats group[kParts];
    F::load16(w + long(k) * kGroup, group);
    PS_UNROLL for (int r = 0; r < R; r++) {
      Floats x = splat(a[r * stride + k]);
      PS_UNROLL for (int part = 0; part < kParts; part++) sums[r][part] += x * group[part];
    }
  }
}

// The same with the sums of `U` neighbouring inputs apart. One row is one long read, which the
// machine's own prefetching follows better without ours.
template <class F, int R, int U>
static PS_INLINE void walk_apart(const float* a, long stride, const typename F::Number* w,
                                 int count, Floats (&sums)[R][kParts]) {
  Floats apart[U][R][kParts] = {};
  const int whole = count / U * U;
  for (int k = 0; k < whole; k += U) {
    if constexpr (R > 1)
      __builtin_prefetch(reinterpret_cast<const char*>(w + long(k) * kGroup) + kAheadBytes, 0, 3);
    PS_UNROLL for (int u = 0; u < U; u++) {
      Floats group[kParts];
      F::load16(w + long(k + u) * kGroup, group);
      PS_UNROLL for (int r = 0; r < R; r++) {
        Floats x = splat(a[r * stride + k + u]);
        PS_UNROLL for (int part = 0; part < kParts; part++) apart[u][r][part] += x * group[part];
      }
    }
  }
  PS_UNROLL for (int u = 0; u < U; u++) {
    PS_UNROLL for (int r = 0; r < R; r++) {
      PS_UNROLL for (int part = 0; part < kParts; part++) sums[r][part] += apart[u][r][part];
    }
  }
  const auto* rest = w + long(whole) * kGroup;
  walk<F, R>(a + whole, stride, rest, count - whole, {reinterpret_cast<const char*>(rest), 0}, sums);
}

template <class F, int R>
static PS_INLINE void tile(const float* a, long stride, const typename F::Number* w, int count,
                           Ahead ahead, float* to, long to_stride, bool add) {
  Floats sums[R][kParts] = {};
  if (add) {
    PS_UNROLL for (int r = 0; r < R; r++) {
      PS_UNROLL for (int part = 0; part < kParts; part++)
        sums[r][part] = load<Floats>(to + r * to_stride + part * kWidth);
    }
  }
  if constexpr (R == 1) {
    walk_apart<F, R, 4>(a, stride, w, count, sums);
  } else if constexpr (R == 2) {
    walk_apart<F, R, 2>(a, stride, w, count, sums);
  } else {
    walk<F, R>(a, stride, w, count, ahead, sums);
  }
  PS_UNROLL for (int r = 0; r < R; r++) {
    PS_UNROLL for (int part = 0; part < kParts; part++)
      store(to + r * to_stride + part * kWidth, sums[r][part]);
  }
}

template <class F, int R>
static PS_INLINE void tile_of(int rows, const float* a, long stride, const typename F::Number* w,
                              int count, Ahead ahead, float* to, long to_stride, bool add) {
  if constexpr (R > 0) {
    if (rows == R) {
      tile<F, R>(a, stride, w, count, ahead, to, to_stride, add);
    } else {
      tile_of<F, R - 1>(rows, a, stride, w, count, ahead, to, to_stride, add);
    }
  }
}

// While a panel is worked on, the one that follows it in memory is asked for, a share with each
// tile: else the first tile of each panel would wait for memory and the others leave it idle.
// to [rows, 16] = (add ? to : 0) + a [rows, count] * w [count, 16]; strides in floats.
template <class F>
void product(const float* a, long stride, int rows, const void* w, int count, float* to,
             long to_stride, bool add) {
  const auto* group = static_cast<const typename F::Number*>(w);
  const int tiles = (rows + kRows - 1) / kRows;
  const long group_bytes = kGroup * sizeof(typename F::Number);
  const long step = group_bytes / tiles;
  for (int i = 0, first = 0; i < tiles; i++) {
    const int height = (rows - first + tiles - i - 1) / (tiles - i);  // nearly equal heights
    const Ahead ahead{static_cast<const char*>(w) + count * (group_bytes + i * step), step};
    tile_of<F, kRows>(height, a + first * stride, stride, group, count, ahead,
                      to + first * to_stride, to_stride, add);
    first += height;
  }
}

typedef void (*Product)(const float*, long, int, const void*, int, float*, long, bool);

enum class Kind : int { kFloat32 = 0, kBfloat16 = 1, kInt8 = 2 };

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
