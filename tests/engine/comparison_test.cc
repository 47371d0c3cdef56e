#include "engine/plan/comparison.h"

#include <gtest/gtest.h>

#include "engine/plan/policy_choice.h"

namespace sluice {
namespace {

ComparedRun run(const char* policy, std::int64_t batch, double tokens_per_s, double ttft_s,
                double tpot_s) {
  return {.model = "opt-30b",
          .machine = "spr-a100",
          .policy = policy,
          .workload = {.batch = batch, .input_tokens = 256, .output_tokens = 32},
          .figures = RunFigures{.tokens_per_s = tokens_per_s,
                                .ttft_s = ttft_s,
                                .tpot_s = tpot_s,
                                .joules_per_token = std::nullopt}};
}

/// flexgen is the baseline; lia is twice as good at batch 1.
std::vector<ComparedRun> two_batches() {
  return {run("lia", 1, 20, 1, 0.5), run("flexgen", 1, 10, 2, 2), run("lia", 64, 30, 4, 1),
          run("flexgen", 64, 60, 1, 1)};
}

TEST(ComparisonTest, MoreIsBetterThroughout) {
  const RatioGrid grid = compare_policies(two_batches(), "flexgen");
  EXPECT_EQ(grid.series, std::vector<std::string>{"lia"});
  EXPECT_EQ(grid.groups, (std::vector<std::string>{"1", "64"}));
  ASSERT_EQ(grid.rows.size(), 3U);  // tokens/s, TTFT, TPOT; no energy
  EXPECT_EQ(grid.rows[0][0].ratios, (std::vector<std::vector<std::optional<double>>>{{2}, {0.5}}));
  EXPECT_EQ(grid.rows[1][0].ratios, (std::vector<std::vector<std::optional<double>>>{{2}, {0.25}}));
  EXPECT_EQ(grid.rows[2][0].ratios, (std::vector<std::vector<std::optional<double>>>{{4}, {1}}));
}

TEST(ComparisonTest, LargestBatchesAreOneGroupWhateverTheyAre) {
  std::vector<ComparedRun> runs = two_batches();
  runs[2].workload.batch = runs[3].workload.batch = as_many_as_fit;
  const RatioGrid grid = compare_policies(runs, "flexgen");
  EXPECT_EQ(grid.groups, (std::vector<std::string>{"1", "max"}));
  EXPECT_EQ(grid.rows[0][0].ratios, (std::vector<std::vector<std::optional<double>>>{{2}, {0.5}}));
}

TEST(ComparisonTest, EnergyHasItsRowWhereItIsKnown) {
  std::vector<ComparedRun> runs = two_batches();
  runs[0].figures->joules_per_token = 3;
  runs[1].figures->joules_per_token = 12;
  const RatioGrid grid = compare_policies(runs, "flexgen");
  ASSERT_EQ(grid.rows.size(), 4U);
  EXPECT_EQ(grid.rows[3][0].ratios,
            (std::vector<std::vector<std::optional<double>>>{{4}, {std::nullopt}}));
}

TEST(ComparisonTest, ARunThatCannotBeHasNoBar) {
  std::vector<ComparedRun> runs = two_batches();
  runs[0].figures = std::nullopt;
  runs[3].figures = std::nullopt;
  const RatioGrid grid = compare_policies(runs, "flexgen");
  EXPECT_EQ(grid.rows[0][0].ratios,
            (std::vector<std::vector<std::optional<double>>>{{std::nullopt}, {std::nullopt}}));
}

TEST(ComparisonTest, WithoutABaselineThereIsTheFigureItself) {
  std::vector<ComparedRun> runs = two_batches();
  runs[0].figures->joules_per_token = 3;
  runs[1].figures = std::nullopt;  // flexgen at batch 1
  runs[2].figures = std::nullopt;  // lia at batch 64
  const RatioGrid grid = compare_policies(runs, "flexgen");
  const std::vector<std::vector<std::optional<double>>> no_ratios = {{std::nullopt},
                                                                     {std::nullopt}};
  const std::vector<const char*> expected = {"20/s", "1.00 s", "500.00 ms", "3 J"};
  ASSERT_EQ(grid.rows.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(grid.rows[i][0].ratios, no_ratios);
    EXPECT_EQ(grid.rows[i][0].figures, (std::vector<std::vector<std::string>>{{expected[i]}, {""}}))
        << "what neither has is none";
  }
  // Both are told apart in the picture.
  runs[0].figures = std::nullopt;
  EXPECT_FALSE(draw_ratios(grid, PictureFormat::png) ==
               draw_ratios(compare_policies(runs, "flexgen"), PictureFormat::png));
  for (const auto& row : compare_policies(two_batches(), "flexgen").rows)
    EXPECT_EQ(row[0].figures, (std::vector<std::vector<std::string>>{{""}, {""}}));
}

TEST(ComparisonTest, FilesAreShownByTheirNames) {
  std::vector<ComparedRun> runs = two_batches();
  for (ComparedRun& run : runs) {
    run.machine = "mine/box.json";
    if (run.policy == "lia") run.policy = "/somewhere/lia.simgrid.so";
  }
  const RatioGrid grid = compare_policies(runs, "flexgen");
  EXPECT_EQ(grid.series, std::vector<std::string>{"lia"});
  EXPECT_EQ(grid.rows[0][0].ratios[0][0], 2);
  EXPECT_TRUE(grid.rows[0][0].title.starts_with("opt-30b on box.json: "));
}

TEST(ComparisonTest, LengthsOfOutputAreNamed) {
  std::vector<ComparedRun> runs = two_batches();
  for (const ComparedRun& other : two_batches()) {
    runs.push_back(other);
    runs.back().workload.output_tokens = 1;
    runs.back().figures->tpot_s = 0;
  }
  const RatioGrid grid = compare_policies(runs, "flexgen");
  const std::string out = std::to_string(runs.front().workload.output_tokens);
  EXPECT_EQ(grid.groups,
            (std::vector<std::string>{"1 / " + out, "64 / " + out, "1 / 1", "64 / 1"}));
  EXPECT_EQ(grid.group_label, "batch / tokens out (256 tokens in)");
  EXPECT_EQ(grid.rows[2][0].ratios[2][0], std::nullopt) << "a single token has no time per token";
}

TEST(ComparisonTest, MachinesStandSideBySideAndLengthsAreNamed) {
  std::vector<ComparedRun> runs = two_batches();
  for (const ComparedRun& other : two_batches()) {
    runs.push_back(other);
    runs.back().machine = "spr-h100";
    runs.back().workload.input_tokens = 32;
  }
  const RatioGrid grid = compare_policies(runs, "flexgen");
  EXPECT_EQ(grid.groups, (std::vector<std::string>{"1 / 256", "64 / 256", "1 / 32", "64 / 32"}));
  ASSERT_EQ(grid.rows[0].size(), 2U);
  EXPECT_EQ(grid.rows[0][0].title,
            "opt-30b on spr-a100: tokens/s, times more (latency, times shorter)");
  EXPECT_EQ(grid.rows[0][1].ratios, (std::vector<std::vector<std::optional<double>>>{
                                        {std::nullopt}, {std::nullopt}, {2}, {0.5}}));
}

TEST(ComparisonTest, IsDrawn) {
  const RatioGrid grid = compare_policies(two_batches(), "flexgen");
  const std::string svg = draw_ratios(grid, PictureFormat::svg);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  const std::string png = draw_ratios(grid, PictureFormat::png);
  EXPECT_EQ(png.substr(1, 3), "PNG");
  EXPECT_EQ(png.substr(png.size() - 8, 4), "IEND");
  std::vector<ComparedRun> other = two_batches();
  other[0].figures->tokens_per_s = 40;
  EXPECT_NE(draw_ratios(compare_policies(other, "flexgen"), PictureFormat::png), png);
}

}  // namespace
}  // namespace sluice
