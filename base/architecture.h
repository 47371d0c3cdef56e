#pragma once

#include <cstdint>

namespace sluice {

enum class NormKind : std::uint8_t { layer_norm, rms_norm };
/// Where a block's norm stands: before the block (almost all), or after its residual (OPT-350M).
enum class NormPlace : std::uint8_t { pre, post };
/// Of an FFN; clamped_swiglu (gpt-oss's) of a gated one only, with a limit L: of gate g and up u,
/// with c = min(g, L), it is (clamp(u, -L, L) + 1) * c * sigmoid(1.702 c).
enum class Activation : std::uint8_t { relu, gelu, gelu_tanh, silu, clamped_swiglu };
inline constexpr float clamped_swiglu_slope = 1.702F;
/// How a row's experts are chosen and weighed, by the router's logits: the softmax over all
/// experts, of which the largest are taken; or the largest logits, and the softmax over these
/// alone; or each logit's sigmoid, to which a correction is added for the choice alone.
enum class RouterKind : std::uint8_t { softmax_first, softmax_of_chosen, sigmoid };
enum class PositionKind : std::uint8_t { none, learned, rope, alibi };

}  // namespace sluice
