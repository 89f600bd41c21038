// What Python hands to a decoder before the first step: matrices, norms, rotations, layers.

#include "decoder.h"

namespace ps {

Matrix& Decoder::matrix(int layer, MatrixName which) {
  switch (which) {
    case MatrixName::kQkv:
      return layers_[layer].qkv;
    case MatrixName::kOut:
      return layers_[layer].out;
    case MatrixName::kGate:
      return layers_[layer].gate;
    case MatrixName::kUp:
      return layers_[layer].up;
    case MatrixName::kDown:
      return layers_[layer].down;
    case MatrixName::kHead:
      return head_;
    default:
      return embedding_;
  }
}

int Decoder::outputs_of(MatrixName which) const {
  switch (which) {
    case MatrixName::kQkv:
      return qkv_size_;
    case MatrixName::kGate:
    case MatrixName::kUp:
      return config_.ffn;
    case MatrixName::kOut:
    case MatrixName::kDown:
      return config_.hidden;
    default:
      return config_.vocab;
  }
}

int Decoder::inputs_of(MatrixName which) const {
  if (which == MatrixName::kOut) return q_size_;
  return which == MatrixName::kDown ? config_.ffn : config_.hidden;
}

void Decoder::set_matrix(int layer, MatrixName which, const float* weight, const float* bias) {
  matrix(layer, which).pack(weight, bias, outputs_of(which), inputs_of(which),
                            Kind(config_.weights_kind), arena_);
}

void Decoder::set_part(int layer, MatrixName which, const StoredPart& part) {
  Matrix& to = matrix(layer, which);
  if (part.first == 0) to.begin(outputs_of(which), inputs_of(which));
  to.add(part, arena_);
}

void Decoder::set_order(int layer, MatrixName which, const int32_t* order) {
  matrix(layer, which).set_order(order);
}

void Decoder::set_norm(int layer, NormName which, const float* weight) {
  const int hidden = config_.hidden, dim = config_.head_dim;
  const bool wide = config_.wide_norms;
  switch (which) {
    case NormName::kInput:
      return layers_[layer].input_norm.assign(weight, weight + hidden);
    case NormName::kQuery:
      return layers_[layer].query_norm.assign(weight, weight + (wide ? config_.heads : 1) * dim);
    case NormName::kKey:
      return layers_[layer].key_norm.assign(weight, weight + (wide ? config_.kv_heads : 1) * dim);
    case NormName::kFfn:
      return layers_[layer].ffn_norm.assign(weight, weight + hidden);
    case NormName::kFinal:
      return final_norm_.assign(weight, weight + hidden);
    case NormName::kOut:
      return layers_[layer].out_norm.assign(weight, weight + hidden);
    case NormName::kFfnOut:
      return layers_[layer].ffn_out_norm.assign(weight, weight + hidden);
  }
}

void Decoder::set_rope(int which, const float* cos, const float* sin, int positions) {
  const size_t count = size_t(positions) * (config_.rotary_dim / 2);
  ropes_[which].cos.assign(cos, cos + count);
  ropes_[which].sin.assign(sin, sin + count);
}

void Decoder::set_layer(int layer, int window, int rope) {
  auto same = [&](const AttentionPlan& plan) { return plan.window == window; };
  const auto found = std::find_if(plans_.begin(), plans_.end(), same);
  layers_[layer].plan = int(found - plans_.begin());
  layers_[layer].rope = rope;
  if (found == plans_.end()) plans_.push_back({window, {}, {}});
}

}  // namespace ps
