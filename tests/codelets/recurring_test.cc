#include "codelets/runtime/recurring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

namespace sluice {
namespace {

TEST(RecurringTest, DecodingLaunchesTheSameForSomeIterations) {
  for (const std::int64_t sequences : {1, 3, 16, 64}) {
    for (const std::int64_t depth : {1, 200, 5000}) {
      std::int64_t changes = 0;
      std::int64_t before = 0;
      constexpr std::int64_t iterations = 512;
      for (std::int64_t i = 0; i < iterations; ++i) {
        const std::int64_t tokens = sequences * (depth + i);
        const std::int64_t rounded = recurring_context_tokens(tokens, sequences);
        EXPECT_GE(rounded, tokens);
        EXPECT_LE(rounded, tokens + std::max({std::int64_t{256}, tokens / 8, 32 * sequences}));
        if (rounded != before) ++changes;
        before = rounded;
      }
      EXPECT_LE(changes, iterations / 32 + 1) << sequences << " x " << depth;
    }
  }
}

}  // namespace
}  // namespace sluice
