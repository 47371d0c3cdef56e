#include "base/median.h"

#include <algorithm>

namespace sluice {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double weighted_median(std::vector<WeightedValue> values) {
  std::sort(values.begin(), values.end(),
            [](const WeightedValue& a, const WeightedValue& b) { return a.value < b.value; });
  double whole = 0;
  for (const WeightedValue& each : values) whole += each.weight;
  double below = 0;
  for (std::size_t i = 0; i + 1 < values.size(); ++i) {
    below += values[i].weight;
    if (2 * below > whole) return values[i].value;
    if (2 * below == whole) return (values[i].value + values[i + 1].value) / 2;
  }
  return values.back().value;
}

}  // namespace sluice
