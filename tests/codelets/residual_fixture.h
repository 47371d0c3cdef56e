#pragma once

#include <gtest/gtest.h>

#include <tuple>
#include <vector>

#include "codelets/residual/residual.h"
#include "tests/codelets/residual_cases.h"

namespace sluice::test {

class ResidualFixture
    : public ::testing::TestWithParam<std::tuple<DType, ResidualShape, Sublayer>> {
 protected:
  ResidualFixture() : random_(61) {
    const auto& [dtype, from, sublayer] = GetParam();
    args_.tag.sublayer = args_.tag.last_sublayer = sublayer;
    DecoderShape& shape = args_.shape;
    shape.dtype = dtype;
    shape.hidden_size = from.hidden_size;
    shape.num_heads = shape.num_kv_heads = 1;
    shape.head_dim = sublayer == Sublayer::out_proj ? from.inner_size : 1;
    shape.ffn_size = sublayer == Sublayer::fc2 ? from.inner_size : 1;
    shape.gated_ffn = false;
    shape.norm = from.norm;
    shape.norm_place = from.norm_place;
    vectors_ = make_vectors(random_, shape, from.vectors);
    args_.vectors = ResidualVectors::of(vectors_.layout, sublayer);
    weight_ = make_weight(random_, from.hidden_size, from.inner_size, dtype);
    args_.weight = weight_.type;
    input_ = make_operand(random_.floats(most_rows * from.inner_size, 2.0), dtype);
    residual_ = random_.floats(most_rows * from.hidden_size, 3.0);
  }

  void set_rows(std::int64_t rows) {
    args_.tag.num_tokens = rows;
    x_.assign(residual_.begin(), residual_.begin() + rows * args_.shape.hidden_size);
  }

  ResidualOperands operands() {
    return {.args = &args_,
            .inner = input_.data(),
            .vectors = vectors_.values.data(),
            .weight = weight_.weight(),
            .x = x_.data()};
  }

  static constexpr std::int64_t most_rows = 66;
  Random random_;
  ResidualArgs args_;
  LayerVectors vectors_;
  PackedWeight weight_;
  Operand input_;
  std::vector<float> residual_, x_;
};

}  // namespace sluice::test
