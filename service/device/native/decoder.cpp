#include "decoder.h"

namespace ps {

namespace {

constexpr int kOwnRows = 4;  // so few rows each thread normalises for itself: cheaper than waiting

void rms_norm(const float* from, const float* weight, int count, float eps, float* to) {
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

}  // namespace

Decoder::Decoder(const Config& config)
    : config_(config),
      shape_{config.heads, config.kv_heads, config.head_dim},
      attention_(shape_, Kind(config.cache_kind)),
      hidden_stride_(padded(config.hidden)),
      qkv_size_((config.heads + 2 * config.kv_heads) * config.head_dim),
      qkv_stride_(padded(qkv_size_)),
      q_size_(config.heads * config.head_dim),
      ffn_stride_(padded(config.ffn)),
      layers_(config.layers),
      own_normed_(config.threads),
      outs_(config.threads),
      own_digits_(config.threads),
      scratch_(config.threads),
      pool_(config.threads) {
  for (int i = 0; i < config.threads; i++) {
    own_normed_[i].resize(size_t(kOwnRows) * hidden_stride_);
    outs_[i].resize(size_t(kQueryTokens) * shape_.share() * padded(shape_.dim));
    own_digits_[i].resize(kOwnRows, std::max({config.hidden, config.ffn, q_size_}));
    scratch_[i].resize(shape_);
  }
}

Matrix& Decoder::matrix(int layer, Which which) {
  switch (which) {
    case Which::kQkv:
      return layers_[layer].qkv;
    case Which::kOut:
      return layers_[layer].out;
    case Which::kGate:
      return layers_[layer].gate;
    case Which::kUp:
      return layers_[layer].up;
    case Which::kDown:
      return layers_[layer].down;
    case Which::kHead:
      return head_;
    default:
      return embedding_;
  }
}

void Decoder::set_matrix(int layer, Which which, const float* weight, const float* bias) {
  const Config& c = config_;
  const int out = which == Which::kQkv                              ? qkv_size_
                  : which == Which::kGate || which == Which::kUp    ? c.ffn
                  : which == Which::kOut || which == Which::kDown   ? c.hidden
                                                                    : c.vocab;
  const int in = which == Which::kOut ? q_size_ : which == Which::kDown ? c.ffn : c.hidden;
  matrix(layer, which).pack(weight, bias, out, in, Kind(c.weights_kind), arena_);
}

void Decoder::set_norm(int layer, Norm which, const float* weight) {
  const int hidden = config_.hidden, dim = config_.head_dim;
  switch (which) {
    case Norm::kInput:
      return layers_[layer].input_norm.assign(weight, weight + hidden);
    case Norm::kQuery:
      return layers_[layer].query_norm.assign(weight, weight + dim);
    case Norm::kKey:
      return layers_[layer].key_norm.assign(weight, weight + dim);
    case Norm::kFfn:
      return layers_[layer].ffn_norm.assign(weight, weight + hidden);
    case Norm::kFinal:
      return final_norm_.assign(weight, weight + hidden);
  }
}

void Decoder::set_rope(const float* cos, const float* sin, int positions) {
  const size_t count = size_t(positions) * (config_.head_dim / 2);
  cos_.assign(cos, cos + count);
  sin_.assign(sin, sin + count);
}

void Decoder::reserve(const Batch& batch) {
  const size_t tokens = batch.tokens;
  hidden_.resize(tokens * hidden_stride_);
  normed_.resize(std::max(tokens, size_t(batch.samples)) * hidden_stride_);
  qkv_.resize(tokens * qkv_stride_);
  queries_.resize(tokens * q_size_);
  mixed_.resize(tokens * q_size_);
  acted_.resize(tokens * ffn_stride_);
  last_.resize(size_t(batch.samples) * hidden_stride_);
  if (Kind(config_.weights_kind) == Kind::kInt8)
    digits_.resize(std::max(tokens, size_t(batch.samples)),
                   std::max({config_.hidden, config_.ffn, q_size_}));
  const size_t share = shape_.share();
  parts_.resize(part_count_ * share * padded(shape_.dim));
  part_tops_.resize(part_count_ * share);
  part_sums_.resize(part_count_ * share);
}

// A wrong place would be a crash or another sequence's numbers; it is a few compares a token.
void Decoder::check(const Batch& batch) const {
  auto require = [](bool holds, const char* what) {
    if (!holds) throw std::out_of_range(what);
  };
  const int64_t positions = int64_t(cos_.size()) / (config_.head_dim / 2);
  const int64_t cells = int64_t(batch.cache_pages) * kPage;
  for (int t = 0; t < batch.tokens; t++) {
    require(batch.token_ids[t] >= 0 && batch.token_ids[t] < config_.vocab, "a token id");
    require(batch.positions[t] >= 0 && batch.positions[t] < positions, "a position");
    require(batch.cells[t] >= 0 && batch.cells[t] < cells, "a cache cell");
  }
  for (int i = 0; i < batch.samples; i++)
    require(batch.sampled[i] >= 0 && batch.sampled[i] < batch.tokens, "a sampled row");
  for (int s = 0; s < batch.spans; s++) {
    const Span& span = batch.span[s];
    require(span.begin >= 0 && span.begin + span.query_tokens <= batch.tokens, "a span");
    const int pages = (span.context_tokens + span.query_tokens + kPage - 1) / kPage;
    for (int i = 0; i < pages; i++) {
      const int64_t page = batch.pages[span.first_page + i];
      require(page >= 0 && page < batch.cache_pages, "a cache page");
    }
  }
}

void Decoder::forward(const Batch& batch) {
  check(batch);
  plan_attention(batch);
  reserve(batch);
  pool_.run([&](int thread) { step(batch, thread); });
}

void Decoder::step(const Batch& batch, int thread) {
  embed(batch);
  pool_.barrier();
  for (const Layer& layer : layers_) layer_step(batch, layer, thread);
  if (batch.samples > 0) finish(batch, thread);
}

void Decoder::layer_step(const Batch& batch, const Layer& layer, int thread) {
  const int rows = batch.tokens;
  Rows x = normalise(hidden_.data(), layer.input_norm, rows, thread);
  for_panels(pool_, rows, layer.qkv.panels(), [&](int panel, int first, int height) {
    float sums[kMostBlockRows * kGroup];
    layer.qkv.multiply(panel, x, first, height, sums);
    for (int r = 0; r < height; r++)
      std::memcpy(qkv_.data() + long(first + r) * qkv_stride_ + panel * kGroup, sums + r * kGroup,
                  kGroup * sizeof(float));
  });
  pool_.barrier();
  turn_and_store(batch, layer);
  pool_.barrier();
  attend(batch, layer, thread);
  pool_.barrier();
  if (!merges_.empty()) {
    merge_parts();
    pool_.barrier();
  }
  add_product(layer.out, as_rows(mixed_.data(), q_size_, q_size_, rows, thread), rows);
  pool_.barrier();
  x = normalise(hidden_.data(), layer.ffn_norm, rows, thread);
  feed_forward(layer, x, rows);
  pool_.barrier();
  add_product(layer.down, as_rows(acted_.data(), ffn_stride_, config_.ffn, rows, thread), rows);
  pool_.barrier();
}

void Decoder::embed(const Batch& batch) {
  for (int token; (token = pool_.take()) < batch.tokens;) {
    float* row = hidden_.data() + long(token) * hidden_stride_;
    embedding_.row(int(batch.token_ids[token]), row);
    std::fill(row + config_.hidden, row + hidden_stride_, 0.0f);
  }
}

Rows Decoder::normalise(const float* from, const std::vector<float>& weight, int rows,
                        int thread) {
  const bool own = rows <= kOwnRows;
  float* to = own ? own_normed_[thread].data() : normed_.data();
  auto one = [&](int row) {
    const long at = long(row) * hidden_stride_;
    rms_norm(from + at, weight.data(), config_.hidden, config_.norm_eps, to + at);
  };
  if (own) {
    for (int row = 0; row < rows; row++) one(row);
  } else {
    for (int row; (row = pool_.take()) < rows;) one(row);
    pool_.barrier();
  }
  return as_rows(to, hidden_stride_, config_.hidden, rows, thread);
}

// Rows as the matrices want them: int8 weights are multiplied by integers.
Rows Decoder::as_rows(const float* from, long stride, int count, int rows, int thread) {
  if (Kind(config_.weights_kind) != Kind::kInt8) return {from, stride, nullptr, 0, nullptr};
  const bool own = rows <= kOwnRows;
  Digits& digits = own ? own_digits_[thread] : digits_;
  const int to_stride = digit_stride(count);
  auto one = [&](int row) {
    digits.steps.data()[row] = to_digits(from + row * stride, count, to_stride,
                                         digits.numbers.data() + long(row) * to_stride);
  };
  if (own) {
    for (int row = 0; row < rows; row++) one(row);
  } else {
    for (int row; (row = pool_.take()) < rows;) one(row);
    pool_.barrier();
  }
  return {from, stride, digits.numbers.data(), to_stride, digits.steps.data()};
}

// Normalise where the family does, and turn the pairs that lie half a head apart.
void Decoder::turn(float* head, const std::vector<float>& norm, int64_t position,
                   float scale) const {
  const int dim = shape_.dim, half = dim / 2;
  if (!norm.empty()) rms_norm(head, norm.data(), dim, config_.norm_eps, head);
  const float* cos = &cos_[size_t(position) * half];
  const float* sin = &sin_[size_t(position) * half];
  for (int i = 0; i < half; i++) {
    const float first = head[i], second = head[half + i];
    head[i] = (first * cos[i] - second * sin[i]) * scale;
    head[half + i] = (second * cos[i] + first * sin[i]) * scale;
  }
}

void Decoder::turn_and_store(const Batch& batch, const Layer& layer) {
  const int dim = shape_.dim, share = shape_.share();
  const float scale = 1.0f / std::sqrt(float(dim));
  for (int token; (token = pool_.take()) < batch.tokens;) {
    float* row = qkv_.data() + long(token) * qkv_stride_;
    const int64_t position = batch.positions[token];
    for (int h = 0; h < shape_.heads; h++) {
      turn(row + h * dim, layer.query_norm, position, scale);
      const long at = (long(h / share) * batch.tokens + token) * share + h % share;
      std::memcpy(queries_.data() + at * dim, row + h * dim, dim * sizeof(float));
    }
    const int page = int(batch.cells[token] / kPage), within = int(batch.cells[token] % kPage);
    for (int h = 0; h < shape_.kv_heads; h++) {
      float* key = row + q_size_ + h * dim;
      turn(key, layer.key_norm, position, 1.0f);
      attention_.cache().write(layer.cache, page, within, h, key, key + shape_.kv_heads * dim);
    }
  }
}

void Decoder::add_product(const Matrix& matrix, const Rows& x, int rows) {
  for_panels(pool_, rows, matrix.panels(), [&](int panel, int first, int height) {
    float sums[kMostBlockRows * kGroup];
    matrix.multiply(panel, x, first, height, sums);
    for (int r = 0; r < height; r++) {
      float* to = hidden_.data() + long(first + r) * hidden_stride_ + panel * kGroup;
      for (int i = 0; i < kGroup; i++) to[i] += sums[r * kGroup + i];
    }
  });
}

void Decoder::feed_forward(const Layer& layer, const Rows& x, int rows) {
  for_panels(pool_, rows, layer.gate.panels(), [&](int panel, int first, int height) {
    float gate[kMostBlockRows * kGroup], up[kMostBlockRows * kGroup];
    layer.gate.multiply(panel, x, first, height, gate);
    layer.up.multiply(panel, x, first, height, up);
    for (int r = 0; r < height; r++) {
      float* to = acted_.data() + long(first + r) * ffn_stride_ + panel * kGroup;
      for (int i = 0; i < kGroup; i += kWidth) {
        Floats g = load<Floats>(gate + r * kGroup + i), u = load<Floats>(up + r * kGroup + i);
        store(to + i, g / (1.0f + exponential(-g)) * u);
      }
    }
  });
}

void Decoder::finish(const Batch& batch, int thread) {
  for (int i; (i = pool_.take()) < batch.samples;)
    std::memcpy(last_.data() + long(i) * hidden_stride_,
                hidden_.data() + batch.sampled[i] * hidden_stride_, hidden_stride_ * sizeof(float));
  pool_.barrier();
  Rows x = normalise(last_.data(), final_norm_, batch.samples, thread);
  const int vocab = config_.vocab;
  for_panels(pool_, batch.samples, head().panels(), [&](int panel, int first, int height) {
    float sums[kMostBlockRows * kGroup];
    head().multiply(panel, x, first, height, sums);
    const int count = std::min(kGroup, vocab - panel * kGroup);
    for (int r = 0; r < height; r++)
      std::memcpy(batch.logits + long(first + r) * vocab + panel * kGroup, sums + r * kGroup,
                  count * sizeof(float));
  });
}

}  // namespace ps
