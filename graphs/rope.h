#pragma once

#include <vector>

#include "models/config.h"

namespace sluice {

/// Rotary frequencies of a model, [dim / 2] with dim = rotated_dims(): theta^(-2i / dim), scaled
/// where the config asks for it, as Transformers does (RopeKind):
///   llama3        wavelengths above original/low_freq_factor are stretched by `factor`, those
///   below
///                 original/high_freq_factor stay, those between are blended
///   linear        divided by `factor`
///   dynamic       unchanged: contexts end at max_position_embeddings
///   yarn          pairs that turn at least beta_fast times within the trained context stay, those
///                 that turn at most beta_slow times are divided by `factor`, a ramp between
///   longrope      each divided by its short_factor: contexts end at the trained length
///   proportional  the first partial_rotary_factor of the pairs divided by `factor`, the others 0
std::vector<float> rope_frequencies(const ModelConfig& config);

}  // namespace sluice
