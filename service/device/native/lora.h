// LoRA adapters: low-rank products beside those of the decoder's matrices.
//
// y = W x becomes y = W x + B (s * (A x)) for rows that have an adapter. Rows of one adapter lie
// together (a segment), and A and B lie in panels of 16 outputs like weights, so the kernels of
// every other product multiply them, each segment with its own (grouped products of different
// ranks, as in Punica and S-LoRA). A x of all segments is a phase of its own before the product of
// W; B is added to the sums of each panel of W while they are in the cache.

#pragma once

#include <algorithm>
#include <array>

#include "matrix.h"

namespace ps {

// What adapters change in a layer; query, key and value are one product, gate and up another.
enum class Module : int { kQkv, kOut, kGateUp, kDown };
constexpr int kModules = 4;
constexpr size_t kPrefetchedBytes = 512;  // of a panel of B; a longer read is foreseen by itself

// Rows [begin, begin + rows) of a batch have adapter `number`.
struct AdapterSegment {
  int32_t number, begin, rows;
};

// A [parts * rank][inputs], B [outputs][rank] and scales [parts * rank] of one module of a layer, A
// and B as float32 or bf16.
struct AdapterMatrices {
  int32_t layer, module, rank;
  const void* down;
  const void* up;
  const float* scales;
};

// Floats of a matrix that is stored as float32 or bf16.
struct StoredFloats {
  const void* from;
  Kind kind;

  float operator[](size_t index) const {
    if (kind == Kind::kFloat32) return static_cast<const float*>(from)[index];
    const uint32_t bits = uint32_t(static_cast<const uint16_t*>(from)[index]) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }
};

// Panels of 16 outputs. Each multiplies inputs [first, first + count) only, because the B of a fused
// matrix is block-diagonal.
class LowRankPanels {
 public:
  // A: outputs of all inputs.
  void plan(int outputs, int inputs) {
    for (int p = 0; p < groups_of(outputs); p++) panels_.push_back({nullptr, 0, inputs});
  }

  // B: `sizes[i]` outputs of inputs [(first_part + i) * rank, (first_part + i + 1) * rank).
  void plan(const std::vector<int>& sizes, int first_part, int rank) {
    std::vector<int> part_of;
    for (size_t i = 0; i < sizes.size(); i++) part_of.insert(part_of.end(), sizes[i], int(i));
    const int outputs = int(part_of.size());
    for (int begin = 0; begin < outputs; begin += kGroup) {
      const int first = part_of[begin], last = part_of[std::min(begin + kGroup, outputs) - 1];
      panels_.push_back({nullptr, (first_part + first) * rank, (last - first + 1) * rank});
    }
    part_of_ = std::move(part_of);
    first_part_ = first_part;
  }

  size_t bytes(Kind kind) const {
    size_t total = 0;
    for (const Panel& panel : panels_) total += panel_bytes(panel, kind);
    return total;
  }

  // Rows [row, row + outputs) of `from` [][width], which A has whole and B by its part.
  void pack(const StoredFloats& from, int row, int outputs, int width, uint8_t*& memory) {
    kind_ = from.kind;
    with_format(kind_, [&](auto format) {
      pack_as<decltype(format)>(from, row, outputs, width, memory);
    });
  }

  int count() const { return int(panels_.size()); }

  // Fetch the beginning of a panel while others are multiplied: the panels of several adapters are
  // short reads far apart, which the hardware does not foresee.
  void prefetch(int index) const {
    if (index >= count()) return;
    const Panel& panel = panels_[index];
    const auto* from = reinterpret_cast<const char*>(panel.memory);
    const size_t bytes = std::min(panel_bytes(panel, kind_), kPrefetchedBytes);
    for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
  }

  // to [rows][16] = (add ? to : 0) + a [rows][inputs] times panel `index`.
  void multiply(int index, const float* a, long stride, int rows, float* to, bool add) const {
    const Panel& panel = panels_[index];
    product_of(kind_)(a + panel.first, stride, rows, panel.memory, panel.count, to, kGroup, add);
  }

 private:
  struct Panel {
    uint8_t* memory;
    int first, count;
  };

  static size_t panel_bytes(const Panel& panel, Kind kind) {
    return (size_t(panel.count) * kGroup * number_bytes(kind) + 63) / 64 * 64;
  }

  template <class F>
  void pack_as(const StoredFloats& from, int row, int outputs, int width, uint8_t*& memory) {
    for (size_t p = 0; p < panels_.size(); p++) {
      Panel& panel = panels_[p];
      panel.memory = memory;
      memory += panel_bytes(panel, kind_);
      std::memset(panel.memory, 0, panel_bytes(panel, kind_));
      auto* to = reinterpret_cast<typename F::Number*>(panel.memory);
      const int begin = int(p) * kGroup, end = std::min(begin + kGroup, outputs);
      for (int o = begin; o < end; o++) {
        const int at = part_of_.empty() ? 0 : (first_part_ + part_of_[o]) * width - panel.first;
        for (int k = 0; k < width; k++)
          to[long(at + k) * kGroup + F::place(o - begin)] =
              F::encode(from[size_t(row + o) * width + k], 1.0f);
      }
    }
  }

  std::vector<Panel> panels_;
  std::vector<int> part_of_;  // of each output of B
  int first_part_ = 0;
  Kind kind_ = Kind::kFloat32;
};

// One module of one layer; rank 0 where the adapter leaves it alone. Gate and up are two matrices
// of the decoder, so they have a B each.
struct LowRank {
  int rank = 0;
  LowRankPanels down;
  std::array<LowRankPanels, 2> up;
  std::vector<float> scales;  // of each output of `down`, padded
};

struct Adapter {
  std::vector<std::array<LowRank, kModules>> layers;
  std::array<int, kModules> down_panels{};  // the most of any layer
  int low_count = 0;                        // outputs of the largest `down`, padded
  Buffer<uint8_t> memory;
  size_t bytes = 0;
};

}  // namespace ps
