#include "graphs/rope.h"

#include <cmath>
#include <numbers>

namespace sluice {
namespace {

double scale_llama3(double frequency, const RopeScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(scaling.original_max_positions);
  const double low = scaling.low_freq_factor;
  const double high = scaling.high_freq_factor;
  if (wavelength < original / high) return frequency;
  if (wavelength > original / low) return frequency / scaling.factor;
  const double smooth = (original / wavelength - low) / (high - low);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

}  // namespace

std::vector<float> rope_frequencies(const ModelConfig& config) {
  std::vector<float> frequencies;
  for (std::int64_t i = 0; i < config.head_dim / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim);
    const double frequency = std::pow(static_cast<double>(config.rope_theta), exponent);
    frequencies.push_back(static_cast<float>(
        config.rope_scaling ? scale_llama3(frequency, *config.rope_scaling) : frequency));
  }
  return frequencies;
}

}  // namespace sluice
