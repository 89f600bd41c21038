// The attention phase of a step: how its work is cut, done and put together again.

#include "decoder.h"

namespace ps {

// Prompt chunks are cut into pieces of query tokens, the last and longest first; a decode row
// whose context is long is cut along it while there are too few rows to keep all threads busy.
void Decoder::plan_attention(const Batch& batch) {
  tasks_.clear();
  merges_.clear();
  part_count_ = 0;
  const int busy = pool_.threads() * 4;
  for (int s = 0; s < batch.spans; s++) {
    const Span& span = batch.span[s];
    const int context = span.context_tokens + span.query_tokens;
    const int pages = (context + kPage - 1) / kPage;
    const int rows = batch.spans * shape_.kv_heads;
    const int cuts = std::min(pages / kPartPages, (busy + rows - 1) / rows);
    if (span.query_tokens == 1 && cuts > 1) {
      const int step = (pages + cuts - 1) / cuts * kPage;
      for (int head = 0; head < shape_.kv_heads; head++) {
        const int first = part_count_;
        for (int from = 0; from < context; from += step)
          tasks_.push_back({s, head, 0, 1, from, std::min(context, from + step), part_count_++});
        merges_.push_back({span.begin, head, first, part_count_ - first});
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

void Decoder::attend(const Batch& batch, const Layer& layer, Place& place) {
  pool_.phase(place, int(tasks_.size()), [&](int begin, int end) {
    for (int i = begin; i < end; i++) attend(batch, layer, tasks_[i], place.thread);
  });
}

void Decoder::attend(const Batch& batch, const Layer& layer, const Task& task, int thread) {
  const int share = shape_.share(), width = padded(shape_.dim);
  const Span& span = batch.span[task.span];
  const long row = span.begin + task.first;
  const long at = (long(task.head) * batch.tokens + row) * share;
  const Piece piece{queries_.data() + at * shape_.dim,
                    task.tokens * share,
                    task.head,
                    span.context_tokens + task.first + 1,
                    task.from,
                    task.to,
                    batch.pages + span.first_page};
  Scratch& scratch = scratch_[thread];
  if (task.part >= 0) {
    attention_.run(piece, layer.cache, scratch, parts_.data() + long(task.part) * share * width,
                   part_tops_.data() + task.part * share, part_sums_.data() + task.part * share);
    return;
  }
  float* out = outs_[thread].data();
  attention_.run(piece, layer.cache, scratch, out, scratch.tops.data(), scratch.sums.data());
  put_heads(out, scratch.sums.data(), piece.rows, width, row, task.head);
}

// [rows = tokens x share][width] divided by its sums, to the output's [tokens][heads x dim].
void Decoder::put_heads(const float* out, const float* sums, int rows, int width, long row,
                        int head) {
  const int share = shape_.share(), dim = shape_.dim;
  for (int r = 0; r < rows; r++) {
    float* to = mixed_.data() + (row + r / share) * q_size_ + (head * share + r % share) * dim;
    const float inverse = 1.0f / sums[r];
    for (int d = 0; d < dim; d++) to[d] = out[long(r) * width + d] * inverse;
  }
}

void Decoder::merge_parts(Place& place) {
  pool_.phase(place, int(merges_.size()), [&](int begin, int end) {
    for (int i = begin; i < end; i++) merge(merges_[i]);
  });
}

void Decoder::merge(const Merge& merge) {
  const int share = shape_.share(), width = padded(shape_.dim);
  const long begin = long(merge.first) * share, end = begin + long(merge.count) * share;
  for (int g = 0; g < share; g++) {
    float top = -INFINITY, total = 0;
    for (long r = begin + g; r < end; r += share) top = std::max(top, part_tops_.data()[r]);
    float* first = parts_.data() + (begin + g) * width;
    for (long r = begin + g; r < end; r += share) {
      const float weight = std::exp(part_tops_.data()[r] - top);
      const float* from = parts_.data() + r * width;
      total += weight * part_sums_.data()[r];
      for (int d = 0; d < width; d++)
        first[d] = (r == begin + g ? 0.0f : first[d]) + weight * from[d];
    }
    part_sums_.data()[begin + g] = total;
  }
  put_heads(parts_.data() + begin * width, part_sums_.data() + begin, share, width, merge.row,
            merge.head);
}

}  // namespace ps
