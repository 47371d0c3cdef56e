#pragma once

#include <cstdint>

namespace sluice {

enum class NormKind : std::uint8_t { layer_norm, rms_norm };
/// Where a block's norm stands: before the block (almost all), or after its residual (OPT-350M).
enum class NormPlace : std::uint8_t { pre, post };
enum class Activation : std::uint8_t { relu, gelu, gelu_tanh, silu };
enum class PositionKind : std::uint8_t { none, learned, rope, alibi };

/// Llama 3's frequency scaling (config.json: rope_scaling with rope_type "llama3").
struct RopeScaling {
  float factor = 1.0F;
  float low_freq_factor = 1.0F;
  float high_freq_factor = 4.0F;
  std::int64_t original_max_positions = 8192;
};

}  // namespace sluice
