// Attention over a paged cache, as products of blocks (see product.h).
//
// A page holds 16 tokens of every KV head. Keys lie as [dim][16 tokens], so that queries times a
// page are one product of depth `dim`; values as [dim / 16][16 tokens][16 dims], so that weights
// times a page are products of depth 16. The query heads of one KV head are rows of one tile.
// Softmax is computed online over blocks of pages (FlashAttention). When few sequences decode over
// long contexts, a context is cut into splits, whose results are merged by their maxima and sums
// (Flash-Decoding).

#pragma once

#include "matrix.h"

namespace ps {

constexpr int kPage = kGroup;      // tokens of a page
constexpr int kBlockPages = 8;     // pages of a softmax block
constexpr int kBlockTokens = kPage * kBlockPages;
constexpr int kQueryTokens = 16;   // query tokens of a tile
constexpr int kSplitPages = 16;    // fewest pages of a split
constexpr int kNoWindow = 1 << 30;  // more than any context

struct Shape {
  int heads, kv_heads, dim;
  int group_size() const { return heads / kv_heads; }  // query heads of a KV head
};

// Keys and values of one layer: [pages][kv_heads][padded(dim) * 16] numbers each, and with int8
// a scale for each token and head, [pages][kv_heads][16].
struct LayerCache {
  uint8_t *keys, *values;
  float *key_scales, *value_scales;
};

class PagedCache {
 public:
  PagedCache(const Shape& shape, Kind kind)
      : shape_(shape), kind_(kind), numbers_(long(padded(shape.dim)) * kPage) {}

  Kind kind() const { return kind_; }
  long slot(int page, int head) const { return long(page) * shape_.kv_heads + head; }
  const uint8_t* at(const uint8_t* base, int page, int head) const {
    return base + slot(page, head) * numbers_ * number_bytes(kind_);
  }

  // Write one token's key and value [dim] of one head to its slot.
  void write(const LayerCache& layer, int page, int within, int head, const float* key,
             const float* value) const {
    with_format(kind_, [&](auto format) {
      typedef decltype(format) F;
      typedef typename F::Number Number;
      float key_scale = 1, value_scale = 1;
      if (F::scaled) {
        key_scale = scale_of(key), value_scale = scale_of(value);
        layer.key_scales[slot(page, head) * kPage + within] = key_scale;
        layer.value_scales[slot(page, head) * kPage + within] = value_scale;
      }
      auto* keys = reinterpret_cast<Number*>(layer.keys) + slot(page, head) * numbers_;
      auto* values = reinterpret_cast<Number*>(layer.values) + slot(page, head) * numbers_;
      const int column = F::place(within);
      for (int d = 0; d < shape_.dim; d++) {
        keys[d * kPage + column] = F::encode(key[d], 1 / key_scale);
        const long group = long(d / kGroup) * kPage * kGroup + within * kGroup;
        values[group + F::place(d % kGroup)] = F::encode(value[d], 1 / value_scale);
      }
    });
  }

 private:
  float scale_of(const float* row) const {
    float most = 0;
    for (int d = 0; d < shape_.dim; d++) most = std::fmax(most, std::fabs(row[d]));
    return std::fmax(most / 127.0f, 1.17549435e-38f);
  }

  Shape shape_;
  Kind kind_;
  long numbers_;  // of a page and head
};

// Buffers for one tile of attention, allocated once a thread.
struct Scratch {
  Buffer<float> scores, maxima, sums;
  void resize(const Shape& shape) {
    const int rows = kQueryTokens * shape.group_size();
    scores.resize(long(rows) * kBlockTokens);
    maxima.resize(rows);
    sums.resize(rows);
  }
};

// Queries that attend together: `rows` rows = tokens x group_size, [rows][dim], over the tokens
// [from, to) of a context. To row r the last `window` of those below `visible + r / group_size` are
// visible.
struct QueryTile {
  const float* queries;
  int rows, head, visible, window, from, to;
  const int64_t* pages;
};

class Attention {
 public:
  Attention(const Shape& shape, Kind kind) : shape_(shape), cache_(shape, kind) {}

  const PagedCache& cache() const { return cache_; }

  // out [rows][padded(dim)], not yet divided by `sums`; both are relative to `maxima`.
  void run(const QueryTile& tile, const LayerCache& layer, Scratch& scratch, float* out,
           float* maxima, float* sums) const {
    const int width = padded(shape_.dim);
    std::memset(out, 0, sizeof(float) * tile.rows * width);
    for (int r = 0; r < tile.rows; r++) maxima[r] = -INFINITY, sums[r] = 0;
    for (int first = tile.from; first < tile.to; first += kBlockTokens) {
      const int count = std::min(kBlockTokens, tile.to - first);
      score(tile, layer, first, count, scratch.scores.data());
      for (int r = 0; r < tile.rows; r++) {
        const int end = tile.visible + r / shape_.group_size() - first;
        online_softmax(scratch.scores.data() + long(r) * kBlockTokens, end - tile.window,
                       std::min(count, end), count, out + long(r) * width, width, maxima[r],
                       sums[r]);
      }
      add_values(tile, layer, first, count, scratch.scores.data(), out, width);
    }
  }

 private:
  void score(const QueryTile& tile, const LayerCache& layer, int first, int count,
             float* scores) const {
    const Product product = product_of(cache_.kind());
    for (int at = 0; at < count; at += kPage) {
      const int page = int(tile.pages[(first + at) / kPage]);
      product(tile.queries, shape_.dim, tile.rows, cache_.at(layer.keys, page, tile.head),
              shape_.dim, scores + at, kBlockTokens, false);
      if (cache_.kind() == Kind::kInt8)
        scale(scores + at, tile.rows, layer.key_scales + cache_.slot(page, tile.head) * kPage);
    }
  }

  // Turn scores into weights relative to the largest so far; tokens outside of [begin, end), which
  // are not visible, get 0.
  static void online_softmax(float* scores, int begin, int end, int count, float* out, int width,
                             float& maximum, float& sum) {
    const int whole = padded(count);
    for (int i = 0; i < std::min(begin, whole); i++) scores[i] = -INFINITY;
    for (int i = std::max(0, end); i < whole; i++) scores[i] = -INFINITY;
    if (end <= std::max(0, begin)) {
      std::memset(scores, 0, sizeof(float) * whole);
      return;
    }
    Floats most = splat(maximum);
    for (int i = 0; i < whole; i += kWidth) most = larger(most, load<Floats>(scores + i));
    const float new_maximum = largest(most);
    Floats total = {};
    const Floats offset = splat(new_maximum);
    for (int i = 0; i < whole; i += kWidth) {
      Floats weight = exponential(load<Floats>(scores + i) - offset);
      total += weight;
      store(scores + i, weight);
    }
    if (new_maximum > maximum && sum > 0) {
      const float shrink = std::exp(maximum - new_maximum);
      sum *= shrink;
      for (int i = 0; i < width; i += kWidth)
        store(out + i, load<Floats>(out + i) * splat(shrink));
    }
    sum += ps::sum(total);
    maximum = new_maximum;
  }

  // out += weights times values.
  void add_values(const QueryTile& tile, const LayerCache& layer, int first, int count,
                  float* weights, float* out, int width) const {
    const Product product = product_of(cache_.kind());
    const long group_bytes = long(kPage) * kGroup * number_bytes(cache_.kind());
    for (int at = 0; at < count; at += kPage) {
      const int page = int(tile.pages[(first + at) / kPage]);
      if (cache_.kind() == Kind::kInt8)
        scale(weights + at, tile.rows, layer.value_scales + cache_.slot(page, tile.head) * kPage);
      const uint8_t* values = cache_.at(layer.values, page, tile.head);
      const int depth = std::min(kPage, count - at);
      for (int group = 0; group < width / kGroup; group++)
        product(weights + at, kBlockTokens, tile.rows, values + group * group_bytes, depth,
                out + group * kGroup, width, true);
    }
  }

  static void scale(float* rows, int count, const float* scales) {
    for (int r = 0; r < count; r++)
      for (int i = 0; i < kPage; i++) rows[long(r) * kBlockTokens + i] *= scales[i];
  }

  Shape shape_;
  PagedCache cache_;
};

}  // namespace ps
