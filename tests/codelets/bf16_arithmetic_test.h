#pragma once

#include <gtest/gtest.h>

#include "codelets/kernels/bf16_strip.h"
#include "tests/codelets/codelet_data.h"

namespace sluice::test {

/// A test of an AVX-512 kernel with either arithmetic, where the CPU has it.
class Bf16ArithmeticTest : public ::testing::TestWithParam<Bf16Arithmetic> {
 public:
  static auto both() {
    return ::testing::Values(Bf16Arithmetic::dot_products, Bf16Arithmetic::multiply_add);
  }
  static std::string name(const ::testing::TestParamInfo<Bf16Arithmetic>& info) {
    return info.param == Bf16Arithmetic::dot_products ? "DotProducts" : "MultiplyAdd";
  }

 protected:
  void SetUp() override {
    if (!has_bf16_strips()) GTEST_SKIP() << "this CPU has no AVX-512";
    if (GetParam() == Bf16Arithmetic::dot_products && !has_bf16_dot_products())
      GTEST_SKIP() << "this CPU has no AVX512_BF16";
  }
  Random random_{91};
};

}  // namespace sluice::test
