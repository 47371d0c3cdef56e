#pragma once

#include <cstdint>

#include "codelets/cuda/context.h"

namespace sluice::test {

/// *sum += each of `count` values.
void add_up(const cuda::Context& gpu, const float* values, std::int64_t count, float* sum);
/// Device code finds token 1234 in row 5 outside of the vocabulary.
void find_fault(const cuda::Context& gpu);

}  // namespace sluice::test
