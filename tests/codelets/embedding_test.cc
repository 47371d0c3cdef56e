#include "codelets/embedding/embedding.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/codelets/codelet_data.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

using test::Random;

struct Shape {
  const char* name;
  std::int64_t hidden_size;
  std::int64_t embed_size;
  std::int64_t head_dim;  ///< 0: no rotary embedding
  DType table_dtype;
  bool learned_positions;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.name; }

class EmbeddingTest : public ::testing::TestWithParam<std::tuple<DType, Shape>> {
 protected:
  static constexpr std::int64_t vocab_size = 131;
  static constexpr std::int64_t position_offset = 2;

  EmbeddingTest() : random_(21) {
    const auto& [dtype, shape] = GetParam();
    args_.shape.dtype = dtype;
    args_.shape.hidden_size = shape.hidden_size;
    args_.shape.head_dim = shape.head_dim;
    args_.shape.rope = shape.head_dim > 0;
    args_.vocab_size = vocab_size;
    args_.embed_size = shape.embed_size;
    args_.table_dtype = shape.table_dtype;
    args_.position_dtype = shape.table_dtype;
    args_.position_offset = position_offset;
    args_.learned_positions = shape.learned_positions;
    args_.position_rows = 120 + position_offset;
    args_.project_in = shape.embed_size != shape.hidden_size;

    const std::vector<test::Part> parts = {{0, 7}, {113, 1}, {5, 1}, {30, 40}, {0, 1}, {64, 3}};
    batch_ = test::make_batch(random_, parts, vocab_size);
    table_ = test::make_operand(random_.floats(vocab_size * shape.embed_size), shape.table_dtype);
    if (args_.learned_positions) {
      positions_ = test::make_operand(random_.floats((120 + position_offset) * shape.hidden_size),
                                      shape.table_dtype);
    }
    if (args_.project_in) {
      project_in_ = test::make_weight(random_, shape.hidden_size, shape.embed_size, dtype);
    }
    for (std::int64_t i = 0; i < shape.head_dim / 2; ++i) {
      frequencies_.push_back(static_cast<float>(
          std::pow(10000.0, -2.0 * static_cast<double>(i) / static_cast<double>(shape.head_dim))));
    }
    // Some rows take the token that their slot drew last.
    auto* rows = const_cast<BatchRow*>(batch_.view().rows().data());
    slot_tokens_ = {3, 77, 130, 0, 9, 1};
    rows[7].token = -2;
    rows[8].token = -3;
    x_.resize(static_cast<std::size_t>(batch_.num_rows() * shape.hidden_size));
    rope_.resize(static_cast<std::size_t>(batch_.num_rows() * shape.head_dim));
  }

  EmbeddingOperands operands() {
    return {.args = &args_,
            .batch = batch_.view(),
            .slot_tokens = slot_tokens_.data(),
            .table = table_.data(),
            .positions = args_.learned_positions ? positions_.data() : nullptr,
            .project_in = args_.project_in ? project_in_.packed.data() : nullptr,
            .frequencies = args_.shape.rope ? frequencies_.data() : nullptr,
            .x = x_.data(),
            .rope = args_.shape.rope ? rope_.data() : nullptr};
  }

  Random random_;
  EmbeddingArgs args_;
  test::RaggedBatch batch_;
  test::Operand table_, positions_;
  test::Weight project_in_;
  std::vector<float> frequencies_;
  std::vector<std::int32_t> slot_tokens_;
  std::vector<float> x_, rope_;
};

TEST_P(EmbeddingTest, MatchesReference) {
  std::vector<double> x(x_.size());
  std::vector<double> rope(rope_.size());
  embedding_reference(operands(), args_.project_in ? project_in_.plain.values.data() : nullptr,
                      x.data(), rope.data());
  embedding_cpu(test::cpu(), operands());
  if (args_.project_in) {
    const bool exact = args_.table_dtype == args_.shape.dtype || args_.shape.dtype == DType::f32;
    test::expect_close(
        x_, x,
        test::tolerance(args_.shape.dtype,
                        exact ? test::GemmInput::exact : test::GemmInput::rounded, DType::f32));
  } else {
    test::expect_close(x_, x, {.of_largest = 1e-7});  // one addition
  }
  // The angle is rounded once, to f32, as Transformers does: half a last place of at most 113.
  if (args_.shape.rope) test::expect_close(rope_, rope, {.of_largest = 0x1p-18 + 1e-7});
}

TEST_P(EmbeddingTest, GivesTheSameBitsAsAStarPuTask) {
  embedding_cpu(test::cpu(), operands());
  test::runtime();
  const auto over = [](std::span<const std::byte> bytes) {
    return bytes.empty() ? DataHandle() : DataHandle::of_memory(bytes.data(), bytes.size());
  };
  std::vector<float> x(x_.size());
  std::vector<float> rope(rope_.size());
  {
    const DataHandle batch = over(test::bytes_of(batch_.words));
    const DataHandle slot_tokens = over(test::bytes_of(slot_tokens_));
    const DataHandle table = over(table_.memory);
    const DataHandle positions = over(positions_.memory);
    const DataHandle project_in = over({project_in_.packed.data(), project_in_.packed.size()});
    const DataHandle frequencies = over(test::bytes_of(frequencies_));
    const DataHandle to_x = over(test::bytes_of(x));
    const DataHandle to_rope = over(test::bytes_of(rope));
    submit_embedding(
        args_, {batch, slot_tokens, table, positions, project_in, frequencies, to_x, to_rope});
  }
  EXPECT_FALSE(run_failure().happened());
  EXPECT_EQ(x, x_);
  EXPECT_EQ(rope, rope_);
}

TEST_P(EmbeddingTest, ThrowsOnATokenOutsideOfTheVocabulary) {
  auto* rows = const_cast<BatchRow*>(batch_.view().rows().data());
  rows[20].token = vocab_size;
  try {
    embedding_cpu(test::cpu(), operands());
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "token id 131 is outside of the vocabulary of 131");
  }
  rows[20].token = 0;
  slot_tokens_[1] = -1;  // nothing was drawn yet
  EXPECT_THROW(embedding_cpu(test::cpu(), operands()), Error);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, EmbeddingTest,
    ::testing::Combine(
        ::testing::Values(DType::f32, DType::bf16),
        ::testing::Values(Shape{"rope_72_table_bf16", 72, 72, 24, DType::bf16, false},
                          Shape{"rope_200_table_f32", 200, 200, 128, DType::f32, false},
                          Shape{"learned_63_table_f16", 63, 63, 0, DType::f16, true},
                          Shape{"learned_200_table_bf16", 200, 200, 0, DType::bf16, true},
                          Shape{"projected_72_from_63_table_bf16", 72, 63, 0, DType::bf16, true},
                          Shape{"projected_63_from_129_table_f16", 63, 129, 0, DType::f16, true},
                          Shape{"projected_200_from_5_table_f32", 200, 5, 28, DType::f32, false})),
    [](const auto& case_info) {
      return test::name_of(std::get<0>(case_info.param)) + "_" + std::get<1>(case_info.param).name;
    });

}  // namespace
}  // namespace sluice
