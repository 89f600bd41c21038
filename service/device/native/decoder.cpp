#include "decoder.h"

namespace ps {

namespace {

// Up to so many rows are prepared by each thread for itself, which is cheaper than waiting.
constexpr int kRowsByThread = 4;

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
      thread_prepared_(config.threads),
      outs_(config.threads),
      scratch_(config.threads),
      pool_(config.threads) {
  for (int i = 0; i < config.threads; i++) {
    resize(thread_prepared_[i], kRowsByThread);
    outs_[i].resize(size_t(kQueryTokens) * shape_.group_size() * padded(shape_.dim));
    scratch_[i].resize(shape_);
  }
}

void Decoder::reserve(const Batch& batch) {
  const size_t tokens = batch.tokens;
  hidden_.resize(tokens * hidden_stride_);
  branch_.resize(tokens * hidden_stride_);
  resize(prepared_, std::max(tokens, size_t(batch.samples)));
  qkv_.resize(tokens * qkv_stride_);
  queries_.resize(tokens * q_size_);
  attended_.resize(tokens * q_size_);
  activated_.resize(tokens * ffn_stride_);
  const size_t group_size = shape_.group_size();
  splits_.resize(split_count_ * group_size * padded(shape_.dim));
  split_maxima_.resize(split_count_ * group_size);
  split_sums_.resize(split_count_ * group_size);
}

void Decoder::resize(PreparedRows& prepared, size_t rows) const {
  prepared.normed.resize(rows * hidden_stride_);
  const int longest = std::max({config_.hidden, config_.ffn, q_size_});
  prepared.ordered.resize(rows * longest);
  prepared.quantized.resize(rows * quantized_stride(longest));
  prepared.sums.resize(rows * sums_stride(longest));
  prepared.scales.resize(rows);
}

// A wrong index would crash, or read another sequence's numbers; a check is a few compares a token.
void Decoder::check(const Batch& batch) const {
  auto require = [](bool holds, const char* what) {
    if (!holds) throw std::out_of_range(what);
  };
  const int64_t positions = int64_t(ropes_[0].cos.size()) / (config_.rotary_dim / 2);
  const int64_t slots = int64_t(batch.cache_pages) * kPage;
  for (int t = 0; t < batch.tokens; t++) {
    require(batch.token_ids[t] >= 0 && batch.token_ids[t] < config_.vocab, "a token id");
    require(batch.positions[t] >= 0 && batch.positions[t] < positions, "a position");
    require(batch.slot_mapping[t] >= 0 && batch.slot_mapping[t] < slots, "a cache slot");
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
  split_count_ = 0;
  for (AttentionPlan& plan : plans_) plan_attention(batch, plan);
  plan_adapters(batch);
  reserve(batch);
  pool_.run([&](PhaseCursor& cursor) { step(batch, cursor); });
}

void Decoder::step(const Batch& batch, PhaseCursor& cursor) {
  embed(batch, cursor);
  for (const Layer& layer : layers_) layer_step(batch, layer, cursor);
  if (batch.states != nullptr) return write_states(batch, cursor);
  const Input x{hidden_.data(), hidden_stride_,      config_.hidden,
                batch.samples,  final_norm_.data(), batch.sampled};
  compute_logits(x, batch.logits, cursor);
}

void Decoder::logits_of_states(const float* states, int rows, float* logits) {
  resize(prepared_, rows);
  const Input x{states, config_.hidden, config_.hidden, rows, nullptr, nullptr};
  pool_.run([&](PhaseCursor& cursor) { compute_logits(x, logits, cursor); });
}

void Decoder::layer_step(const Batch& batch, const Layer& layer, PhaseCursor& cursor) {
  const int rows = batch.tokens, index = int(&layer - layers_.data());
  auto norm_of = [](const std::vector<float>& norm) -> const float* {
    return norm.empty() ? nullptr : norm.data();
  };
  Input x{hidden_.data(), hidden_stride_, config_.hidden, rows, norm_of(layer.input_norm), nullptr,
          {index, Module::kQkv}};
  product(layer.qkv, x, cursor, [&](int panel, int first, int height, const float* sums) {
    for (int r = 0; r < height; r++)
      std::memcpy(qkv_.data() + long(first + r) * qkv_stride_ + panel * kGroup, sums + r * kGroup,
                  kGroup * sizeof(float));
  });
  rope_and_write_kv(batch, layer, cursor);
  attend(batch, layer, cursor);
  merge_splits(plans_[layer.plan], cursor);
  add_product(layer.out, {attended_.data(), q_size_, q_size_, rows, nullptr, nullptr,
                          {index, Module::kOut}}, layer.out_norm, cursor);
  x.norm = norm_of(layer.ffn_norm);
  x.adapted.module = Module::kGateUp;
  feed_forward(layer, x, cursor);
  add_product(layer.down, {activated_.data(), ffn_stride_, config_.ffn, rows, nullptr, nullptr,
                           {index, Module::kDown}}, layer.ffn_out_norm, cursor);
}

void Decoder::embed(const Batch& batch, PhaseCursor& cursor) {
  pool_.phase(cursor, batch.tokens, [&](int begin, int end) {
    for (int token = begin; token < end; token++) {
      float* row = hidden_.data() + long(token) * hidden_stride_;
      embedding_.row(int(batch.token_ids[token]), row);
      for (int i = 0; i < config_.hidden; i++) row[i] *= config_.embedding_scale;
      std::fill(row + config_.hidden, row + hidden_stride_, 0.0f);
    }
  });
}

void Decoder::prepare_row(const Input& x, int row, PreparedRows& to) const {
  const float* from = x.at(row);
  if (x.norm != nullptr) {
    float* normed = to.normed.data() + long(row) * hidden_stride_;
    rms_norm(from, x.norm, x.count, config_.norm_eps, normed);
    from = normed;
  }
  if (!x.quantizes) return;
  if (x.order != nullptr) {
    float* ordered = to.ordered.data() + long(row) * x.count;
    for (int k = 0; k < x.count; k++) ordered[k] = from[x.order[k]];
    from = ordered;
  }
  const int stride = quantized_stride(x.count);
  int16_t* quantized = to.quantized.data() + long(row) * stride;
  to.scales.data()[row] = quantize_row(from, x.count, stride, quantized);
  sum_row(quantized, x.count, to.sums.data() + long(row) * sums_stride(x.count));
}

// A phase over every panel and block of rows. Before it the rows are prepared: by all threads
// together, or, when they are few, by each thread for itself.
template <class Body>
void Decoder::for_panels(const Input& x, int panels, PhaseCursor& cursor, Body&& body) {
  if (x.rows == 0) return;
  const bool by_thread = x.rows <= kRowsByThread;
  bool is_prepared = !by_thread;
  PreparedRows& prepared = by_thread ? thread_prepared_[cursor.thread] : prepared_;
  if (!by_thread && (x.quantizes || x.norm != nullptr))
    pool_.phase(cursor, x.rows, [&](int begin, int end) {
      for (int row = begin; row < end; row++) prepare_row(x, row, prepared);
    });
  const bool normed = x.norm != nullptr;
  const Rows rows{normed ? prepared.normed.data() : x.from, normed ? hidden_stride_ : x.stride,
                  prepared.quantized.data(), quantized_stride(x.count), prepared.scales.data(),
                  prepared.sums.data(), sums_stride(x.count)};
  auto prepare_by_thread = [&] {
    for (int row = 0; !is_prepared && row < x.rows; row++) prepare_row(x, row, prepared);
    is_prepared = true;
  };
  if (x.adapted.layer >= 0) {
    const auto& pieces = down_pieces_[int(x.adapted.module)];
    pool_.phase(cursor, int(pieces.size()), [&](int begin, int end) {
      prepare_by_thread();
      for (int i = begin; i < end; i++) multiply_down(rows, x.adapted, pieces[i]);
    });
  }
  const int blocks = x.rows <= kMostBlockRows ? 1 : (x.rows + kRowBlock - 1) / kRowBlock;
  const int block_rows = blocks == 1 ? x.rows : kRowBlock;
  pool_.phase(cursor, blocks * panels, [&](int begin, int end) {
    prepare_by_thread();
    for (int piece = begin; piece < end; piece++) {
      const int first = piece / panels * block_rows;
      body(rows, piece % panels, first, std::min(block_rows, x.rows - first));
    }
  });
}

// `body(panel, first row, rows, sums [rows][16])` for all of x times a matrix.
template <class Body>
void Decoder::product(const Matrix& matrix, Input x, PhaseCursor& cursor, Body&& body) {
  x.suit(matrix);
  for_panels(x, matrix.panels(), cursor, [&](const Rows& rows, int panel, int first, int height) {
    float sums[kMostBlockRows * kGroup];
    matrix.multiply(panel, rows, first, height, sums);
    add_low_rank(x.adapted, 0, panel, first, height, sums);
    body(panel, first, height, sums);
  });
}

// Add a product to the residual; where there is a norm, of whole rows once they are there.
void Decoder::add_product(const Matrix& matrix, const Input& x, const std::vector<float>& norm,
                          PhaseCursor& cursor) {
  const float scale = config_.residual_scale;
  product(matrix, x, cursor, [&](int panel, int first, int height, const float* sums) {
    for (int r = 0; r < height; r++) {
      const long at = long(first + r) * hidden_stride_ + panel * kGroup;
      float* to = (norm.empty() ? hidden_ : branch_).data() + at;
      for (int i = 0; i < kGroup; i++)
        to[i] = norm.empty() ? to[i] + scale * sums[r * kGroup + i] : sums[r * kGroup + i];
    }
  });
  if (norm.empty()) return;
  pool_.phase(cursor, x.rows, [&](int begin, int end) {
    for (long row = begin; row < end; row++) {
      float* branch = branch_.data() + row * hidden_stride_;
      float* to = hidden_.data() + row * hidden_stride_;
      rms_norm(branch, norm.data(), config_.hidden, config_.norm_eps, branch);
      for (int i = 0; i < config_.hidden; i++) to[i] += scale * branch[i];
    }
  });
}

void Decoder::feed_forward(const Layer& layer, Input x, PhaseCursor& cursor) {
  x.suit(layer.gate);
  x.quantizes |= layer.up.takes_integers();
  for_panels(x, layer.gate.panels(), cursor,
         [&](const Rows& rows, int panel, int first, int height) {
    float gate[kMostBlockRows * kGroup], up[kMostBlockRows * kGroup];
    layer.gate.multiply(panel, rows, first, height, gate);
    layer.up.multiply(panel, rows, first, height, up);
    add_low_rank(x.adapted, 0, panel, first, height, gate);
    add_low_rank(x.adapted, 1, panel, first, height, up);
    for (int r = 0; r < height; r++) {
      float* to = activated_.data() + long(first + r) * ffn_stride_ + panel * kGroup;
      for (int i = 0; i < kGroup; i += kWidth) {
        Floats g = load<Floats>(gate + r * kGroup + i), u = load<Floats>(up + r * kGroup + i);
        // a GELU in its tanh form is a SiLU whose sigmoid sees 2 sqrt(2 / pi) (g + 0.044715 g^3)
        Floats z = config_.gelu_gate ? 1.5957691216f * (g + 0.044715f * g * g * g) : g;
        store(to + i, g / (1.0f + exponential(-z)) * u);
      }
    }
  });
}

// The normalised final states of the sampled rows.
void Decoder::write_states(const Batch& batch, PhaseCursor& cursor) {
  pool_.phase(cursor, batch.samples, [&](int begin, int end) {
    for (int row = begin; row < end; row++)
      rms_norm(hidden_.data() + batch.sampled[row] * hidden_stride_, final_norm_.data(),
               config_.hidden, config_.norm_eps, batch.states + long(row) * config_.hidden);
  });
}

void Decoder::compute_logits(const Input& x, float* logits, PhaseCursor& cursor) {
  const int vocab = config_.vocab;
  product(head(), x, cursor, [&](int panel, int first, int height, const float* sums) {
    const int count = std::min(kGroup, vocab - panel * kGroup);
    const float scale = config_.logit_scale, cap = config_.logit_cap;
    for (int r = 0; r < height; r++) {
      float* to = logits + long(first + r) * vocab + panel * kGroup;
      for (int i = 0; i < count; i++) to[i] = scale * sums[r * kGroup + i];
      for (int i = 0; cap > 0 && i < count; i++) to[i] = cap * std::tanh(to[i] / cap);
    }
  });
}

}  // namespace ps
