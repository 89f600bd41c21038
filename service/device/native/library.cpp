// The C interface that Python loads. Every call returns 0 or an error code.

#include "decoder.h"

namespace {

enum ErrorCode { kDone = 0, kNoMemory = 1, kFailed = 2, kOutOfBounds = 3 };

template <class Body>
int guarded(Body&& body) {
  try {
    body();
    return kDone;
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  } catch (const std::out_of_range&) {
    return kOutOfBounds;
  } catch (...) {
    return kFailed;
  }
}

ps::Decoder* decoder(void* handle) { return static_cast<ps::Decoder*>(handle); }

}  // namespace

extern "C" {


int ps_create(const ps::Config* config, void** handle) {
  return guarded([&] { *handle = new ps::Decoder(*config); });
}

void ps_destroy(void* handle) { delete decoder(handle); }

int ps_set_matrix(void* handle, int layer, int which, const float* weight, const float* bias) {
  return guarded([&] { decoder(handle)->set_matrix(layer, ps::MatrixName(which), weight, bias); });
}

int ps_set_part(void* handle, int layer, int which, const ps::StoredPart* part) {
  return guarded([&] { decoder(handle)->set_part(layer, ps::MatrixName(which), *part); });
}

int ps_set_order(void* handle, int layer, int which, const int32_t* order) {
  return guarded([&] { decoder(handle)->set_order(layer, ps::MatrixName(which), order); });
}

int ps_set_norm(void* handle, int layer, int which, const float* weight) {
  return guarded([&] { decoder(handle)->set_norm(layer, ps::NormName(which), weight); });
}

int ps_set_rope(void* handle, int which, const float* cos, const float* sin, int positions) {
  return guarded([&] { decoder(handle)->set_rope(which, cos, sin, positions); });
}

int ps_set_layer(void* handle, int layer, int window, int rope) {
  return guarded([&] { decoder(handle)->set_layer(layer, window, rope); });
}

int ps_set_cache(void* handle, int layer, void* keys, void* values, float* key_scales,
                 float* value_scales) {
  const ps::LayerCache cache{static_cast<uint8_t*>(keys), static_cast<uint8_t*>(values), key_scales,
                             value_scales};
  return guarded([&] { decoder(handle)->set_cache(layer, cache); });
}

int ps_place_adapter(void* handle, int number, const ps::AdapterMatrices* matrices, int count,
                     int kind, int64_t* bytes) {
  return guarded([&] {
    *bytes = int64_t(decoder(handle)->place_adapter(number, matrices, count, ps::Kind(kind)));
  });
}

int ps_drop_adapter(void* handle, int number) {
  return guarded([&] { decoder(handle)->drop_adapter(number); });
}

int ps_forward(void* handle, const ps::Batch* batch) {
  return guarded([&] { decoder(handle)->forward(*batch); });
}

int ps_head(void* handle, const float* states, int rows, float* logits) {
  return guarded([&] { decoder(handle)->logits_of_states(states, rows, logits); });
}
}
