#pragma once

#include <cstdint>
#include <vector>

namespace sluice {

/// How a model's rotary frequencies differ from theta^(-2i / head_dim); config.json's rope_type.
enum class RopeKind : std::uint8_t {
  llama3,        ///< long waves are stretched, short ones stay, those between are blended
  linear,        ///< all waves are stretched
  dynamic,       ///< as trained up to max_position_embeddings; beyond that they change by length
  yarn,          ///< long waves are stretched, short ones stay, a ramp between; scores are scaled
  longrope,      ///< each pair of dimensions has its own stretch; scores are scaled
  proportional,  ///< the first pairs of each half rotate, the others stand still
};

/// The numbers of a rope_type, named as in config.json. Each kind reads its own.
struct RopeVariant {
  RopeKind kind = RopeKind::llama3;
  float factor = 1.0F;            ///< of the wavelengths
  float low_freq_factor = 1.0F;   ///< llama3
  float high_freq_factor = 4.0F;  ///< llama3
  /// Trained context, tokens: llama3, yarn, longrope; for linear it is max_position_embeddings.
  std::int64_t original_max_positions = 8192;
  float beta_fast = 32.0F;            ///< yarn: rotations within that context from which waves stay
  float beta_slow = 1.0F;             ///< yarn: rotations up to which they are stretched in full
  bool truncate = true;               ///< yarn: the ramp begins and ends at whole dimensions
  float attention_factor = 1.0F;      ///< yarn, longrope: multiplies cosines and sines
  float rotated_part = 1.0F;          ///< proportional: of the head's pairs
  std::vector<float> pair_factors{};  ///< longrope: short_factor, [head_dim / 2]
  std::vector<float> long_factors{};  ///< longrope: long_factor, only to be written again

  bool operator==(const RopeVariant&) const = default;
};

}  // namespace sluice
