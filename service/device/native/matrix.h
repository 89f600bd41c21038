// Weights in panels of 16 outputs, and who multiplies which panel.

#pragma once

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "pool.h"
#include "product.h"

namespace ps {

static inline int groups_of(int count) { return (count + kGroup - 1) / kGroup; }
static inline int padded(int count) { return groups_of(count) * kGroup; }

// Memory on a cache line, kept until the end, never zeroed in vain.
template <class T>
class Buffer {
 public:
  void resize(size_t count) {
    if (count <= count_) return;
    void* memory = std::aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64);
    if (memory == nullptr) throw std::bad_alloc();
    memory_.reset(static_cast<T*>(memory));
    count_ = count;
  }
  void zero() { std::memset(memory_.get(), 0, count_ * sizeof(T)); }
  T* data() const { return memory_.get(); }

 private:
  struct Free {
    void operator()(T* memory) const { std::free(memory); }
  };
  std::unique_ptr<T, Free> memory_;
  size_t count_ = 0;
};

// A weight [out, in] in panels. Int8 has one scale an output, symmetric.
class Matrix {
 public:
  int out = 0, in = 0;
  Kind kind = Kind::kFloat32;

  int panels() const { return groups_of(out); }
  const uint8_t* panel(int index) const { return memory_.data() + index * panel_bytes_; }

  void pack(const float* weight, const float* bias_or_null, int out_count, int in_count, Kind as) {
    out = out_count;
    in = in_count;
    kind = as;
    panel_bytes_ = size_t(in) * kGroup * number_bytes(as);
    memory_.resize(panels() * panel_bytes_);
    scales_.assign(padded(out), 1.0f);
    bias_.assign(padded(out), 0.0f);
    if (bias_or_null != nullptr) std::memcpy(bias_.data(), bias_or_null, out * sizeof(float));
    with_format(as, [&](auto format) { pack_as<decltype(format)>(weight); });
  }

  // The weights of output `index` as floats [in].
  void row(int index, float* to) const {
    with_format(kind, [&](auto format) { row_as<decltype(format)>(index, to); });
  }

  // x [rows, in] times one panel, scaled, with its bias: to [rows, 16].
  void multiply(int index, const float* x, long stride, int rows, float* to) const {
    product_of(kind)(x, stride, rows, panel(index), in, to, kGroup, false);
    const float* scale = &scales_[index * kGroup];
    const float* bias = &bias_[index * kGroup];
    for (int r = 0; r < rows; r++, to += kGroup)
      for (int i = 0; i < kGroup; i++) to[i] = to[i] * scale[i] + bias[i];
  }

 private:
  // Panel by panel: sixteen rows are read along, one stream is written.
  template <class F>
  void pack_as(const float* weight) {
    auto* to = reinterpret_cast<typename F::Number*>(memory_.data());
    for (int first = 0; first < padded(out); first += kGroup) {
      const int rows = std::min(kGroup, out - first);
      float inverse[kGroup];
      for (int i = 0; i < rows; i++) inverse[i] = F::scaled ? measure(first + i, weight) : 1.0f;
      for (int k = 0; k < in; k++, to += kGroup)
        for (int i = 0; i < kGroup; i++)
          to[F::place(i)] =
              i < rows ? F::encode(weight[long(first + i) * in + k], inverse[i]) : 0;
    }
  }

  // Sets the scale of an output from its largest weight, and gives the scale's inverse.
  float measure(int output, const float* weight) {
    float most = 0;
    for (int k = 0; k < in; k++) most = std::fmax(most, std::fabs(weight[long(output) * in + k]));
    scales_[output] = std::fmax(most / 127.0f, 1.17549435e-38f);
    return 1.0f / scales_[output];
  }

  template <class F>
  void row_as(int index, float* to) const {
    const auto* from = reinterpret_cast<const typename F::Number*>(panel(index / kGroup));
    const int within = index % kGroup;
    for (int k = 0; k < in; k++) {
      Floats group[kParts];
      F::load16(from + long(k) * kGroup, group);
      to[k] = group[within / kWidth][within % kWidth] * scales_[index];
    }
  }

  size_t panel_bytes_ = 0;
  Buffer<uint8_t> memory_;
  std::vector<float> scales_, bias_;
};

constexpr int kRowBlock = 48;  // rows of a piece: with one panel they stay in the second-level cache

// Every panel and row block of a phase: `body(panel, first row, rows)`, on whichever thread asks.
template <class Body>
static inline void for_panels(Pool& pool, int rows, int panels, Body&& body) {
  const int blocks = rows <= kRowBlock + kRows ? 1 : (rows + kRowBlock - 1) / kRowBlock;
  const int block_rows = blocks == 1 ? rows : kRowBlock;
  int run = panels * blocks / (pool.threads() * 8);
  run = run < 1 ? 1 : run > panels ? panels : run;
  const int runs = (panels + run - 1) / run;
  for (int piece; (piece = pool.take()) < blocks * runs;) {
    const int first = piece / runs * block_rows;
    const int height = rows - first < block_rows ? rows - first : block_rows;
    const int end = std::min(panels, (piece % runs + 1) * run);
    for (int panel = piece % runs * run; panel < end; panel++) body(panel, first, height);
  }
}

constexpr int kMostBlockRows = kRowBlock + kRows;

}  // namespace ps
