#pragma once

#include <cstdint>

namespace sluice {

/// What one rendering of a chat template may use: a template is not trusted.
struct TemplateLimits {
  std::int64_t steps = 20'000'000;           ///< nodes evaluated, items and 64-byte pieces made
  std::int64_t output_bytes = 64LL << 20U;   ///< of the rendered text
  std::int64_t memory_bytes = 256LL << 20U;  ///< of all values and texts at a time
  int depth = 1000;                          ///< expressions, statements and macros in each other
};

}  // namespace sluice
