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
      own_ready_(config.threads),
      outs_(config.threads),
      scratch_(config.threads),
      pool_(config.threads) {
  for (int i = 0; i < config.threads; i++) {
    resize(own_ready_[i], kOwnRows);
    outs_[i].resize(size_t(kQueryTokens) * shape_.share() * padded(shape_.dim));
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
  resize(ready_, std::max(tokens, size_t(batch.samples)));
  qkv_.resize(tokens * qkv_stride_);
  queries_.resize(tokens * q_size_);
  mixed_.resize(tokens * q_size_);
  acted_.resize(tokens * ffn_stride_);
  const size_t share = shape_.share();
  parts_.resize(part_count_ * share * padded(shape_.dim));
  part_tops_.resize(part_count_ * share);
  part_sums_.resize(part_count_ * share);
}

void Decoder::resize(Ready& ready, size_t rows) const {
  ready.normed.resize(rows * hidden_stride_);
  if (Kind(config_.weights_kind) != Kind::kInt8) return;
  ready.digits.resize(rows * digit_stride(std::max({config_.hidden, config_.ffn, q_size_})));
  ready.steps.resize(rows);
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
  pool_.run([&](Place& place) { step(batch, place); });
}

void Decoder::step(const Batch& batch, Place& place) {
  embed(batch, place);
  for (const Layer& layer : layers_) layer_step(batch, layer, place);
  predict(batch, place);
}

void Decoder::layer_step(const Batch& batch, const Layer& layer, Place& place) {
  const int rows = batch.tokens;
  Input x{hidden_.data(), hidden_stride_, config_.hidden, rows, layer.input_norm.data(), nullptr};
  product(layer.qkv, x, place, [&](int panel, int first, int height, const float* sums) {
    for (int r = 0; r < height; r++)
      std::memcpy(qkv_.data() + long(first + r) * qkv_stride_ + panel * kGroup, sums + r * kGroup,
                  kGroup * sizeof(float));
  });
  turn_and_store(batch, layer, place);
  attend(batch, layer, place);
  merge_parts(place);
  add_product(layer.out, {mixed_.data(), q_size_, q_size_, rows, nullptr, nullptr}, place);
  x.norm = layer.ffn_norm.data();
  feed_forward(layer, x, place);
  add_product(layer.down, {acted_.data(), ffn_stride_, config_.ffn, rows, nullptr, nullptr}, place);
}

void Decoder::embed(const Batch& batch, Place& place) {
  pool_.phase(place, batch.tokens, [&](int begin, int end) {
    for (int token = begin; token < end; token++) {
      float* row = hidden_.data() + long(token) * hidden_stride_;
      embedding_.row(int(batch.token_ids[token]), row);
      std::fill(row + config_.hidden, row + hidden_stride_, 0.0f);
    }
  });
}

void Decoder::make_ready(const Input& x, int row, Ready& to) const {
  const float* from = x.at(row);
  if (x.norm != nullptr) {
    float* normed = to.normed.data() + long(row) * hidden_stride_;
    rms_norm(from, x.norm, x.count, config_.norm_eps, normed);
    from = normed;
  }
  if (Kind(config_.weights_kind) != Kind::kInt8) return;
  const int stride = digit_stride(x.count);
  to.steps.data()[row] = to_digits(from, x.count, stride, to.digits.data() + long(row) * stride);
}

// A phase of every panel and block of rows. Before it the rows are made ready, all together, or
// when they are few by each thread that has work to do: cheaper than waiting.
template <class Body>
void Decoder::panels(const Input& x, int panels, Place& place, Body&& body) {
  if (x.rows == 0) return;
  const bool is_int8 = Kind(config_.weights_kind) == Kind::kInt8;
  const bool own = x.rows <= kOwnRows;
  bool is_ready = !own;
  Ready& ready = own ? own_ready_[place.thread] : ready_;
  if (!own && (is_int8 || x.norm != nullptr))
    pool_.phase(place, x.rows, [&](int begin, int end) {
      for (int row = begin; row < end; row++) make_ready(x, row, ready);
    });
  const bool normed = x.norm != nullptr;
  const Rows rows{normed ? ready.normed.data() : x.from, normed ? hidden_stride_ : x.stride,
                  ready.digits.data(), digit_stride(x.count), ready.steps.data()};
  const int blocks = x.rows <= kMostBlockRows ? 1 : (x.rows + kRowBlock - 1) / kRowBlock;
  const int block_rows = blocks == 1 ? x.rows : kRowBlock;
  pool_.phase(place, blocks * panels, [&](int begin, int end) {
    for (int row = 0; !is_ready && row < x.rows; row++) make_ready(x, row, ready);
    is_ready = true;
    for (int piece = begin; piece < end; piece++) {
      const int first = piece / panels * block_rows;
      body(rows, piece % panels, first, std::min(block_rows, x.rows - first));
    }
  });
}

// `body(panel, first row, rows, sums [rows][16])` for all of x times a matrix.
template <class Body>
void Decoder::product(const Matrix& matrix, const Input& x, Place& place, Body&& body) {
  panels(x, matrix.panels(), place, [&](const Rows& rows, int panel, int first, int height) {
    float sums[kMostBlockRows * kGroup];
    matrix.multiply(panel, rows, first, height, sums);
    body(panel, first, height, sums);
  });
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

void Decoder::turn_and_store(const Batch& batch, const Layer& layer, Place& place) {
  pool_.phase(place, batch.tokens, [&](int begin, int end) {
    for (int token = begin; token < end; token++) turn_token(batch, layer, token);
  });
}

void Decoder::turn_token(const Batch& batch, const Layer& layer, int token) {
  const int dim = shape_.dim, share = shape_.share();
  const float scale = 1.0f / std::sqrt(float(dim));
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

void Decoder::add_product(const Matrix& matrix, const Input& x, Place& place) {
  product(matrix, x, place, [&](int panel, int first, int height, const float* sums) {
    for (int r = 0; r < height; r++) {
      float* to = hidden_.data() + long(first + r) * hidden_stride_ + panel * kGroup;
      for (int i = 0; i < kGroup; i++) to[i] += sums[r * kGroup + i];
    }
  });
}

void Decoder::feed_forward(const Layer& layer, const Input& x, Place& place) {
  panels(x, layer.gate.panels(), place,
         [&](const Rows& rows, int panel, int first, int height) {
    float gate[kMostBlockRows * kGroup], up[kMostBlockRows * kGroup];
    layer.gate.multiply(panel, rows, first, height, gate);
    layer.up.multiply(panel, rows, first, height, up);
    for (int r = 0; r < height; r++) {
      float* to = acted_.data() + long(first + r) * ffn_stride_ + panel * kGroup;
      for (int i = 0; i < kGroup; i += kWidth) {
        Floats g = load<Floats>(gate + r * kGroup + i), u = load<Floats>(up + r * kGroup + i);
        store(to + i, g / (1.0f + exponential(-g)) * u);
      }
    }
  });
}

// Logits of the sampled rows.
void Decoder::predict(const Batch& batch, Place& place) {
  const int vocab = config_.vocab;
  const Input x{hidden_.data(), hidden_stride_,      config_.hidden,
                batch.samples,  final_norm_.data(), batch.sampled};
  product(head(), x, place, [&](int panel, int first, int height, const float* sums) {
    const int count = std::min(kGroup, vocab - panel * kGroup);
    for (int r = 0; r < height; r++)
      std::memcpy(batch.logits + long(first + r) * vocab + panel * kGroup, sums + r * kGroup,
                  count * sizeof(float));
  });
}

}  // namespace ps
