#include "engine/trace/sublayer_colour.h"

namespace sluice {

Colour colour_of(Sublayer sublayer) {
  switch (sublayer) {
    case Sublayer::embedding:
      return {0.70, 0.70, 0.70};
    case Sublayer::qkv:
      return {0.00, 0.45, 0.70};
    case Sublayer::qk:
    case Sublayer::attention:
      return {0.95, 0.75, 0.20};
    case Sublayer::sv:
      return {0.80, 0.47, 0.65};
    case Sublayer::out_proj:
      return {0.00, 0.55, 0.40};
    case Sublayer::fc1:
      return {0.80, 0.33, 0.00};
    case Sublayer::fc2:
      return {0.45, 0.76, 0.93};
    case Sublayer::lm_head:
      return {0.60, 0.55, 0.05};
    case Sublayer::sampling:
      return {0.35, 0.35, 0.35};
    case Sublayer::kv_store:
      return {0.55, 0.25, 0.60};
    case Sublayer::attention_join:
      return {0.50, 0.50, 0.75};
    case Sublayer::select_rows:
      return {0.75, 0.60, 0.45};
    case Sublayer::kv_move:
      return {0.85, 0.45, 0.70};
    case Sublayer::logprobs:
      return {0.45, 0.55, 0.35};
    case Sublayer::router:
      return {0.90, 0.60, 0.00};
    case Sublayer::shared_ffn:
      return {0.60, 0.20, 0.10};
    case Sublayer::expert_join:
      return {0.30, 0.60, 0.80};
  }
  return {0.5, 0.5, 0.5};
}

}  // namespace sluice
