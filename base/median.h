#pragma once

#include <vector>

namespace sluice {

/// The middle one, or the mean of the two in the middle. `values` is not empty.
double median(std::vector<double> values);

}  // namespace sluice
