// Adapters of a decoder: they are packed and freed, and take part in a step.

#include "decoder.h"

namespace ps {

namespace {

// Outputs of the decoder's matrices that are one module.
struct ModuleShape {
  int inputs;
  std::vector<int> parts;
  bool separate;  // a matrix for each part
};

ModuleShape shape_of(Module module, const Config& c) {
  const int q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  switch (module) {
    case Module::kQkv:
      return {c.hidden, {q, kv, kv}, false};
    case Module::kOut:
      return {q, {c.hidden}, false};
    case Module::kGateUp:
      return {c.hidden, {c.ffn, c.ffn}, true};
    default:
      return {c.ffn, {c.hidden}, false};
  }
}

void plan(LowRank& low, const ModuleShape& shape, int rank) {
  low.rank = rank;
  low.down.plan(rank * int(shape.parts.size()), shape.inputs);
  if (!shape.separate) return low.up[0].plan(shape.parts, 0, rank);
  for (size_t i = 0; i < shape.parts.size(); i++) low.up[i].plan({shape.parts[i]}, int(i), rank);
}

size_t bytes(const LowRank& low, Kind kind) {
  return low.down.bytes(kind) + low.up[0].bytes(kind) + low.up[1].bytes(kind);
}

void pack(LowRank& low, const ModuleShape& shape, const AdapterMatrices& from, Kind kind,
          uint8_t*& memory) {
  const int downs = low.rank * int(shape.parts.size());
  low.scales.assign(padded(downs), 0.0f);
  std::copy(from.scales, from.scales + downs, low.scales.begin());
  low.down.pack({from.down, kind}, 0, downs, shape.inputs, memory);
  int outputs = 0;
  for (int size : shape.parts) outputs += size;
  if (!shape.separate) return low.up[0].pack({from.up, kind}, 0, outputs, low.rank, memory);
  for (size_t i = 0, row = 0; i < shape.parts.size(); row += shape.parts[i++])
    low.up[i].pack({from.up, kind}, int(row), shape.parts[i], low.rank, memory);
}

}  // namespace

size_t Decoder::place_adapter(int number, const AdapterMatrices* matrices, int count, Kind kind) {
  auto adapter = std::make_unique<Adapter>();
  adapter->layers.resize(layers_.size());
  for (int i = 0; i < count; i++) {
    const AdapterMatrices& one = matrices[i];
    const ModuleShape shape = shape_of(Module(one.module), config_);
    LowRank& low = adapter->layers.at(one.layer).at(one.module);
    plan(low, shape, one.rank);
    adapter->bytes += bytes(low, kind);
    int& panels = adapter->down_panels[one.module];
    panels = std::max(panels, low.down.count());
    adapter->low_count = std::max(adapter->low_count, low.down.count() * kGroup);
  }
  adapter->memory.resize(adapter->bytes);
  uint8_t* memory = adapter->memory.data();
  for (int i = 0; i < count; i++) {
    const AdapterMatrices& one = matrices[i];
    pack(adapter->layers[one.layer][one.module], shape_of(Module(one.module), config_), one, kind,
         memory);
  }
  const size_t taken = adapter->bytes;
  std::lock_guard<std::mutex> hold(adapters_mutex_);
  if (!adapters_.emplace(number, std::move(adapter)).second)
    throw std::out_of_range("an adapter's number");
  return taken;
}

void Decoder::drop_adapter(int number) {
  std::unique_ptr<Adapter> dropped;  // freed when nobody waits for the lock
  std::lock_guard<std::mutex> hold(adapters_mutex_);
  const auto found = adapters_.find(number);
  if (found == adapters_.end()) throw std::out_of_range("an adapter's number");
  dropped = std::move(found->second);
  adapters_.erase(found);
}

// Which panels of A are multiplied with which rows, for each module.
void Decoder::plan_adapters(const Batch& batch) {
  segments_.clear();
  for (auto& pieces : down_pieces_) pieces.clear();
  if (batch.segments == 0) return;
  low_stride_ = 0;
  {
    std::lock_guard<std::mutex> hold(adapters_mutex_);
    for (int i = 0; i < batch.segments; i++) {
      const AdapterSegment& one = batch.segment[i];
      const auto found = adapters_.find(one.number);
      if (found == adapters_.end() || one.begin < 0 || one.rows < 0 ||
          one.begin + one.rows > batch.tokens)
        throw std::out_of_range("an adapter's rows");
      segments_.push_back({found->second.get(), one.begin, one.rows});
      low_stride_ = std::max(low_stride_, found->second->low_count);
    }
  }
  for (const Segment& one : segments_)
    for (int module = 0; module < kModules; module++)
      for (int first = 0; first < one.rows; first += kRowBlock)
        for (int panel = 0; panel < one.adapter->down_panels[module]; panel++)
          down_pieces_[module].push_back({one.adapter, panel, one.begin + first,
                                          std::min(kRowBlock, one.rows - first)});
  low_.resize(size_t(batch.tokens) * low_stride_);
}

// A times the rows of one piece.
void Decoder::multiply_down(const Rows& rows, const Adapted& at, const DownPiece& piece) {
  const LowRank& low = piece.adapter->layers[at.layer][int(at.module)];
  if (piece.panel >= low.down.count()) return;
  float sums[kRowBlock * kGroup];
  low.down.multiply(piece.panel, rows.floats + piece.first * rows.stride, rows.stride, piece.rows,
                    sums, false);
  const float* scales = low.scales.data() + piece.panel * kGroup;
  for (int r = 0; r < piece.rows; r++) {
    float* to = low_.data() + long(piece.first + r) * low_stride_ + piece.panel * kGroup;
    for (int i = 0; i < kGroup; i++) to[i] = sums[r * kGroup + i] * scales[i];
  }
}

// Adds B to the sums [height][16] that rows [first, first + height) have of a panel.
void Decoder::add_low_rank(const Adapted& at, int matrix, int panel, int first, int height,
                           float* sums) const {
  if (at.layer < 0) return;
  for (const Segment& one : segments_) {
    const int from = std::max(first, one.begin);
    const int to = std::min(first + height, one.begin + one.rows);
    const LowRank& low = one.adapter->layers[at.layer][int(at.module)];
    if (from >= to || low.rank == 0) continue;
    low.up[matrix].prefetch(panel + 1);
    low.up[matrix].multiply(panel, low_.data() + long(from) * low_stride_, low_stride_, to - from,
                            sums + (from - first) * kGroup, true);
  }
}

}  // namespace ps
