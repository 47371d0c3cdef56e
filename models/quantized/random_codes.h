#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/quantized/quantized_tensor.h"

namespace sluice {

/// A weight [out, in] of deterministic random codes, for shapes: a code depends on (seed, name,
/// place) only, nothing is kept. int4, int8 and fp4 have the same scale everywhere, such that
/// values spread as those of random_weights() do (a standard deviation of 0.02), and zero points in
/// the middle; fp8 has bytes of finite values.
std::shared_ptr<const QuantizedTensor> random_codes(std::string name, const WeightFormat& format,
                                                    std::vector<std::int64_t> shape,
                                                    std::uint64_t seed);

}  // namespace sluice
