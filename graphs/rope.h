#pragma once

#include <vector>

#include "models/config.h"

namespace sluice {

/// Rotary frequencies of a model, [head_dim / 2]: theta^(-2i / head_dim), with Llama 3's scaling
/// where the config asks for it: wavelengths above original/low_freq_factor are stretched by
/// `factor`, those below original/high_freq_factor stay, those between are blended.
std::vector<float> rope_frequencies(const ModelConfig& config);

}  // namespace sluice
