// Rotation, and the attention phase of a step: its work is split, done by all threads, and merged.

#include "decoder.h"

namespace ps {

// Normalise queries or keys of one token where the family does: each head, or all of them together.
void Decoder::norm_heads(float* heads, int count, const std::vector<float>& norm) const {
  if (norm.empty()) return;
  const int width = int(norm.size());
  for (float* end = heads + count * shape_.dim; heads < end; heads += width)
    rms_norm(heads, norm.data(), width, config_.norm_eps, heads);
}

// Rotate the pairs that lie half of the rotated values apart.
void Decoder::apply_rope(float* head, const Rope& rope, int64_t position, float scale) const {
  const int half = config_.rotary_dim / 2;
  const float* cos = &rope.cos[size_t(position) * half];
  const float* sin = &rope.sin[size_t(position) * half];
  for (int i = 0; i < half; i++) {
    const float first = head[i], second = head[half + i];
    head[i] = (first * cos[i] - second * sin[i]) * scale;
    head[half + i] = (second * cos[i] + first * sin[i]) * scale;
  }
  for (int i = 2 * half; i < shape_.dim; i++) head[i] *= scale;
}

void Decoder::rope_and_write_kv(const Batch& batch, const Layer& layer, PhaseCursor& cursor) {
  pool_.phase(cursor, batch.tokens, [&](int begin, int end) {
    for (int token = begin; token < end; token++) rope_and_write_token(batch, layer, token);
  });
}

void Decoder::rope_and_write_token(const Batch& batch, const Layer& layer, int token) {
  const int dim = shape_.dim, group_size = shape_.group_size();
  const float scale = config_.attention_scale;
  const Rope& rope = ropes_[layer.rope];
  float* row = qkv_.data() + long(token) * qkv_stride_;
  norm_heads(row, shape_.heads, layer.query_norm);
  norm_heads(row + q_size_, shape_.kv_heads, layer.key_norm);
  const int64_t position = batch.positions[token];
  for (int h = 0; h < shape_.heads; h++) {
    apply_rope(row + h * dim, rope, position, scale);
    const long at = (long(h / group_size) * batch.tokens + token) * group_size + h % group_size;
    std::memcpy(queries_.data() + at * dim, row + h * dim, dim * sizeof(float));
  }
  const int64_t slot = batch.slot_mapping[token];
  const int page = int(slot / kPage), within = int(slot % kPage);
  for (int h = 0; h < shape_.kv_heads; h++) {
    float* key = row + q_size_ + h * dim;
    apply_rope(key, rope, position, 1.0f);
    attention_.cache().write(layer.cache, page, within, h, key, key + shape_.kv_heads * dim);
  }
}

// Prompt chunks are cut into tiles of query tokens, the last and longest first. The long context of
// a decode row is split while there are too few rows to keep all threads busy. Work begins at the
// page in which the window of the first query of a tile begins.
void Decoder::plan_attention(const Batch& batch, AttentionPlan& plan) {
  plan.tasks.clear();
  plan.merges.clear();
  int split_count = 0;
  const int enough_tasks = pool_.threads() * 4;
  for (int s = 0; s < batch.spans; s++) {
    const Span& span = batch.span[s];
    const int context = span.context_tokens + span.query_tokens;
    const int begin = std::max(0, context - plan.window) / kPage * kPage;
    const int pages = (context - begin + kPage - 1) / kPage;
    const int rows = batch.spans * shape_.kv_heads;
    const int splits = std::min(pages / kSplitPages, (enough_tasks + rows - 1) / rows);
    if (span.query_tokens == 1 && splits > 1) {
      const int step = (pages + splits - 1) / splits * kPage;
      for (int head = 0; head < shape_.kv_heads; head++) {
        const int first = split_count;
        for (int from = begin; from < context; from += step)
          plan.tasks.push_back(
              {s, head, 0, 1, from, std::min(context, from + step), split_count++});
        plan.merges.push_back({span.begin, head, first, split_count - first});
      }
      continue;
    }
    const int last = (span.query_tokens - 1) / kQueryTokens * kQueryTokens;
    for (int first = last; first >= 0; first -= kQueryTokens) {
      const int tokens = std::min(kQueryTokens, span.query_tokens - first);
      const int to = span.context_tokens + first + tokens;
      const int from = std::max(0, to - tokens + 1 - plan.window) / kPage * kPage;
      for (int head = 0; head < shape_.kv_heads; head++)
        plan.tasks.push_back({s, head, first, tokens, from, to, -1});
    }
  }
  split_count_ = std::max(split_count_, split_count);
}

void Decoder::attend(const Batch& batch, const Layer& layer, PhaseCursor& cursor) {
  const std::vector<Task>& tasks = plans_[layer.plan].tasks;
  pool_.phase(cursor, int(tasks.size()), [&](int begin, int end) {
    for (int i = begin; i < end; i++) attend(batch, layer, tasks[i], cursor.thread);
  });
}

void Decoder::attend(const Batch& batch, const Layer& layer, const Task& task, int thread) {
  const int group_size = shape_.group_size(), width = padded(shape_.dim);
  const Span& span = batch.span[task.span];
  const long row = span.begin + task.first;
  const long at = (long(task.head) * batch.tokens + row) * group_size;
  const QueryTile tile{queries_.data() + at * shape_.dim,
                       task.tokens * group_size,
                       task.head,
                       span.context_tokens + task.first + 1,
                       plans_[layer.plan].window,
                       task.from,
                       task.to,
                       batch.pages + span.first_page};
  Scratch& scratch = scratch_[thread];
  if (task.split >= 0) {
    const long first = long(task.split) * group_size;
    attention_.run(tile, layer.cache, scratch, splits_.data() + first * width,
                   split_maxima_.data() + first, split_sums_.data() + first);
    return;
  }
  float* out = outs_[thread].data();
  attention_.run(tile, layer.cache, scratch, out, scratch.maxima.data(), scratch.sums.data());
  write_heads(out, scratch.sums.data(), tile.rows, width, row, task.head);
}

// Divide out [rows = tokens x group_size][width] by its sums, into attended_ [tokens][heads x dim].
void Decoder::write_heads(const float* out, const float* sums, int rows, int width, long row,
                        int head) {
  const int group_size = shape_.group_size(), dim = shape_.dim;
  for (int r = 0; r < rows; r++) {
    const int query_head = head * group_size + r % group_size;
    float* to = attended_.data() + (row + r / group_size) * q_size_ + query_head * dim;
    const float inverse = 1.0f / sums[r];
    for (int d = 0; d < dim; d++) to[d] = out[long(r) * width + d] * inverse;
  }
}

void Decoder::merge_splits(const AttentionPlan& plan, PhaseCursor& cursor) {
  pool_.phase(cursor, int(plan.merges.size()), [&](int begin, int end) {
    for (int i = begin; i < end; i++) merge(plan.merges[i]);
  });
}

void Decoder::merge(const Merge& merge) {
  const int group_size = shape_.group_size(), width = padded(shape_.dim);
  const long begin = long(merge.first) * group_size, end = begin + long(merge.count) * group_size;
  for (int g = 0; g < group_size; g++) {
    float maximum = -INFINITY, total = 0;
    for (long r = begin + g; r < end; r += group_size)
      maximum = std::max(maximum, split_maxima_.data()[r]);
    float* first = splits_.data() + (begin + g) * width;
    for (long r = begin + g; r < end; r += group_size) {
      const float weight = std::exp(split_maxima_.data()[r] - maximum);
      const float* from = splits_.data() + r * width;
      total += weight * split_sums_.data()[r];
      for (int d = 0; d < width; d++)
        first[d] = (r == begin + g ? 0.0f : first[d]) + weight * from[d];
    }
    split_sums_.data()[begin + g] = total;
  }
  write_heads(splits_.data() + begin * width, split_sums_.data() + begin, group_size, width,
              merge.row, merge.head);
}

}  // namespace ps
