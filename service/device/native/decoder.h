// One decoder of the Llama family: weights, and a whole step computed by all threads together.
//
// A step is one flat batch of tokens: decode rows and prompt chunks of any number of sequences.
// There is one call a step; inside it the threads go through the phases of every layer (see
// pool.h), and no phase allocates.

#pragma once

#include <algorithm>
#include <map>
#include <stdexcept>

#include "attention.h"
#include "lora.h"
#include "norm.h"

namespace ps {

struct Config {
  int32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, threads;
  int32_t weights_kind, cache_kind;
  int32_t rotary_dim;  // values of a head that are rotated
  int32_t gelu_gate;   // 0: SiLU
  int32_t wide_norms;  // queries and keys are normed over all heads together
  float norm_eps, attention_scale, embedding_scale, residual_scale, logit_scale;
  float logit_cap;     // 0: none
};

// Queries [begin, begin + query_tokens) attend to themselves and the `context_tokens` tokens
// before them; `first_page` is where the sequence's pages begin in `Batch::pages`.
struct Span {
  int32_t begin, query_tokens, context_tokens, first_page;
};

struct Batch {
  int32_t tokens, spans, samples, cache_pages;
  const int64_t* token_ids;     // [tokens]
  const int64_t* positions;     // [tokens]
  const int64_t* slot_mapping;  // [tokens]: page * 16 + place in the page
  const int64_t* sampled;       // [samples]: rows whose logits are wanted
  const Span* span;             // [spans]
  const int64_t* pages;
  float* logits;                // [samples, vocab]
  float* states;                // [samples, hidden] instead of logits; null: logits
  const AdapterSegment* segment;  // [segments], apart and in order; other rows have no adapter
  int32_t segments;
};

enum class MatrixName : int { kQkv, kOut, kGate, kUp, kDown, kHead, kEmbedding };
enum class NormName : int { kInput, kQuery, kKey, kFfn, kFinal, kOut, kFfnOut };

constexpr int kRopes = 2;  // of the model, and of layers with a window

// The product that an adapter may change; none where `layer` is negative.
struct Adapted {
  int layer = -1;
  Module module = Module::kQkv;
};

// Input rows [rows][count] of a product: row r is number `picked[r]` in memory, or r. They are
// normalised first where there is a norm.
struct Input {
  const float* from;
  long stride;
  int count, rows;
  const float* norm;
  const int64_t* picked;
  Adapted adapted = {};
  bool quantizes = false;          // the weights are integers
  const int32_t* order = nullptr;  // of the inputs, where the weights have another

  void suit(const Matrix& matrix) {
    quantizes = matrix.takes_integers();
    order = matrix.order();
  }

  const float* at(int row) const { return from + (picked ? picked[row] : row) * stride; }
};

// Rows as a product needs them: normalised, and for integer weights in their order, quantized with
// a scale each, and summed.
struct PreparedRows {
  Buffer<float> normed, ordered, scales;
  Buffer<int16_t> quantized;
  Buffer<int32_t> sums;
};

struct Layer {
  Matrix qkv, out, gate, up, down;
  std::vector<float> input_norm, query_norm, key_norm, ffn_norm;  // empty: none
  std::vector<float> out_norm, ffn_out_norm;  // of what is added to the residual
  LayerCache cache{};
  int rope = 0, plan = 0;  // which of the decoder's
};

class Decoder {
 public:
  explicit Decoder(const Config& config);

  void set_matrix(int layer, MatrixName which, const float* weight, const float* bias);
  // All parts of a matrix one after the other, the first from output 0.
  void set_part(int layer, MatrixName which, const StoredPart& part);
  void set_order(int layer, MatrixName which, const int32_t* order);
  void set_norm(int layer, NormName which, const float* weight);
  void set_rope(int which, const float* cos, const float* sin, int positions);
  void set_layer(int layer, int window, int rope);
  void set_cache(int layer, const LayerCache& cache) { layers_[layer].cache = cache; }

  // `kind` is that of A and B. Returns the bytes that the adapter takes.
  size_t place_adapter(int number, const AdapterMatrices* matrices, int count, Kind kind);
  // No step that is being computed may have it.
  void drop_adapter(int number);

  // Throws std::out_of_range when the batch points outside the model or the cache.
  void forward(const Batch& batch);
  // Logits [rows, vocab] of final states [rows, hidden], as `forward` gives them.
  void logits_of_states(const float* states, int rows, float* logits);

 private:
  typedef Pool::PhaseCursor PhaseCursor;

  // A tile of attention, and the split that its result belongs to; < 0: it is the whole result.
  struct Task {
    int span, head, first, tokens, from, to, split;
  };
  // Merge the splits [first, first + count) of one head of a decode row.
  struct Merge {
    int row, head, first, count;
  };

  // The work of attention in layers of one window.
  struct AttentionPlan {
    int window;
    std::vector<Task> tasks;
    std::vector<Merge> merges;
  };
  struct Rope {
    std::vector<float> cos, sin;  // [positions][rotary_dim / 2]
  };
  // Rows with an adapter, and rows [first, first + rows) times one panel of its A.
  struct Segment {
    const Adapter* adapter;
    int begin, rows;
  };
  struct DownPiece {
    const Adapter* adapter;
    int panel, first, rows;
  };

  Matrix& matrix(int layer, MatrixName which);
  int outputs_of(MatrixName which) const;
  int inputs_of(MatrixName which) const;
  void check(const Batch& batch) const;
  void plan_attention(const Batch& batch, AttentionPlan& plan);
  void plan_adapters(const Batch& batch);
  void multiply_down(const Rows& rows, const Adapted& at, const DownPiece& piece);
  void add_low_rank(const Adapted& at, int matrix, int panel, int first, int height,
                    float* sums) const;
  void reserve(const Batch& batch);
  void resize(PreparedRows& prepared, size_t rows) const;
  void step(const Batch& batch, PhaseCursor& cursor);
  void layer_step(const Batch& batch, const Layer& layer, PhaseCursor& cursor);
  void embed(const Batch& batch, PhaseCursor& cursor);
  void prepare_row(const Input& x, int row, PreparedRows& to) const;
  template <class Body>
  void for_panels(const Input& x, int panels, PhaseCursor& cursor, Body&& body);
  template <class Body>
  void product(const Matrix& matrix, Input x, PhaseCursor& cursor, Body&& body);
  void rope_and_write_kv(const Batch& batch, const Layer& layer, PhaseCursor& cursor);
  void rope_and_write_token(const Batch& batch, const Layer& layer, int token);
  void norm_heads(float* heads, int count, const std::vector<float>& norm) const;
  void apply_rope(float* head, const Rope& rope, int64_t position, float scale) const;
  void attend(const Batch& batch, const Layer& layer, PhaseCursor& cursor);
  void attend(const Batch& batch, const Layer& layer, const Task& task, int thread);
  void merge_splits(const AttentionPlan& plan, PhaseCursor& cursor);
  void merge(const Merge& merge);
  void write_heads(const float* out, const float* sums, int rows, int width, long row, int head);
  void add_product(const Matrix& matrix, const Input& x, const std::vector<float>& norm,
                   PhaseCursor& cursor);
  void feed_forward(const Layer& layer, Input x, PhaseCursor& cursor);
  void write_states(const Batch& batch, PhaseCursor& cursor);
  void compute_logits(const Input& x, float* logits, PhaseCursor& cursor);
  const Matrix& head() const { return head_.out != 0 ? head_ : embedding_; }

  const Config config_;
  const Shape shape_;
  const Attention attention_;
  const int hidden_stride_, qkv_size_, qkv_stride_, q_size_, ffn_stride_;
  Arena arena_;
  std::vector<Layer> layers_;
  Matrix embedding_, head_;
  std::vector<float> final_norm_;
  Rope ropes_[kRopes];
  Buffer<float> hidden_, branch_, qkv_, queries_, attended_, activated_;
  Buffer<float> splits_, split_maxima_, split_sums_;
  PreparedRows prepared_;
  std::vector<PreparedRows> thread_prepared_;
  std::vector<Buffer<float>> outs_;
  std::vector<Scratch> scratch_;
  std::vector<AttentionPlan> plans_{AttentionPlan{kNoWindow, {}, {}}};
  int split_count_ = 0;
  std::mutex adapters_mutex_;
  std::map<int, std::unique_ptr<Adapter>> adapters_;
  std::vector<Segment> segments_;
  std::array<std::vector<DownPiece>, kModules> down_pieces_;
  Buffer<float> low_;  // A x of each row
  int low_stride_ = 0;
  Pool pool_;
};

}  // namespace ps
