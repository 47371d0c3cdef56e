#pragma once

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "codelets/fc2/fc2.h"
#include "tests/codelets/residual_cases.h"

namespace sluice::test {

class Fc2Fixture : public ::testing::TestWithParam<std::tuple<DType, ResidualShape>> {
 protected:
  Fc2Fixture() : random_(71) {
    const auto& [dtype, from] = GetParam();
    DecoderShape& shape = args_.shape;
    shape.dtype = dtype;
    shape.hidden_size = from.hidden_size;
    shape.num_heads = shape.num_kv_heads = 1;
    shape.ffn_size = from.inner_size;
    shape.gated_ffn = false;
    shape.norm = from.norm;
    shape.norm_place = from.norm_place;
    vectors_ = make_vectors(random_, shape, from.vectors);
    args_.vectors = vectors_.layout;
    weight_ = make_weight(random_, from.hidden_size, from.inner_size, dtype);
    args_.weight = weight_.type;
    input_ = make_operand(random_.floats(most_rows * from.inner_size, 2.0), dtype);
    residual_ = random_.floats(most_rows * from.hidden_size, 3.0);
  }

  void set_rows(std::int64_t rows) {
    args_.tag.num_tokens = rows;
    x_.assign(residual_.begin(), residual_.begin() + rows * args_.shape.hidden_size);
  }

  Fc2Operands operands() {
    return {.args = &args_,
            .h = input_.data(),
            .vectors = vectors_.values.data(),
            .weight = weight_.weight(),
            .x = x_.data()};
  }

  static constexpr std::int64_t most_rows = 66;
  Random random_;
  Fc2Args args_;
  LayerVectors vectors_;
  PackedWeight weight_;
  Operand input_;
  std::vector<float> residual_, x_;
};

}  // namespace sluice::test
