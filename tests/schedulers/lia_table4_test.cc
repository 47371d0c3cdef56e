// LIA Table 4: OPT-30B, 256 tokens in, 32 out, on spr-a100, by `lia` with the paper's reserve.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "tests/schedulers/planning.h"

namespace sluice {
namespace {

TEST(LiaTable4Test, LatenciesAreNearThePapers) {
  const struct {
    const char* name;
    std::map<std::string, std::string> options;
    double seconds[3];  // batches of 1, 64, 900
  } rows[] = {
      {"all optimizations", {}, {5.05, 24.00, 291.02}},
      {"no Optimization-1", {{"opt1", "off"}}, {10.09, 26.97, 297.13}},
      {"no Optimization-2", {{"opt2", "off"}}, {5.05, 26.96, 443.61}},
      {"FlexGen's policy", {{"prefill", "000000"}, {"decode", "011000"}}, {31.07, 84.80, 291.02}},
  };
  const std::int64_t batches[3] = {1, 64, 900};
  double sum = 0;
  for (const auto& row : rows) {
    std::map<std::string, std::string> options = row.options;
    options["reserve"] = "paper";
    test::Planned planned("lia", options, "spr-a100", "opt-30b");
    for (std::size_t i = 0; i < 3; ++i) {
      const double ours =
          planned.plan({.batch = batches[i], .input_tokens = 256, .output_tokens = 32}).latency_s();
      const double error = ours / row.seconds[i] - 1;
      std::printf("%s, B = %lld: paper %.2f s, ours %.2f s, %+.1f %%\n", row.name,
                  static_cast<long long>(batches[i]), row.seconds[i], ours, 100 * error);
      EXPECT_LT(std::abs(error), 0.3) << row.name << ", " << batches[i];
      sum += std::abs(error);
    }
  }
  std::printf("mean error %.1f %%\n", 100 * sum / 12);
  EXPECT_LT(sum / 12, 0.1);
}

}  // namespace
}  // namespace sluice
