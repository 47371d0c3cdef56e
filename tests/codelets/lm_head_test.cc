#include "codelets/lm_head/lm_head.h"

#include <gtest/gtest.h>

#include "tests/codelets/codelet_data.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

enum class FinalNorm : std::uint8_t { none, plain, weight, weight_and_bias };

struct Shape {
  const char* name;
  std::int64_t hidden_size;
  std::int64_t embed_size;
  std::int64_t vocab_size;
  NormKind norm;
  FinalNorm final_norm;
  BatchBuilder::LogitRows logits;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.name; }

class LmHeadTest : public ::testing::TestWithParam<std::tuple<DType, Shape>> {
 protected:
  LmHeadTest() : random_(81) {
    const auto& [dtype, from] = GetParam();
    args_.shape.dtype = dtype;
    args_.shape.hidden_size = from.hidden_size;
    args_.shape.norm = from.norm;
    args_.vocab_size = from.vocab_size;
    args_.embed_size = from.embed_size;
    args_.final_norm = from.final_norm != FinalNorm::none;
    args_.norm_weight = from.final_norm >= FinalNorm::weight;
    args_.norm_bias = from.final_norm == FinalNorm::weight_and_bias;
    args_.project_out = from.embed_size != from.hidden_size;
    batch_ = test::make_batch(random_, {{0, 30}, {5, 1}, {9, 3}, {0, 1}, {33, 35}}, 9, from.logits);
    x_ = random_.floats(batch_.num_rows() * from.hidden_size, 3.0);
    if (args_.norm_weight) {
      norm_ = random_.floats(from.hidden_size * (args_.norm_bias ? 2 : 1));
    }
    if (args_.project_out) {
      project_out_ = test::make_weight(random_, from.embed_size, from.hidden_size, dtype);
    }
    head_ = test::make_weight(random_, from.vocab_size, from.embed_size, dtype);
    logits_.resize(static_cast<std::size_t>(batch_.view().num_logit_rows() * from.vocab_size));
  }

  LmHeadOperands operands() {
    return {.args = &args_,
            .batch = batch_.view(),
            .x = x_.data(),
            .final_norm = args_.norm_weight ? norm_.data() : nullptr,
            .project_out = args_.project_out ? project_out_.packed.data() : nullptr,
            .head = head_.packed.data(),
            .logits = logits_.data()};
  }

  test::Random random_;
  LmHeadArgs args_;
  test::RaggedBatch batch_;
  std::vector<float> x_, norm_, logits_;
  test::Weight project_out_, head_;
};

TEST_P(LmHeadTest, MatchesReferenceForTheSampledRows) {
  std::vector<double> expected(logits_.size());
  lm_head_reference(operands(), args_.project_out ? project_out_.plain.values.data() : nullptr,
                    head_.plain.values.data(), expected.data());
  lm_head_cpu(test::cpu(), operands());
  test::expect_close(logits_, expected,
                     test::tolerance(args_.shape.dtype, test::GemmInput::rounded, DType::f32));
}

TEST_P(LmHeadTest, GivesTheSameBitsAsAStarPuTask) {
  lm_head_cpu(test::cpu(), operands());
  std::vector<float> logits(logits_.size());
  test::runtime();
  {
    const DataHandle batch = DataHandle::of_memory(batch_.words.data(), 4 * batch_.words.size());
    const DataHandle x = DataHandle::of_memory(x_.data(), 4 * x_.size());
    const DataHandle norm =
        args_.norm_weight ? DataHandle::of_memory(norm_.data(), 4 * norm_.size()) : DataHandle();
    const DataHandle project_out =
        args_.project_out
            ? DataHandle::of_memory(project_out_.packed.data(), project_out_.packed.size())
            : DataHandle();
    const DataHandle head = DataHandle::of_memory(head_.packed.data(), head_.packed.size());
    const DataHandle to_logits = DataHandle::of_memory(logits.data(), 4 * logits.size());
    submit_lm_head(args_, {batch, x, norm, project_out, head, to_logits});
  }
  EXPECT_FALSE(run_failure().happened());
  EXPECT_EQ(logits, logits_);
}

constexpr auto layer_norm = NormKind::layer_norm;
constexpr auto rms_norm = NormKind::rms_norm;
constexpr auto last = BatchBuilder::LogitRows::last;
constexpr auto all = BatchBuilder::LogitRows::all;

INSTANTIATE_TEST_SUITE_P(
    Shapes, LmHeadTest,
    ::testing::Combine(::testing::Values(DType::f32, DType::bf16),
                       ::testing::Values(Shape{"hidden_63_vocab_131", 63, 63, 131, layer_norm,
                                               FinalNorm::weight_and_bias, all},
                                         Shape{"hidden_72_vocab_2049", 72, 72, 2049, rms_norm,
                                               FinalNorm::weight, last},
                                         Shape{"hidden_200_vocab_1000_no_affine", 200, 200, 1000,
                                               layer_norm, FinalNorm::plain, last},
                                         Shape{"hidden_200_no_norm_projected_to_63_vocab_1000", 200,
                                               63, 1000, layer_norm, FinalNorm::none, all},
                                         Shape{"hidden_63_projected_to_129_vocab_65", 63, 129, 65,
                                               layer_norm, FinalNorm::weight_and_bias, last})),
    [](const auto& case_info) {
      return test::name_of(std::get<0>(case_info.param)) + "_" + std::get<1>(case_info.param).name;
    });

}  // namespace
}  // namespace sluice
