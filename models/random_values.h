#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/dtype.h"
#include "models/weights.h"

namespace sluice {

/// The elements [first, first + out.size() / size_bytes(dtype)) of a random tensor.
/// Weights: element i is (u1 + u2 + u3 + u4 - 2) * 0.02 * sqrt(3) with u the four 16-bit parts, as
/// fractions, of a hash of (seed, name, i): close to N(0, 0.02^2), never beyond 3.5 sigma. Norm
/// weights 1, biases 0.
void fill_random(TensorRole role, std::string_view name, std::uint64_t seed, DType dtype,
                 std::uint64_t first, std::span<std::byte> out);

}  // namespace sluice
