// Attention over a paged cache, as blocks of the same product.
//
// A page holds 16 tokens of every KV head. Keys lie as [dim][16 tokens], so that queries times a
// page are one product of depth `dim`; values as [dim / 16][16 tokens][16 dims], so that weights
// times a page are products of depth 16. The query heads that share a KV head are rows of one
// tile. Softmax is computed online over blocks of pages (FlashAttention). When few sequences
// decode over long contexts, a context is cut into parts, whose results are merged by the
// logarithms of their sums (Flash-Decoding).

#pragma once

#include "matrix.h"

namespace ps {

constexpr int kPage = kGroup;      // tokens of a page
constexpr int kBlockPages = 8;     // pages of a softmax block
constexpr int kBlockTokens = kPage * kBlockPages;
constexpr int kQueryTokens = 16;   // query tokens of a piece
constexpr int kPartPages = 16;     // fewest pages of a part of a cut context

struct Shape {
  int heads, kv_heads, dim;
  int share() const { return heads / kv_heads; }
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

  // One token's key and value [dim] of one head, to its cell.
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

// What one piece of attention works on, allocated once a thread.
struct Scratch {
  Buffer<float> scores, tops, sums;
  void resize(const Shape& shape) {
    const int rows = kQueryTokens * shape.share();
    scores.resize(long(rows) * kBlockTokens);
    tops.resize(rows);
    sums.resize(rows);
  }
};

// Queries that attend together: `rows` rows = tokens x share, [rows][dim], to the tokens
// [from, to) of a context; row r's token sees those below `seen + r / share`.
struct Piece {
  const float* queries;
  int rows, head, seen, from, to;
  const int64_t* pages;
};

class Attention {
 public:
  Attention(const Shape& shape, Kind kind) : shape_(shape), cache_(shape, kind) {}

  const PagedCache& cache() const { return cache_; }

  // out [rows][padded(dim)] not yet divided by `sums`; both stay relative to `tops`.
  void run(const Piece& piece, const LayerCache& layer, Scratch& scratch, float* out, float* tops,
           float* sums) const {
    const int width = padded(shape_.dim);
    std::memset(out, 0, sizeof(float) * piece.rows * width);
    for (int r = 0; r < piece.rows; r++) tops[r] = -INFINITY, sums[r] = 0;
    for (int first = piece.from; first < piece.to; first += kBlockTokens) {
      const int count = std::min(kBlockTokens, piece.to - first);
      score(piece, layer, first, count, scratch.scores.data());
      for (int r = 0; r < piece.rows; r++) {
        const int seen = std::min(count, piece.seen + r / shape_.share() - first);
        soften(scratch.scores.data() + long(r) * kBlockTokens, seen, count, out + long(r) * width,
               width, tops[r], sums[r]);
      }
      mix(piece, layer, first, count, scratch.scores.data(), out, width);
    }
  }

 private:
  void score(const Piece& piece, const LayerCache& layer, int first, int count,
             float* scores) const {
    const Product product = product_of(cache_.kind());
    for (int at = 0; at < count; at += kPage) {
      const int page = int(piece.pages[(first + at) / kPage]);
      product(piece.queries, shape_.dim, piece.rows, cache_.at(layer.keys, page, piece.head),
              shape_.dim, scores + at, kBlockTokens, false);
      if (cache_.kind() == Kind::kInt8)
        scale(scores + at, piece.rows, layer.key_scales + cache_.slot(page, piece.head) * kPage);
    }
  }

  // Scores become weights relative to the largest so far; what is not seen weighs nothing.
  static void soften(float* scores, int seen, int count, float* out, int width, float& top,
                     float& sum) {
    const int whole = padded(count);
    for (int i = std::max(0, seen); i < whole; i++) scores[i] = -INFINITY;
    if (seen <= 0) {
      std::memset(scores, 0, sizeof(float) * whole);
      return;
    }
    Floats most = splat(top);
    for (int i = 0; i < whole; i += kWidth) most = larger(most, load<Floats>(scores + i));
    const float new_top = largest(most);
    Floats total = {};
    const Floats offset = splat(new_top);
    for (int i = 0; i < whole; i += kWidth) {
      Floats weight = exponential(load<Floats>(scores + i) - offset);
      total += weight;
      store(scores + i, weight);
    }
    if (new_top > top && sum > 0) {
      const float shrink = std::exp(top - new_top);
      sum *= shrink;
      for (int i = 0; i < width; i += kWidth)
        store(out + i, load<Floats>(out + i) * splat(shrink));
    }
    sum += ps::sum(total);
    top = new_top;
  }

  void mix(const Piece& piece, const LayerCache& layer, int first, int count, float* weights,
           float* out, int width) const {
    const Product product = product_of(cache_.kind());
    const long group_bytes = long(kPage) * kGroup * number_bytes(cache_.kind());
    for (int at = 0; at < count; at += kPage) {
      const int page = int(piece.pages[(first + at) / kPage]);
      if (cache_.kind() == Kind::kInt8)
        scale(weights + at, piece.rows, layer.value_scales + cache_.slot(page, piece.head) * kPage);
      const uint8_t* values = cache_.at(layer.values, page, piece.head);
      const int depth = std::min(kPage, count - at);
      for (int group = 0; group < width / kGroup; group++)
        product(weights + at, kBlockTokens, piece.rows, values + group * group_bytes, depth,
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
