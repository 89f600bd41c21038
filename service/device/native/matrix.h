// Weights in panels of 16 outputs, and the product of rows with one panel.

#pragma once

#include <algorithm>
#include <cstdlib>
#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#include "block_product.h"
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

// Some outputs of a weight as a file holds them; the C interface's struct. `codes` are float32
// [rows, in], GGUF's blocks [rows], nibbles [rows, in / 2] or fp8 [rows, in]. `scales` of every
// `group` inputs are float32 [rows, groups]; of nibbles also `halves`, the same as float16 or null,
// and `zeros` uint8.
struct StoredPart {
  int32_t first, rows, kind, group;
  const void* codes;
  const float* scales;
  const uint16_t* halves;
  const uint8_t* zeros;
  const float* bias;
};

// `body` gets a format of blocks.h.
template <class Body>
static inline auto with_blocks(Kind kind, int group, Body&& body) {
  switch (kind) {
    case Kind::kQ8Blocks:
      return body(Q8Blocks{});
    case Kind::kQ4Blocks:
      return body(Q4Blocks{});
    case Kind::kQ6Blocks:
      return body(Q6Blocks{});
    case Kind::kInt4:
      return body(Int4Blocks<false>(group));
    default:
      return body(Int4Blocks<true>(group));
  }
}

// A weight [out, in] in panels, which may come in parts of several kinds (queries, keys and values
// of a mixed file). Int8 has one scale an output, symmetric.
class Matrix {
 public:
  int out = 0, in = 0;

  int panels() const { return groups_of(out); }
  bool takes_integers() const { return takes_integers_; }
  // Which input of a row stored input k is multiplied with; null: k.
  const int32_t* order() const { return order_.empty() ? nullptr : order_.data(); }
  void set_order(const int32_t* order) { order_.assign(order, order + in); }

  void begin(int out_count, int in_count) {
    out = out_count;
    in = in_count;
    parts_.clear();
    part_of_.assign(panels(), 0);
    scales_.assign(padded(out), 1.0f);
    bias_.assign(padded(out), 0.0f);
    takes_integers_ = false;
    order_.clear();
  }

  void pack(const float* weight, const float* bias_or_null, int out_count, int in_count, Kind as,
            Arena& arena) {
    begin(out_count, in_count);
    add({0, out, int32_t(as), 0, weight, nullptr, nullptr, nullptr, bias_or_null}, arena);
  }

  // Outputs [first, first + rows), which begin a panel and end one, or the matrix.
  void add(const StoredPart& stored, Arena& arena) {
    if (stored.first % kGroup != 0 || stored.first + stored.rows > out ||
        (stored.rows % kGroup != 0 && stored.first + stored.rows != out))
      throw std::out_of_range("a part of a matrix");
    const Kind kind = Kind(stored.kind);
    Part part{kind, stored.first / kGroup, stored.group, panel_bytes(kind, stored.group), nullptr};
    part.memory = arena.take(groups_of(stored.rows) * part.panel_bytes);
    for (int i = 0; i < groups_of(stored.rows); i++)
      part_of_[part.first_panel + i] = uint8_t(parts_.size());
    parts_.push_back(part);
    takes_integers_ |= kind == Kind::kInt8 || is_block(kind);
    if (stored.bias != nullptr)
      std::memcpy(bias_.data() + stored.first, stored.bias, stored.rows * sizeof(float));
    if (kind == Kind::kInt8) return pack_int8(part, stored);
    if (kind == Kind::kFp8) return pack_fp8(part, stored);
    if (is_block(kind)) return pack_blocks(part, stored);
    with_format(kind, [&](auto format) { pack_as<decltype(format)>(part, stored); });
  }

  // The weights of output `index` as floats [in].
  void row(int index, float* to) const {
    const int within = index % kGroup;
    const Part& part = part_of(index / kGroup);
    const uint8_t* from = part.panel(index / kGroup);
    if (part.kind == Kind::kInt8) {
      for (int k = 0; k < in; k++)
        to[k] = int8_t(from[byte_place(k, within)]) * scales_[index];
    } else if (part.kind == Kind::kFp8) {
      for (int k = 0; k < in; k++) to[k] = fp8_value(from, part.group, within, k);
    } else if (is_block(part.kind)) {
      with_blocks(part.kind, part.group, [&](const auto& format) {
        for (int k = 0; k < in; k++)
          to[order_.empty() ? k : order_[k]] =
              format.value(from + k / format.inputs * format.bytes, within, k % format.inputs);
      });
    } else {
      float_row(part.kind, from, within, to);
    }
  }

  // Rows [first, first + count) times one panel, scaled, with its bias: to [count, 16].
  void multiply(int index, const Rows& rows, int first, int count, float* to) const {
    const float* scale = &scales_[index * kGroup];
    const float* bias = &bias_[index * kGroup];
    const Part& part = part_of(index);
    const uint8_t* panel = part.panel(index);
    if (part.kind == Kind::kInt8) {
      int8_product(rows.quantized + first * rows.quantized_stride, rows.quantized_stride, count,
                   reinterpret_cast<const int8_t*>(panel), quantized_stride(in), to);
    } else if (is_block(part.kind)) {
      with_blocks(part.kind, part.group, [&](const auto& format) {
        block_product(format, rows, first, count, panel, in, to);
      });
    } else if (part.kind == Kind::kFp8) {
      fp8_product(rows, first, count, panel, in, part.group, to);
    } else {
      product_of(part.kind)(rows.floats + first * rows.stride, rows.stride, count, panel, in, to,
                            kGroup, false);
    }
    const bool integers = part.kind == Kind::kInt8 || is_block(part.kind);
    for (int r = 0; r < count; r++, to += kGroup) {
      const float of_row = integers ? rows.scales[first + r] : 1.0f;
      for (int i = 0; i < kGroup; i++) to[i] = to[i] * (scale[i] * of_row) + bias[i];
    }
  }

 private:
  struct Part {
    Kind kind;
    int first_panel, group;
    size_t panel_bytes;
    uint8_t* memory;  // in the arena

    uint8_t* panel(int index) const { return memory + (index - first_panel) * panel_bytes; }
  };

  const Part& part_of(int panel) const { return parts_[part_of_[panel]]; }

  size_t panel_bytes(Kind kind, int group) const {
    if (kind == Kind::kFp8) return fp8_panel_bytes(in, group);
    if (kind == Kind::kInt8) return size_t(quantized_stride(in)) * kGroup;
    if (!is_block(kind)) return size_t(in) * kGroup * number_bytes(kind);
    return with_blocks(kind, group, [&](const auto& format) {
      if (format.inputs <= 0 || in % format.inputs != 0 || format.inputs % 32 != 0)
        throw std::out_of_range("a group of inputs");
      return size_t(in / format.inputs * format.bytes);
    });
  }

  void float_row(Kind kind, const uint8_t* panel, int within, float* to) const {
    with_format(kind, [&](auto format) {
      typedef decltype(format) F;
      const auto* from = reinterpret_cast<const typename F::Number*>(panel);
      for (int k = 0; k < in; k++) {
        Floats group[kGroupVectors];
        F::load16(from + long(k) * kGroup, group);
        to[k] = group[within / kWidth][within % kWidth];
      }
    });
  }

  // Panel by panel: sixteen rows of the weight are read, one stream is written.
  template <class F>
  void pack_as(const Part& part, const StoredPart& stored) {
    const auto* weight = static_cast<const float*>(stored.codes);
    auto* to = reinterpret_cast<typename F::Number*>(part.memory);
    for (int first = 0; first < padded(stored.rows); first += kGroup) {
      const int rows = std::min(kGroup, stored.rows - first);
      for (int k = 0; k < in; k++, to += kGroup)
        for (int i = 0; i < kGroup; i++)
          to[F::place(i)] = i < rows ? F::encode(weight[long(first + i) * in + k], 1.0f) : 0;
    }
  }

  // Places of outputs beyond the last stay zero.
  void clear(const Part& part, const StoredPart& stored) {
    std::memset(part.memory, 0, groups_of(stored.rows) * part.panel_bytes);
  }

  void pack_int8(const Part& part, const StoredPart& stored) {
    clear(part, stored);
    for (int o = 0; o < stored.rows; o++) {
      auto* to = reinterpret_cast<int8_t*>(part.memory + o / kGroup * part.panel_bytes);
      const float* from = static_cast<const float*>(stored.codes) + long(o) * in;
      float most = 0;
      for (int k = 0; k < in; k++) most = std::fmax(most, std::fabs(from[k]));
      const float scale = std::fmax(most / 127.0f, 1.17549435e-38f);
      scales_[stored.first + o] = scale;
      for (int k = 0; k < in; k++)
        to[byte_place(k, o % kGroup)] = int8_t(std::lrintf(from[k] / scale));
    }
  }

  void pack_fp8(const Part& part, const StoredPart& stored) {
    clear(part, stored);
    const int groups = (in + stored.group - 1) / stored.group;
    for (int o = 0; o < stored.rows; o++) {
      const auto* from = static_cast<const uint8_t*>(stored.codes) + long(o) * in;
      uint8_t* to = part.memory + o / kGroup * part.panel_bytes;
      for (int k = 0; k < in; k++, to += kGroup) {
        if (k % stored.group == 0) {
          const float scale = stored.scales[long(o) * groups + k / stored.group] * kFp8Unit;
          std::memcpy(to + 4 * (o % kGroup), &scale, 4);
          to += kFp8ScaleBytes;
        }
        to[o % kGroup] = from[k];
      }
    }
  }

  float fp8_value(const uint8_t* panel, int group, int within, int k) const {
    const uint8_t* block = panel + long(k / group) * (kFp8ScaleBytes + long(group) * kGroup);
    float scale;
    std::memcpy(&scale, block + 4 * within, 4);
    return fp8_to_float(block[kFp8ScaleBytes + long(k % group) * kGroup + within]) *
           (scale / kFp8Unit);
  }

  void pack_blocks(const Part& part, const StoredPart& stored) {
    clear(part, stored);
    with_blocks(part.kind, part.group, [&](const auto& format) {
      const int blocks = in / format.inputs;
      for (int o = 0; o < stored.rows; o++) {
        uint8_t* to = part.memory + o / kGroup * part.panel_bytes;
        for (int b = 0; b < blocks; b++, to += format.bytes)
          pack_block(format, stored, long(o) * blocks + b, o % kGroup, to);
      }
    });
  }

  template <class F>
  static void pack_block(const F& format, const StoredPart& stored, long block, int output,
                         uint8_t* to) {
    const auto* codes = static_cast<const uint8_t*>(stored.codes);
    if constexpr (requires { F::raw_bytes; }) {
      F::pack(codes + block * F::raw_bytes, output, to);
    } else {
      format.pack(codes + block * format.inputs / 2, stored.scales[block],
                  stored.halves == nullptr ? uint16_t(0) : stored.halves[block],
                  stored.zeros[block], output, to);
    }
  }

  std::vector<Part> parts_;
  std::vector<uint8_t> part_of_;  // of each panel
  std::vector<float> scales_, bias_;
  std::vector<int32_t> order_;
  bool takes_integers_ = false;
};

}  // namespace ps
