// Weights in panels of 16 outputs, and the product of rows with one panel.

#pragma once

#include <algorithm>
#include <cstdlib>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <memory>
#include <new>
#include <vector>

#include "int8_product.h"
#include "pool.h"

namespace ps {

static inline int groups_of(int count) { return (count + kGroup - 1) / kGroup; }
static inline int padded(int count) { return groups_of(count) * kGroup; }

// Memory that is aligned to cache lines, only grows, and is not zeroed. Large buffers ask for huge
// pages: hardware prefetching stops at the end of a page, and weights are one long read.
template <class T>
class Buffer {
 public:
  void resize(size_t count) {
    if (count <= count_) return;
    const size_t bytes = count * sizeof(T);
    const size_t unit = bytes >= kHugeBytes ? kHugeBytes : 64;
    void* memory = std::aligned_alloc(unit, (bytes + unit - 1) / unit * unit);
    if (memory == nullptr) throw std::bad_alloc();
    if (unit == kHugeBytes) advise(memory, (bytes + unit - 1) / unit * unit);
    memory_.reset(static_cast<T*>(memory));
    count_ = count;
  }
  T* data() const { return memory_.get(); }

 private:
  static constexpr size_t kHugeBytes = size_t(2) << 20;

  static void advise(void* memory, size_t bytes) {
#if defined(__linux__)
    madvise(memory, bytes, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
  }

  struct Free {
    void operator()(T* memory) const { std::free(memory); }
  };
  std::unique_ptr<T, Free> memory_;
  size_t count_ = 0;
};

// One block of memory for all weights, handed out in order: small matrices share huge pages.
class Arena {
 public:
  uint8_t* take(size_t bytes) {
    bytes = (bytes + 63) / 64 * 64;
    if (blocks_.empty() || used_ + bytes > block_bytes_) {
      block_bytes_ = bytes > kBlockBytes ? bytes : kBlockBytes;
      blocks_.emplace_back();
      blocks_.back().resize(block_bytes_);
      used_ = 0;
    }
    uint8_t* memory = blocks_.back().data() + used_;
    used_ += bytes;
    return memory;
  }

 private:
  static constexpr size_t kBlockBytes = size_t(64) << 20;
  std::vector<Buffer<uint8_t>> blocks_;
  size_t block_bytes_ = 0, used_ = 0;
};

static inline int quantized_stride(int inputs) { return (inputs + 7) / 8 * 8; }

// Rows to multiply: floats, and for int8 weights also quantized, with a scale for each row.
struct Rows {
  const float* floats;
  long stride;
  const int16_t* quantized;
  long quantized_stride;
  const float* scales;
};

// A weight [out, in] in panels. Int8 has one scale an output, symmetric.
class Matrix {
 public:
  int out = 0, in = 0;
  Kind kind = Kind::kFloat32;

  int panels() const { return groups_of(out); }
  const uint8_t* panel(int index) const { return memory_ + index * panel_bytes_; }

  void pack(const float* weight, const float* bias_or_null, int out_count, int in_count, Kind as,
            Arena& arena) {
    out = out_count;
    in = in_count;
    kind = as;
    const int inputs = as == Kind::kInt8 ? quantized_stride(in) : in;
    panel_bytes_ = size_t(inputs) * kGroup * number_bytes(as);
    memory_ = arena.take(panels() * panel_bytes_);
    scales_.assign(padded(out), 1.0f);
    bias_.assign(padded(out), 0.0f);
    if (bias_or_null != nullptr) std::memcpy(bias_.data(), bias_or_null, out * sizeof(float));
    if (as == Kind::kInt8) return pack_int8(weight);
    with_format(as, [&](auto format) { pack_as<decltype(format)>(weight); });
  }

  // The weights of output `index` as floats [in].
  void row(int index, float* to) const {
    const int within = index % kGroup;
    if (kind == Kind::kInt8) {
      const auto* from = reinterpret_cast<const int8_t*>(panel(index / kGroup));
      for (int k = 0; k < in; k++) to[k] = from[int8_place(k, within)] * scales_[index];
      return;
    }
    with_format(kind, [&](auto format) {
      typedef decltype(format) F;
      const auto* from = reinterpret_cast<const typename F::Number*>(panel(index / kGroup));
      for (int k = 0; k < in; k++) {
        Floats group[kGroupVectors];
        F::load16(from + long(k) * kGroup, group);
        to[k] = group[within / kWidth][within % kWidth];
      }
    });
  }

  // Rows [first, first + count) times one panel, scaled, with its bias: to [count, 16].
  void multiply(int index, const Rows& rows, int first, int count, float* to) const {
    const float* scale = &scales_[index * kGroup];
    const float* bias = &bias_[index * kGroup];
    if (kind == Kind::kInt8) {
      const auto* weights = reinterpret_cast<const int8_t*>(panel(index));
      int8_product(rows.quantized + first * rows.quantized_stride, rows.quantized_stride, count,
                   weights, quantized_stride(in), to);
      for (int r = 0; r < count; r++, to += kGroup)
        for (int i = 0; i < kGroup; i++)
          to[i] = to[i] * (scale[i] * rows.scales[first + r]) + bias[i];
      return;
    }
    product_of(kind)(rows.floats + first * rows.stride, rows.stride, count, panel(index), in, to,
                     kGroup, false);
    for (int r = 0; r < count; r++, to += kGroup)
      for (int i = 0; i < kGroup; i++) to[i] += bias[i];
  }

 private:
  // Panel by panel: sixteen rows of the weight are read, one stream is written.
  template <class F>
  void pack_as(const float* weight) {
    auto* to = reinterpret_cast<typename F::Number*>(memory_);
    for (int first = 0; first < padded(out); first += kGroup) {
      const int rows = std::min(kGroup, out - first);
      for (int k = 0; k < in; k++, to += kGroup)
        for (int i = 0; i < kGroup; i++)
          to[F::place(i)] = i < rows ? F::encode(weight[long(first + i) * in + k], 1.0f) : 0;
    }
  }

  static long int8_place(int k, int within) { return long(k / 2) * 2 * kGroup + 2 * within + k % 2; }

  void pack_int8(const float* weight) {
    std::memset(memory_, 0, panels() * panel_bytes_);
    for (int o = 0; o < out; o++) {
      auto* to = reinterpret_cast<int8_t*>(memory_ + o / kGroup * panel_bytes_);
      const float* from = weight + long(o) * in;
      float most = 0;
      for (int k = 0; k < in; k++) most = std::fmax(most, std::fabs(from[k]));
      scales_[o] = std::fmax(most / 127.0f, 1.17549435e-38f);
      for (int k = 0; k < in; k++)
        to[int8_place(k, o % kGroup)] = int8_t(std::lrintf(from[k] / scales_[o]));
    }
  }

  size_t panel_bytes_ = 0;
  uint8_t* memory_ = nullptr;  // in the arena
  std::vector<float> scales_, bias_;
};

constexpr int kRowBlock = 48;  // rows of a block: with one panel they stay in the L2 cache
constexpr int kMostBlockRows = kRowBlock + kTileRows;

}  // namespace ps
