#include "graphs/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sluice {
namespace {

double scale_llama3(double frequency, const RopeVariant& scaling) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  const auto original = static_cast<double>(scaling.original_max_positions);
  const double low = scaling.low_freq_factor;
  const double high = scaling.high_freq_factor;
  if (wavelength < original / high) return frequency;
  if (wavelength > original / low) return frequency / scaling.factor;
  const double smooth = (original / wavelength - low) / (high - low);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

/// The pairs between which YaRN goes over from frequencies as trained to stretched ones.
struct YarnRamp {
  double low, high;

  YarnRamp(const RopeVariant& scaling, double theta, std::int64_t head_dim) {
    const auto dim = static_cast<double>(head_dim);
    const auto original = static_cast<double>(scaling.original_max_positions);
    // The dimension whose wave turns so often within the trained context.
    const auto dimension_of = [&](double rotations) {
      return dim * std::log(original / (rotations * 2 * std::numbers::pi)) / (2 * std::log(theta));
    };
    low = dimension_of(scaling.beta_fast);
    high = dimension_of(scaling.beta_slow);
    if (scaling.truncate) {
      low = std::floor(low);
      high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, dim - 1);
    constexpr double least = 0.001;  // as in Transformers: no division by zero
    if (low == high) high += least;
  }

  /// 0: as trained; 1: stretched in full.
  double at(std::int64_t pair) const {
    return std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  }
};

double scaled_frequency(double trained, std::int64_t pair, const RopeVariant& scaling, double theta,
                        std::int64_t head_dim) {
  const double factor = scaling.factor;
  switch (scaling.kind) {
    case RopeKind::llama3:
      return scale_llama3(trained, scaling);
    case RopeKind::linear:
      return trained / factor;
    case RopeKind::yarn: {
      const double stretched = YarnRamp(scaling, theta, head_dim).at(pair);
      return trained / factor * stretched + trained * (1 - stretched);
    }
    case RopeKind::longrope:
      return trained / scaling.pair_factors.at(static_cast<std::size_t>(pair));
    case RopeKind::proportional: {
      const double rotated =
          std::floor(static_cast<double>(scaling.rotated_part) * static_cast<double>(head_dim) / 2);
      return static_cast<double>(pair) < rotated ? trained / factor : 0;
    }
    case RopeKind::dynamic:
      break;
  }
  return trained;
}

}  // namespace

std::vector<float> rope_frequencies(const ModelConfig& config) {
  const auto theta = static_cast<double>(config.rope_theta);
  const std::int64_t dim = config.rotated_dims();
  const std::int64_t num_pairs = dim / 2;
  std::vector<float> frequencies;
  for (std::int64_t i = 0; i < num_pairs; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(dim);
    const double trained = std::pow(theta, exponent);
    const double frequency = config.rope_scaling
                                 ? scaled_frequency(trained, i, *config.rope_scaling, theta, dim)
                                 : trained;
    frequencies.push_back(static_cast<float>(frequency));
  }
  return frequencies;
}

}  // namespace sluice
