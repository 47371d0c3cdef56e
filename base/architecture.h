#pragma once

#include <cstdint>

namespace sluice {

enum class NormKind : std::uint8_t { layer_norm, rms_norm };
/// Where a block's norm stands: before the block (almost all), or after its residual (OPT-350M).
enum class NormPlace : std::uint8_t { pre, post };
enum class Activation : std::uint8_t { relu, gelu, gelu_tanh, silu };
enum class PositionKind : std::uint8_t { none, learned, rope, alibi };

}  // namespace sluice
