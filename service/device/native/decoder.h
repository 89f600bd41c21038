// One decoder of the Llama family: weights, and a whole step computed by all threads together.
//
// A step is one flat batch of tokens: decode rows and prompt chunks of any number of sequences.
// There is one call a step; inside it the threads go through the phases of every layer (see
// pool.h), and no phase allocates.

#pragma once

#include <algorithm>
#include <stdexcept>

#include "attention.h"

namespace ps {

struct Config {
  int32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, threads;
  int32_t weights_kind, cache_kind;
  float norm_eps;
};

// Queries [begin, begin + query_tokens) attend to themselves and the `context_tokens` tokens
// before them; `first_page` is where the sequence's pages begin in `Batch::pages`.
struct Span {
  int32_t begin, query_tokens, context_tokens, first_page;
};

struct Batch {
  int32_t tokens, spans, samples, cache_pages;
  const int64_t* token_ids;   // [tokens]
  const int64_t* positions;   // [tokens]
  const int64_t* cells;       // [tokens]: page * 16 + place
  const int64_t* sampled;     // [samples]: rows whose logits are wanted
  const Span* span;           // [spans]
  const int64_t* pages;
  float* logits;              // [samples, vocab]
};

enum class Which : int { kQkv, kOut, kGate, kUp, kDown, kHead, kEmbedding };
enum class Norm : int { kInput, kQuery, kKey, kFfn, kFinal };

// Rows [rows][count] that a product begins with: row r is number `picked[r]` in memory, or r. They
// are normalised first where there is a norm.
struct Input {
  const float* from;
  long stride;
  int count, rows;
  const float* norm;
  const int64_t* picked;

  const float* at(int row) const { return from + (picked ? picked[row] : row) * stride; }
};

// Memory for rows as a product wants them: normalised, and for int8 weights as integers.
struct Ready {
  Buffer<float> normed, steps;
  Buffer<int16_t> digits;
};

struct Layer {
  Matrix qkv, out, gate, up, down;
  std::vector<float> input_norm, query_norm, key_norm, ffn_norm;
  LayerCache cache{};
};

class Decoder {
 public:
  explicit Decoder(const Config& config);

  void set_matrix(int layer, Which which, const float* weight, const float* bias);
  void set_norm(int layer, Norm which, const float* weight);
  void set_rope(const float* cos, const float* sin, int positions);
  void set_cache(int layer, const LayerCache& cache) { layers_[layer].cache = cache; }

  // Throws std::out_of_range when the batch points outside the model or the cache.
  void forward(const Batch& batch);

 private:
  typedef Pool::Place Place;

  // A piece of attention, and where its result goes: `part` < 0 straight to the output.
  struct Task {
    int span, head, first, tokens, from, to, part;
  };
  // Parts [first, first + count) of one decode row's head are merged.
  struct Merge {
    int row, head, first, count;
  };

  Matrix& matrix(int layer, Which which);
  void check(const Batch& batch) const;
  void plan_attention(const Batch& batch);
  void reserve(const Batch& batch);
  void resize(Ready& ready, size_t rows) const;
  void step(const Batch& batch, Place& place);
  void layer_step(const Batch& batch, const Layer& layer, Place& place);
  void embed(const Batch& batch, Place& place);
  void make_ready(const Input& x, int row, Ready& to) const;
  template <class Body>
  void panels(const Input& x, int panels, Place& place, Body&& body);
  template <class Body>
  void product(const Matrix& matrix, const Input& x, Place& place, Body&& body);
  void turn_and_store(const Batch& batch, const Layer& layer, Place& place);
  void turn_token(const Batch& batch, const Layer& layer, int token);
  void turn(float* head, const std::vector<float>& norm, int64_t position, float scale) const;
  void attend(const Batch& batch, const Layer& layer, Place& place);
  void attend(const Batch& batch, const Layer& layer, const Task& task, int thread);
  void merge_parts(Place& place);
  void merge(const Merge& merge);
  void put_heads(const float* out, const float* sums, int rows, int width, long row, int head);
  void add_product(const Matrix& matrix, const Input& x, Place& place);
  void feed_forward(const Layer& layer, const Input& x, Place& place);
  void predict(const Batch& batch, Place& place);
  const Matrix& head() const { return head_.out != 0 ? head_ : embedding_; }

  const Config config_;
  const Shape shape_;
  const Attention attention_;
  const int hidden_stride_, qkv_size_, qkv_stride_, q_size_, ffn_stride_;
  Arena arena_;
  std::vector<Layer> layers_;
  Matrix embedding_, head_;
  std::vector<float> final_norm_;
  std::vector<float> cos_, sin_;
  Buffer<float> hidden_, qkv_, queries_, mixed_, acted_;
  Buffer<float> parts_, part_tops_, part_sums_;
  Ready ready_;
  std::vector<Ready> own_ready_;
  std::vector<Buffer<float>> outs_;
  std::vector<Scratch> scratch_;
  std::vector<Task> tasks_;
  std::vector<Merge> merges_;
  int part_count_ = 0;
  Pool pool_;
};

}  // namespace ps
