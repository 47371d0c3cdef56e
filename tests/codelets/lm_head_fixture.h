#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "codelets/lm_head/lm_head.h"
#include "tests/codelets/codelet_data.h"

namespace sluice::test {

enum class FinalNorm : std::uint8_t { none, plain, weight, weight_and_bias };

struct LmHeadShape {
  const char* name;
  std::int64_t hidden_size;
  std::int64_t embed_size;
  std::int64_t vocab_size;
  NormKind norm;
  FinalNorm final_norm;
  std::int64_t rows;
};

inline std::ostream& operator<<(std::ostream& out, const LmHeadShape& shape) {
  return out << shape.name;
}

class LmHeadFixture : public ::testing::TestWithParam<std::tuple<DType, LmHeadShape>> {
 protected:
  LmHeadFixture() : random_(81) {
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
    args_.tag.num_logit_rows = from.rows;
    x_ = random_.floats(from.rows * from.hidden_size, 3.0);
    if (args_.norm_weight) {
      norm_ = random_.floats(from.hidden_size * (args_.norm_bias ? 2 : 1));
    }
    if (args_.project_out) {
      project_out_ = make_weight(random_, from.embed_size, from.hidden_size, dtype);
    }
    head_ = make_weight(random_, from.vocab_size, from.embed_size, dtype);
    args_.projection = project_out_.type;
    args_.head = head_.type;
    logits_.resize(static_cast<std::size_t>(from.rows * from.vocab_size));
  }

  LmHeadOperands operands() {
    return {.args = &args_,
            .x = x_.data(),
            .final_norm = args_.norm_weight ? norm_.data() : nullptr,
            .project_out = project_out_.weight(),
            .head = head_.weight(),
            .logits = logits_.data()};
  }

  Random random_;
  LmHeadArgs args_;
  std::vector<float> x_, norm_, logits_;
  PackedWeight project_out_, head_;
};

inline auto lm_head_cases() {
  constexpr auto layer_norm = NormKind::layer_norm;
  constexpr auto rms_norm = NormKind::rms_norm;

  return ::testing::Combine(
      ::testing::Values(DType::f32, DType::bf16),
      ::testing::Values(
          LmHeadShape{"hidden_63_vocab_131", 63, 63, 131, layer_norm, FinalNorm::weight_and_bias,
                      70},
          LmHeadShape{"hidden_72_vocab_2049", 72, 72, 2049, rms_norm, FinalNorm::weight, 5},
          LmHeadShape{"hidden_200_vocab_1000_no_affine", 200, 200, 1000, layer_norm,
                      FinalNorm::plain, 5},
          LmHeadShape{"hidden_200_no_norm_projected_to_63_vocab_1000", 200, 63, 1000, layer_norm,
                      FinalNorm::none, 70},
          LmHeadShape{"hidden_63_projected_to_129_vocab_65", 63, 129, 65, layer_norm,
                      FinalNorm::weight_and_bias, 5}));
}

template <typename ParamInfo>
std::string lm_head_name(const ParamInfo& case_info) {
  return name_of(std::get<0>(case_info.param)) + "_" + std::get<1>(case_info.param).name;
}

}  // namespace sluice::test
