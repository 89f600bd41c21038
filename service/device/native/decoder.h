// One decoder of the Llama family: weights, and a whole step computed by all threads together.
//
// A step is one flat batch of tokens: decode rows and prompt chunks of any number of sequences.
// There is one call a step; inside it the threads go through the phases of every layer with a
// barrier after each, and no phase allocates.

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

// Memory for rows as integers.
struct Digits {
  Buffer<int16_t> numbers;
  Buffer<float> steps;
  void resize(size_t rows, int inputs) {
    numbers.resize(rows * digit_stride(inputs));
    steps.resize(rows);
  }
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
  void step(const Batch& batch, int thread);
  void layer_step(const Batch& batch, const Layer& layer, int thread);
  void embed(const Batch& batch);
  Rows normalise(const float* from, const std::vector<float>& weight, int rows, int thread);
  Rows as_rows(const float* from, long stride, int count, int rows, int thread);
  void turn_and_store(const Batch& batch, const Layer& layer);
  void turn(float* head, const std::vector<float>& norm, int64_t position, float scale) const;
  void attend(const Batch& batch, const Layer& layer, int thread);
  void merge_parts();
  void put_heads(const float* out, const float* sums, int rows, int width, long row, int head);
  void add_product(const Matrix& matrix, const Rows& x, int rows);
  void feed_forward(const Layer& layer, const Rows& x, int rows);
  void finish(const Batch& batch, int thread);
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
  Buffer<float> hidden_, normed_, qkv_, queries_, mixed_, acted_, last_;
  Buffer<float> parts_, part_tops_, part_sums_;
  std::vector<Buffer<float>> own_normed_, outs_;
  Digits digits_;
  std::vector<Digits> own_digits_;
  std::vector<Scratch> scratch_;
  std::vector<Task> tasks_;
  std::vector<Merge> merges_;
  int part_count_ = 0;
  Pool pool_;
};

}  // namespace ps
