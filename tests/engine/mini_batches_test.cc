#include "engine/batching/mini_batches.h"

#include <gtest/gtest.h>

#include <functional>
#include <numeric>

namespace sluice {
namespace {

constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();

/// How many sequences each chain has, of sequences with so many rows.
std::vector<std::size_t> sizes(const MiniBatches& cut, const std::vector<std::int64_t>& rows) {
  std::vector<std::size_t> found;
  for (const auto& chain : cut.cut(rows, std::identity())) found.push_back(chain.size());
  return found;
}

using Sizes = std::vector<std::size_t>;
using Rows = std::vector<std::int64_t>;

TEST(MiniBatchesTest, AreAsManyAsAskedForOrMoreWhereRowsAreEnough) {
  EXPECT_EQ(sizes({}, Rows(900, 2048)), Sizes{900});
  const MiniBatches asked{.asked = 6, .enough_rows = unlimited};
  EXPECT_EQ(sizes(asked, Rows(900, 256)), Sizes(6, 150));
  EXPECT_EQ(sizes(asked, Rows(4, 256)), Sizes(4, 1));
  const MiniBatches limited{.asked = 2, .enough_rows = 2048};
  EXPECT_EQ(sizes(limited, Rows(9, 256)), (Sizes{4, 5}));
  EXPECT_EQ(sizes(limited, Rows(64, 256)), Sizes(8, 8));
  EXPECT_EQ(sizes(limited, Rows(7, 700)), (Sizes{2, 1, 2, 2}));
  EXPECT_EQ(sizes(limited, Rows(3, 10'000)), Sizes(3, 1));  // however long
}

TEST(MiniBatchesTest, ALongPromptLeavesTheSequencesBesideItTogether) {
  Rows rows(99, 1);
  rows.insert(rows.begin() + 40, 2048);
  EXPECT_EQ(sizes({.asked = 1, .enough_rows = 2048}, rows), (Sizes{40, 1, 59}));
  rows[40] = 700;
  EXPECT_EQ(sizes({.asked = 1, .enough_rows = 2048}, rows), Sizes{100});
}

TEST(MiniBatchesTest, AreCountedAsTheyAreCut) {
  for (const std::int64_t asked : {1, 2, 5, 40}) {
    for (const std::int64_t enough : {std::int64_t{3}, std::int64_t{64}, unlimited}) {
      const MiniBatches cut{.asked = asked, .enough_rows = enough};
      for (const std::int64_t sequences : {1, 2, 7, 24, 100}) {
        for (const std::int64_t rows : {1, 5, 64, 90}) {
          const Rows all(static_cast<std::size_t>(sequences), rows);
          EXPECT_EQ(cut.count(sequences, rows), std::ssize(cut.cut(all, std::identity())))
              << asked << ", " << enough << ", " << sequences << ", " << rows;
        }
      }
    }
  }
}

TEST(MiniBatchesTest, NoChainHasMoreRowsThanWereReckonedForTheLargestIteration) {
  for (const std::int64_t asked : {1, 2, 5, 40}) {
    for (const std::int64_t enough : {std::int64_t{30}, std::int64_t{64}, unlimited}) {
      const MiniBatches cut{.asked = asked, .enough_rows = enough};
      for (const auto& [most_sequences, longest] : {std::pair(13, 17), std::pair(24, 5), {7, 90}}) {
        const std::int64_t most = cut.most_rows(most_sequences, longest);
        for (int sequences = 1; sequences <= most_sequences; ++sequences) {
          for (int step = 0; step < longest; ++step) {
            Rows rows;
            for (int i = 0; i < sequences; ++i) rows.push_back(1 + i * step % longest);
            for (const Rows& chain : cut.cut(rows, std::identity()))
              ASSERT_LE(std::accumulate(chain.begin(), chain.end(), std::int64_t{0}), most)
                  << sequences << ", " << step << ", " << asked << ", " << enough;
          }
        }
      }
    }
  }
}

TEST(MiniBatchesTest, PartsAreEqualAndInOrder) {
  std::vector<int> items(11);
  std::iota(items.begin(), items.end(), 0);
  const std::vector<std::vector<int>> expected = {{0, 1, 2}, {3, 4, 5, 6}, {7, 8, 9, 10}};
  EXPECT_EQ(cut_evenly(items, 3), expected);
  EXPECT_EQ(cut_evenly(items, 100).size(), 11U);
  EXPECT_TRUE(cut_evenly(std::vector<int>{}, 3).empty());
}

}  // namespace
}  // namespace sluice
