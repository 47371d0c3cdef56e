#include "codelets/embedding/embedding.h"

#include <gtest/gtest.h>

#include "tests/codelets/embedding_fixture.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

class EmbeddingTest : public test::EmbeddingFixture {};

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

INSTANTIATE_TEST_SUITE_P(Shapes, EmbeddingTest, test::embedding_cases(),
                         [](const auto& case_info) { return test::embedding_name(case_info); });

}  // namespace
}  // namespace sluice
