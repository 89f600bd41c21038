// The attention phase of a step: its work is split, done by all threads, and merged.

#include "decoder.h"

namespace ps {

// Prompt chunks are cut into tiles of query tokens, the last and longest first. The long context of
// a decode row is split while there are too few rows to keep all threads busy.
void Decoder::plan_attention(const Batch& batch) {
  tasks_.clear();
  merges_.clear();
  split_count_ = 0;
  const int enough_tasks = pool_.threads() * 4;
  for (int s = 0; s < batch.spans; s++) {
    const Span& span = batch.span[s];
    const int context = span.context_tokens + span.query_tokens;
    const int pages = (context + kPage - 1) / kPage;
    const int rows = batch.spans * shape_.kv_heads;
    const int splits = std::min(pages / kSplitPages, (enough_tasks + rows - 1) / rows);
    if (span.query_tokens == 1 && splits > 1) {
      const int step = (pages + splits - 1) / splits * kPage;
      for (int head = 0; head < shape_.kv_heads; head++) {
        const int first = split_count_;
        for (int from = 0; from < context; from += step)
          tasks_.push_back({s, head, 0, 1, from, std::min(context, from + step), split_count_++});
        merges_.push_back({span.begin, head, first, split_count_ - first});
      }
      continue;
    }
    const int last = (span.query_tokens - 1) / kQueryTokens * kQueryTokens;
    for (int first = last; first >= 0; first -= kQueryTokens) {
      const int tokens = std::min(kQueryTokens, span.query_tokens - first);
      const int to = span.context_tokens + first + tokens;
      for (int head = 0; head < shape_.kv_heads; head++)
        tasks_.push_back({s, head, first, tokens, 0, to, -1});
    }
  }
}

void Decoder::attend(const Batch& batch, const Layer& layer, PhaseCursor& cursor) {
  pool_.phase(cursor, int(tasks_.size()), [&](int begin, int end) {
    for (int i = begin; i < end; i++) attend(batch, layer, tasks_[i], cursor.thread);
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

void Decoder::merge_splits(PhaseCursor& cursor) {
  pool_.phase(cursor, int(merges_.size()), [&](int begin, int end) {
    for (int i = begin; i < end; i++) merge(merges_[i]);
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
