#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "codelets/fc1/fc1.h"
#include "tests/codelets/codelet_data.h"

namespace sluice::test {

struct Fc1Shape {
  const char* name;
  std::int64_t hidden_size;
  std::int64_t ffn_size;
  bool gated;
  Activation activation;
  NormKind norm;
  NormPlace norm_place;
  VectorChoice vectors;
};

inline std::ostream& operator<<(std::ostream& out, const Fc1Shape& shape) {
  return out << shape.name;
}

class Fc1Fixture : public ::testing::TestWithParam<std::tuple<DType, Fc1Shape>> {
 protected:
  Fc1Fixture() : random_(51) {
    const auto& [dtype, from] = GetParam();
    DecoderShape& shape = args_.shape;
    shape.dtype = dtype;
    shape.hidden_size = from.hidden_size;
    shape.ffn_size = from.ffn_size;
    shape.gated_ffn = from.gated;
    shape.activation = from.activation;
    shape.norm = from.norm;
    shape.norm_place = from.norm_place;
    shape.num_heads = shape.num_kv_heads = shape.head_dim = 1;
    vectors_ = make_vectors(random_, shape, from.vectors);
    args_.vectors = vectors_.layout;
    x_ = random_.floats(most_rows * shape.hidden_size, 3.0);
    weight_ = make_weight(random_, shape.ffn_size, shape.hidden_size, dtype);
    if (from.gated) gate_ = make_weight(random_, shape.ffn_size, shape.hidden_size, dtype);
    args_.weight = args_.gate = weight_.type;
  }

  void set_rows(std::int64_t rows) {
    args_.tag.num_tokens = rows;
    h_.assign(static_cast<std::size_t>(rows * args_.shape.ffn_size) * size_bytes(args_.shape.dtype),
              std::byte{0});
  }

  Fc1Operands operands() {
    return {.args = &args_,
            .x = x_.data(),
            .vectors = vectors_.values.data(),
            .weight = weight_.weight(),
            .gate = gate_.weight(),
            .h = h_.data()};
  }

  static constexpr std::int64_t most_rows = 67;
  Random random_;
  Fc1Args args_;
  LayerVectors vectors_;
  std::vector<float> x_;
  PackedWeight weight_, gate_;
  std::vector<std::byte> h_;
};

inline auto fc1_cases() {
  constexpr auto layer_norm = NormKind::layer_norm;
  constexpr auto rms_norm = NormKind::rms_norm;
  constexpr auto pre = NormPlace::pre;
  constexpr auto post = NormPlace::post;
  constexpr VectorChoice weight_only{.norm_weight = true};
  constexpr VectorChoice all_vectors{.norm_weight = true, .norm_bias = true, .linear_bias = true};
  constexpr VectorChoice no_vectors{.norm_weight = false};

  return ::testing::Combine(
      ::testing::Values(DType::f32, DType::bf16),
      ::testing::Values(
          Fc1Shape{"relu_63_to_101", 63, 101, false, Activation::relu, layer_norm, pre,
                   all_vectors},
          Fc1Shape{"relu_200_to_333_post", 200, 333, false, Activation::relu, layer_norm, post,
                   all_vectors},
          Fc1Shape{"gelu_72_to_65", 72, 65, false, Activation::gelu, rms_norm, pre, weight_only},
          Fc1Shape{"gelu_tanh_72_to_1000", 72, 1000, false, Activation::gelu_tanh, layer_norm, pre,
                   no_vectors},
          Fc1Shape{"silu_63_to_63_post", 63, 63, false, Activation::silu, rms_norm, post,
                   no_vectors},
          Fc1Shape{"gated_silu_200_to_333", 200, 333, true, Activation::silu, rms_norm, pre,
                   weight_only},
          Fc1Shape{"gated_silu_63_to_2049", 63, 2049, true, Activation::silu, rms_norm, pre,
                   weight_only},
          Fc1Shape{"gated_gelu_tanh_72_to_97", 72, 97, true, Activation::gelu_tanh, rms_norm, pre,
                   no_vectors}));
}

template <typename ParamInfo>
std::string fc1_name(const ParamInfo& case_info) {
  return name_of(std::get<0>(case_info.param)) + "_" + std::get<1>(case_info.param).name;
}

}  // namespace sluice::test
