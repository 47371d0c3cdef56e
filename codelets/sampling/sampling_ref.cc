#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "codelets/sampling/sampling.h"

namespace sluice {
namespace {

void normalise(std::vector<double>& weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  for (double& weight : weights) weight /= total;
}

}  // namespace

std::vector<double> token_probabilities_reference(std::span<const float> logits,
                                                  const SamplingRow& row,
                                                  std::span<const std::int32_t> history,
                                                  std::span<const std::int32_t> suppressed,
                                                  std::span<const std::int32_t> output) {
  std::vector<double> values(logits.begin(), logits.end());
  const double penalty = row.repetition_penalty;
  for (const std::int32_t token : std::set<std::int32_t>(history.begin(), history.end())) {
    double& value = values[static_cast<std::size_t>(token)];
    value = value > 0 ? value / penalty : value * penalty;
  }
  for (const std::int32_t token : output)
    values[static_cast<std::size_t>(token)] -= static_cast<double>(row.frequency_penalty);
  for (const std::int32_t token : std::set<std::int32_t>(output.begin(), output.end()))
    values[static_cast<std::size_t>(token)] -= static_cast<double>(row.presence_penalty);
  for (const std::int32_t token : suppressed) {
    values[static_cast<std::size_t>(token)] = -std::numeric_limits<double>::infinity();
  }
  const double maximum = *std::max_element(values.begin(), values.end());
  if (row.temperature == 0.0F) {
    const auto best = std::find(values.begin(), values.end(), maximum) - values.begin();
    std::fill(values.begin(), values.end(), 0.0);
    values[static_cast<std::size_t>(best)] = 1.0;
    return values;
  }
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  const std::size_t k =
      row.top_k > 0 ? std::min<std::size_t>(static_cast<std::size_t>(row.top_k), values.size())
                    : values.size();
  for (double& value : values) {
    value = value < sorted[k - 1]
                ? 0.0
                : std::exp((value - maximum) / static_cast<double>(row.temperature));
  }
  normalise(values);
  if (row.top_p < 1.0F) {
    std::vector<double> kept = values;
    for (std::size_t i = 0; i < values.size(); ++i) {
      double likelier = 0;
      for (std::size_t j = 0; j < values.size(); ++j) {
        if (values[j] > values[i] || (values[j] == values[i] && j < i)) likelier += values[j];
      }
      if (likelier >= static_cast<double>(row.top_p)) kept[i] = 0.0;
    }
    values = kept;
    normalise(values);
  }
  const double threshold =
      static_cast<double>(row.min_p) * *std::max_element(values.begin(), values.end());
  for (double& value : values) value = value < threshold ? 0.0 : value;
  normalise(values);
  return values;
}

}  // namespace sluice
