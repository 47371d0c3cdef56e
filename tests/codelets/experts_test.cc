#include "codelets/experts/experts.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/codelets/mixture_fixture.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

using test::PackedExperts;
using test::Spread;

class ExpertsTest : public test::ExpertsFixture {
 protected:
  std::vector<float> run(const PackedExperts& experts, const CpuContext& cpu) {
    args_.layout = experts.layout;
    args_.chunks = experts.cut;
    std::vector<float> sum(normed_values_.size(), 7.0F);
    experts_cpu(cpu, {.args = &args_,
                      .normed = normed_.data(),
                      .routing = routing_.data(),
                      .chunks = experts.pointers(),
                      .sum = sum.data()});
    return sum;
  }
};

TEST_P(ExpertsTest, MatchesReference) {
  const PackedExperts experts(random_, args_.shape, args_.mixture.num_experts,
                              args_.mixture.num_experts, args_.mixture.expert_bias);
  for (const Spread spread : {Spread::random, Spread::all_to_one, Spread::none_to_the_first}) {
    for (const std::int64_t rows : {1, 2, 5, 70}) {
      SCOPED_TRACE(rows);
      set_rows(rows, spread);
      test::expect_close(run(experts, test::cpu()), expected(experts),
                         test::tolerance(args_.shape.dtype, test::GemmInput::rounded, DType::f32));
    }
  }
}

/// More rows than are computed together, some alone at their expert.
TEST_P(ExpertsTest, ManyRowsAreCutWithoutATrace) {
  const PackedExperts experts(random_, args_.shape, args_.mixture.num_experts,
                              args_.mixture.num_experts, args_.mixture.expert_bias);
  set_rows(1024 + 3, Spread::random);
  const std::vector<float> all = run(experts, test::cpu());
  const std::int64_t hidden = args_.shape.hidden_size;
  const std::int64_t per_token = args_.mixture.experts_per_token;
  const auto row_bytes = static_cast<std::ptrdiff_t>(
      static_cast<std::size_t>(activation_stride(hidden, args_.shape.dtype)) *
      size_bytes(args_.shape.dtype));
  for (const std::int64_t row : {0, 1, 511, 1023, 1024, 1026}) {
    SCOPED_TRACE(row);
    ExpertsArgs alone = args_;
    alone.tag.num_tokens = 1;
    std::vector<float> sum(static_cast<std::size_t>(hidden));
    experts_cpu(test::cpu(), {.args = &alone,
                              .normed = normed_.data() + row * row_bytes,
                              .routing = routing_.data() + row * per_token,
                              .chunks = experts.pointers(),
                              .sum = sum.data()});
    const std::vector<float> of_row(all.begin() + row * hidden, all.begin() + (row + 1) * hidden);
    EXPECT_EQ(sum, of_row);
  }
}

TEST_P(ExpertsTest, ThreadsAndChunksChangeNoBit) {
  const std::int32_t num_experts = args_.mixture.num_experts;
  for (const std::int32_t per_chunk : {1, 2, 3}) {
    if (per_chunk > num_experts) continue;
    random_ = test::Random(91);
    const PackedExperts whole(random_, args_.shape, num_experts, num_experts,
                              args_.mixture.expert_bias);
    random_ = test::Random(91);
    const PackedExperts cut(random_, args_.shape, num_experts, per_chunk,
                            args_.mixture.expert_bias);
    set_rows(37, Spread::random);
    const std::vector<float> expected = run(whole, test::cpu());
    EXPECT_EQ(run(cut, test::cpu()), expected) << per_chunk << " experts a chunk";
    Workspace workspace;
    for (const int threads : {1, 2}) {
      const CpuContext cpu{.pool = test::pool_of(threads), .workspace = workspace};
      EXPECT_EQ(run(cut, cpu), expected) << threads << " threads";
    }
  }
}

/// As a GPU's are: the sum goes on from task to task.
TEST_P(ExpertsTest, ATaskForEachChunkGivesTheSameBits) {
  const std::int32_t num_experts = args_.mixture.num_experts;
  const PackedExperts experts(random_, args_.shape, num_experts, (num_experts + 2) / 3);
  set_rows(37, Spread::random);
  const std::vector<float> expected = run(experts, test::cpu());
  std::vector<float> sum(expected.size(), 7.0F);
  for (std::int32_t chunk = 0; chunk < experts.cut.count(); ++chunk) {
    args_.first_chunk = chunk;
    args_.num_chunks = 1;
    args_.sum = chunk == 0 ? ExpertsArgs::Sum::written : ExpertsArgs::Sum::added_to;
    experts_cpu(test::cpu(), {.args = &args_,
                              .normed = normed_.data(),
                              .routing = routing_.data(),
                              .chunks = {experts.chunks[static_cast<std::size_t>(chunk)].data()},
                              .sum = sum.data()});
  }
  EXPECT_EQ(sum, expected);
}

TEST_P(ExpertsTest, GivesTheSameBitsAsAStarPuTask) {
  const PackedExperts experts(random_, args_.shape, args_.mixture.num_experts, 1,
                              args_.mixture.expert_bias);
  set_rows(9, Spread::random);
  const std::vector<float> expected = run(experts, test::cpu());
  std::vector<float> sum(expected.size());
  test::runtime();
  {
    const DataHandle normed = DataHandle::of_memory(normed_.data(), normed_.size());
    const DataHandle routing =
        DataHandle::of_memory(routing_.data(), routing_.size() * sizeof(ExpertChoice));
    std::vector<DataHandle> chunks;
    for (const Buffer& chunk : experts.chunks)
      chunks.push_back(DataHandle::of_memory(chunk.data(), chunk.size()));
    const std::vector<HandleRef> refs(chunks.begin(), chunks.end());
    const DataHandle to = DataHandle::of_memory(sum.data(), 4 * sum.size());
    const DataHandle no_places;
    submit_experts(args_, {normed, routing, no_places, refs, to});
  }
  EXPECT_FALSE(run_failure().happened());
  EXPECT_EQ(sum, expected);
}

TEST_P(ExpertsTest, RefusesAnExpertThatThereIsNot) {
  const std::int32_t num_experts = args_.mixture.num_experts;
  const PackedExperts experts(random_, args_.shape, num_experts, num_experts);
  for (const std::int32_t wrong : {-1, num_experts}) {
    set_rows(3, Spread::random);
    routing_.back().expert = wrong;
    try {
      run(experts, test::cpu());
      FAIL() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()),
                fmt::format("row 2 is routed to expert {} of {}", wrong, num_experts));
    }
  }
}

/// Some experts are hot and have a sum of their own, whichever device has which chunks.
TEST_P(ExpertsTest, HotOnesAndOthersGiveTheReference) {
  const std::int32_t num_experts = args_.mixture.num_experts;
  if (num_experts == 1) return;
  const std::vector<std::int32_t> hot = {num_experts - 1, num_experts / 2};
  const auto num_hot = static_cast<std::int32_t>(hot[0] == hot[1] ? 1 : 2);
  std::vector<std::vector<float>> first;
  for (const std::int32_t per_chunk : {1, 3}) {
    random_ = test::Random(91);
    const ExpertChunks cut{.num_experts = num_experts,
                           .per_chunk = std::max(per_chunk, num_experts / 50),
                           .num_hot = num_hot,
                           .per_hot_chunk = per_chunk};
    const PackedExperts experts(random_, args_.shape, cut, WeightFormat::plain(args_.shape.dtype),
                                {hot.begin(), hot.begin() + num_hot});
    set_rows(37, Spread::random);
    args_.layout = experts.layout;
    args_.chunks = cut;
    std::vector<std::vector<float>> sums;
    for (const bool is_hot : {true, false}) {
      args_.first_chunk = is_hot ? 0 : cut.num_hot_chunks();
      args_.num_chunks = is_hot ? cut.num_hot_chunks() : 0;
      ExpertsOperands operands{.args = &args_,
                               .normed = normed_.data(),
                               .routing = routing_.data(),
                               .places = experts.order.places.data()};
      for (std::int32_t i = 0; i < args_.chunks_of_task(); ++i) {
        operands.chunks.at(static_cast<std::size_t>(i)) =
            experts.chunks[static_cast<std::size_t>(args_.first_chunk + i)].data();
      }
      std::vector<float>& sum = sums.emplace_back(normed_values_.size(), 7.0F);
      operands.sum = sum.data();
      experts_cpu(test::cpu(), operands);
    }
    std::vector<float> all(sums[0].size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = sums[0][i] + sums[1][i];
    test::expect_close(all, this->expected(experts),
                       test::tolerance(args_.shape.dtype, test::GemmInput::rounded, DType::f32));
    if (first.empty()) first = sums;
    EXPECT_EQ(sums, first) << per_chunk << " experts a chunk";
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, ExpertsTest, test::mixture_cases(),
                         [](const auto& case_info) { return test::mixture_name(case_info); });

/// In f32 rows are dense: 16 rows at 3 experts each, (2 x 100 + 40) values of 4 bytes, and not more
/// for rows beyond those that are computed together.
TEST(ExpertsWorkspaceTest, ByHand) {
  DecoderShape shape;
  shape.dtype = DType::f32;
  shape.hidden_size = 100;
  shape.ffn_size = 40;
  const MixtureShape mixture{.num_experts = 8, .experts_per_token = 3};
  EXPECT_EQ(experts_workspace_bytes(shape, mixture, 16), 16U * 3 * (2 * 100 + 40) * 4);
  EXPECT_EQ(experts_workspace_bytes(shape, mixture, 5000), 1024U * 3 * (2 * 100 + 40) * 4);
}

/// Biases lie behind the weights, each in whole cache lines: 20 and 12 floats in 128 and 64 bytes.
TEST(ExpertLayoutTest, BiasesLieBehindTheWeights) {
  LayerWeightTypes types;
  types[LayerWeight::gate] = types[LayerWeight::fc1] = test::plain_type(12, 20, DType::f32);
  types[LayerWeight::fc2] = test::plain_type(20, 12, DType::f32);
  const ExpertLayout without = ExpertLayout::of(types, {});
  const ExpertLayout with = ExpertLayout::of(types, {.expert_bias = true});
  const std::byte* expert = nullptr;
  EXPECT_EQ(without.bias(expert, LayerWeight::gate), nullptr);
  EXPECT_EQ(with.offset(LayerWeight::fc2), without.offset(LayerWeight::fc2));
  EXPECT_EQ(with.bias_offset(LayerWeight::gate), without.size_bytes());
  EXPECT_EQ(with.bias_offset(LayerWeight::fc1), without.size_bytes() + 128);
  EXPECT_EQ(with.bias_offset(LayerWeight::fc2), without.size_bytes() + 256);
  EXPECT_EQ(with.size_bytes(), without.size_bytes() + 256 + 64);
}

TEST(ExpertChunksTest, AreAsFewAsTheirSizeAllows) {
  constexpr std::size_t mib = std::size_t{1} << 20;
  struct Expected {
    std::int64_t experts;
    std::size_t expert_bytes;
    std::int32_t count, per_chunk;
  };
  // 256 MiB hold 10 experts of 25 MiB: 128 of them make 13 chunks of 10, the last one of 8.
  for (const Expected& of :
       {Expected{128, 25 * mib, 13, 10}, Expected{8, 32 * mib, 1, 8}, Expected{8, 33 * mib, 2, 4},
        Expected{8, 600 * mib, 8, 1}, Expected{64, 32 * mib, 8, 8},  // 2 GiB
        Expected{5, 100 * mib, 3, 2}, Expected{4096, 300 * mib, 256, 16}}) {
    const ExpertChunks cut = ExpertChunks::cut(of.experts, of.expert_bytes);
    EXPECT_EQ(cut.count(), of.count) << of.experts;
    EXPECT_EQ(cut.per_chunk, of.per_chunk) << of.experts;
    std::int32_t sum = 0;
    for (std::int32_t chunk = 0; chunk < cut.count(); ++chunk) {
      EXPECT_EQ(cut.first_of(chunk), sum);
      EXPECT_EQ(cut.chunk_of(sum), chunk);
      sum += cut.size_of(chunk);
    }
    EXPECT_EQ(sum, of.experts);
  }
}

TEST(ExpertChunksTest, HotOnesComeFirst) {
  const std::vector<std::int32_t> hot = {6, 1, 4};
  const ExpertOrder order(8, hot);
  EXPECT_EQ(order.experts, std::vector<std::int32_t>({1, 4, 6, 0, 2, 3, 5, 7}));
  EXPECT_EQ(order.places, std::vector<std::int32_t>({3, 0, 4, 5, 1, 6, 2, 7}));
  // Two of 100 bytes fit into a chunk.
  const ExpertChunks cut = ExpertChunks::cut(8, 100, 250, 3);
  EXPECT_EQ(cut.num_hot_chunks(), 2);
  EXPECT_EQ(cut.count(), 2 + 3);
  EXPECT_TRUE(cut.has_two_sums());
  const std::vector<std::array<std::int32_t, 2>> expected = {
      {0, 2}, {2, 1}, {3, 2}, {5, 2}, {7, 1}};
  for (std::int32_t chunk = 0; chunk < cut.count(); ++chunk) {
    const auto& [first, size] = expected[static_cast<std::size_t>(chunk)];
    EXPECT_EQ(cut.first_of(chunk), first);
    EXPECT_EQ(cut.size_of(chunk), size);
    EXPECT_EQ(cut.is_hot(chunk), chunk < 2);
    for (std::int32_t place = first; place < first + size; ++place)
      EXPECT_EQ(cut.chunk_of(place), chunk);
  }
  const ExpertChunks all = ExpertChunks::cut(8, 100, 400, 8);
  EXPECT_EQ(all.count(), 2);
  EXPECT_FALSE(all.has_two_sums());
}

}  // namespace
}  // namespace sluice
