#pragma once

#include <vector>

namespace sluice {

/// The middle one, or the mean of the two in the middle. `values` is not empty.
double median(std::vector<double> values);

struct WeightedValue {
  double value = 0;
  double weight = 1;  ///< above 0
};
/// Where half of the weight lies below and half above: median(), if all weigh the same. Not empty.
double weighted_median(std::vector<WeightedValue> values);

}  // namespace sluice
