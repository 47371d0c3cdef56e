#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <tuple>
#include <vector>

#include "perfmodels/placement.h"
#include "tests/codelets/codelet_data.h"

namespace sluice::test {

/// Shapes for the projections that end a layer's halves: out_proj and fc2.
struct ResidualShape {
  const char* name;
  std::int64_t hidden_size;
  std::int64_t inner_size;  ///< q_size or ffn_size
  NormKind norm;
  NormPlace norm_place;
  VectorChoice vectors;
};

inline std::ostream& operator<<(std::ostream& out, const ResidualShape& shape) {
  return out << shape.name;
}

inline auto residual_cases() {
  constexpr VectorChoice weight_only{.norm_weight = true};
  constexpr VectorChoice all_vectors{.norm_weight = true, .norm_bias = true, .linear_bias = true};
  constexpr VectorChoice no_vectors{.norm_weight = false};
  return ::testing::Combine(
      ::testing::Values(DType::f32, DType::bf16),
      ::testing::Values(ResidualShape{"hidden_63_from_63", 63, 63, NormKind::layer_norm,
                                      NormPlace::pre, all_vectors},
                        ResidualShape{"hidden_72_from_101", 72, 101, NormKind::rms_norm,
                                      NormPlace::pre, weight_only},
                        ResidualShape{"hidden_200_from_1000", 200, 1000, NormKind::rms_norm,
                                      NormPlace::pre, no_vectors},
                        ResidualShape{"hidden_200_from_333_post", 200, 333, NormKind::layer_norm,
                                      NormPlace::post, all_vectors},
                        ResidualShape{"hidden_63_from_9_post_rms", 63, 9, NormKind::rms_norm,
                                      NormPlace::post, weight_only},
                        ResidualShape{"hidden_1025_from_65_post_no_affine", 1025, 65,
                                      NormKind::layer_norm, NormPlace::post, no_vectors}),
      ::testing::Values(Sublayer::out_proj, Sublayer::fc2));
}

template <typename ParamInfo>
std::string residual_name(const ParamInfo& case_info) {
  return name_of(std::get<0>(case_info.param)) + "_" + std::get<1>(case_info.param).name + "_" +
         std::string(to_string(std::get<2>(case_info.param)));
}

}  // namespace sluice::test
