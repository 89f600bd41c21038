// The one norm of all families.

#pragma once

#include "simd.h"

namespace ps {

// from [count] divided by its root mean square, times weight; `to` may be `from`.
static inline void rms_norm(const float* from, const float* weight, int count, float eps, float* to) {
  Floats squares = {};
  int i = 0;
  for (; i + kWidth <= count; i += kWidth) {
    Floats x = load<Floats>(from + i);
    squares += x * x;
  }
  float total = sum(squares);
  for (; i < count; i++) total += from[i] * from[i];
  const float inverse = 1.0f / std::sqrt(total / float(count) + eps);
  for (i = 0; i < count; i++) to[i] = from[i] * inverse * weight[i];
}

}  // namespace ps
