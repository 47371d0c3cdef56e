// The AVX-512 kernels of decode attention, against double precision.
#include "codelets/kernels/page_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/codelets/bf16_arithmetic_test.h"

namespace sluice {
namespace {

using test::Numbers;
using test::Random;

class PageAttentionTest : public test::Bf16ArithmeticTest {};
INSTANTIATE_TEST_SUITE_P(Either, PageAttentionTest, test::Bf16ArithmeticTest::with_avx512(),
                         PageAttentionTest::name);

TEST(PageScoresTest, MatchReference) {
  if (!has_arithmetic(Bf16Arithmetic::dot_products)) GTEST_SKIP() << "this CPU has no AVX512_BF16";
  Random random(91);
  for (const std::int64_t depth : {2, 6, 64, 80, 128}) {
    for (const std::int64_t queries : {1, 2, 3, 4, 5, 7, 8, 9, 16}) {
      Numbers q(random, queries * depth);
      Numbers k(random, 16 * depth);
      std::vector<float> scores(static_cast<std::size_t>(queries * 16));
      page_scores({.queries = queries,
                   .depth = depth,
                   .q = q.bits.data(),
                   .q_stride = depth,
                   .k = k.bits.data(),
                   .scores = scores.data()});
      std::vector<double> expected;
      for (std::int64_t i = 0; i < queries; ++i) {
        for (std::int64_t t = 0; t < 16; ++t) {
          double sum = 0;
          for (std::int64_t e = 0; e < depth; ++e) {
            sum += static_cast<double>(q.values[static_cast<std::size_t>(i * depth + e)]) *
                   static_cast<double>(
                       k.values[static_cast<std::size_t>((e / 2 * 16 + t) * 2 + e % 2)]);
          }
          expected.push_back(sum);
        }
      }
      test::expect_close(scores, expected,
                         test::tolerance(DType::bf16, test::GemmInput::exact, DType::f32));
    }
  }
}

/// Pages of one KV head, and queries.
struct Pages {
  Pages(Random& random, std::int64_t num_queries, std::int64_t depth_of_q)
      : queries(num_queries),
        depth(depth_of_q),
        columns((depth + 15) / 16 * 16),
        q(random, queries * depth) {
    for (int page = 0; page < 3; ++page) {
      k.emplace_back(random, 16 * columns);
      v.emplace_back(random, 16 * columns);
    }
  }

  /// s[i, t] over all pages, times scale
  std::vector<double> scores(std::int64_t i, double scale) const {
    std::vector<double> all;
    for (const Numbers& keys : k) {
      for (std::int64_t t = 0; t < 16; ++t) {
        double sum = 0;
        for (std::int64_t e = 0; e < depth; ++e) {
          sum += static_cast<double>(q.values[static_cast<std::size_t>(i * depth + e)]) *
                 static_cast<double>(
                     keys.values[static_cast<std::size_t>((e / 2 * 16 + t) * 2 + e % 2)]);
        }
        all.push_back(scale * sum);
      }
    }
    return all;
  }

  /// softmax, to the base of 2, of the scores, times V
  std::vector<double> attention(double scale) const {
    std::vector<double> out;
    for (std::int64_t i = 0; i < queries; ++i) {
      const std::vector<double> s = scores(i, scale);
      const double maximum = *std::max_element(s.begin(), s.end());
      for (std::int64_t c = 0; c < columns; ++c) {
        double sum = 0;
        double total = 0;
        for (std::size_t t = 0; t < s.size(); ++t) {
          const auto in_page = static_cast<std::int64_t>(t % 16);
          const double weight = std::exp2(s[t] - maximum);
          total += weight;
          sum += weight * static_cast<double>(v[t / 16].values[static_cast<std::size_t>(
                              (in_page / 2 * columns + c) * 2 + in_page % 2)]);
        }
        out.push_back(sum / total);
      }
    }
    return out;
  }

  /// The queries as multiply_add reads them: f32 [queries, columns].
  std::vector<float> wide_q() const {
    std::vector<float> wide(static_cast<std::size_t>(queries * columns));
    for (std::int64_t i = 0; i < queries; ++i) {
      std::copy_n(q.values.begin() + i * depth, depth, wide.begin() + i * columns);
    }
    return wide;
  }

  std::int64_t queries, depth, columns;
  Numbers q;
  std::vector<Numbers> k, v;
};

/// What attend_page() sums up over all pages.
struct Sums {
  enum class Fetches : std::uint8_t { nothing, far, far_and_near };

  Sums(const Pages& pages, float scale, Bf16Arithmetic arithmetic, Fetches fetches)
      : sum(static_cast<std::size_t>(pages.queries * pages.columns)),
        denominators(static_cast<std::size_t>(pages.queries * 16)),
        maximum(static_cast<std::size_t>(pages.queries), -std::numeric_limits<float>::infinity()) {
    const std::vector<float> wide_q = pages.wide_q();
    for (std::size_t page = 0; page < pages.k.size(); ++page) {
      const std::uint16_t* k = pages.k[page].bits.data();
      const std::uint16_t* v = pages.v[page].bits.data();
      const PageFetch itself{reinterpret_cast<const std::byte*>(k),
                             reinterpret_cast<const std::byte*>(v)};
      attend_page({.queries = pages.queries,
                   .depth = pages.depth,
                   .q = pages.q.bits.data(),
                   .wide_q = wide_q.data(),
                   .k = k,
                   .columns = pages.columns,
                   .v = v,
                   .scale = scale,
                   .sum = sum.data(),
                   .denominators = denominators.data(),
                   .maximum = maximum.data(),
                   .far = fetches != Fetches::nothing ? itself : PageFetch{},
                   .near = fetches == Fetches::far_and_near ? itself : PageFetch{},
                   .arithmetic = arithmetic});
    }
  }

  std::vector<float> attention(std::int64_t columns) const {
    std::vector<float> out;
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const auto query = static_cast<std::int64_t>(i) / columns;
      const auto* of_query = denominators.data() + query * 16;
      double total = 0;
      for (int t = 0; t < 16; ++t) total += static_cast<double>(of_query[t]);
      out.push_back(static_cast<float>(static_cast<double>(sum[i]) / total));
    }
    return out;
  }

  std::vector<float> sum, denominators, maximum;
};

TEST_P(PageAttentionTest, MatchesReferenceWithScoresNearAndFarApart) {
  for (const std::int64_t depth : {2, 28, 64, 80, 128}) {
    for (const std::int64_t queries : {1, 2, 3, 4, 5, 8, 9}) {
      const Pages pages(random_, queries, depth);
      // Times sqrt(depth), the scores' deviation: within score_slack, and far beyond it.
      for (const double spread : {0.1, 20.0}) {
        const auto scale = static_cast<float>(spread / std::sqrt(static_cast<double>(depth)));
        const Sums sums(pages, scale, GetParam(), Sums::Fetches::nothing);
        test::expect_close(sums.attention(pages.columns),
                           pages.attention(static_cast<double>(scale)),
                           test::tolerance(DType::bf16, test::GemmInput::exact, DType::f32));
        for (std::int64_t i = 0; i < queries; ++i) {
          const std::vector<double> s = pages.scores(i, static_cast<double>(scale));
          const double highest = *std::max_element(s.begin(), s.end());
          const auto maximum = static_cast<double>(sums.maximum[static_cast<std::size_t>(i)]);
          EXPECT_LE(maximum, highest + 1e-3);
          EXPECT_GE(maximum, highest - score_slack - 1e-3);
        }
      }
    }
  }
}

TEST_P(PageAttentionTest, FetchingAheadChangesNothing) {
  for (const std::int64_t queries : {1, 4, 7}) {
    const Pages pages(random_, queries, 64);
    const Sums plain(pages, 0.5F, GetParam(), Sums::Fetches::nothing);
    for (const auto fetches : {Sums::Fetches::far, Sums::Fetches::far_and_near}) {
      const Sums fetching(pages, 0.5F, GetParam(), fetches);
      EXPECT_EQ(plain.sum, fetching.sum);
      EXPECT_EQ(plain.denominators, fetching.denominators);
      EXPECT_EQ(plain.maximum, fetching.maximum);
    }
  }
}

}  // namespace
}  // namespace sluice
