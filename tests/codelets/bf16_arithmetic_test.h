#pragma once

#include <gtest/gtest.h>

#include "codelets/kernels/strip_gemm.h"
#include "tests/codelets/codelet_data.h"

namespace sluice::test {

inline std::string name_of(Bf16Arithmetic arithmetic) {
  switch (arithmetic) {
    case Bf16Arithmetic::dot_products:
      return "DotProducts";
    case Bf16Arithmetic::multiply_add:
      return "MultiplyAdd";
    case Bf16Arithmetic::amx:
      return "Amx";
    case Bf16Arithmetic::portable:
      break;
  }
  return "Portable";
}

/// A test of a kernel with an arithmetic, where the CPU has it.
class Bf16ArithmeticTest : public ::testing::TestWithParam<Bf16Arithmetic> {
 public:
  static auto with_avx512() {
    return ::testing::Values(Bf16Arithmetic::dot_products, Bf16Arithmetic::multiply_add);
  }
  static auto all() {
    return ::testing::Values(Bf16Arithmetic::dot_products, Bf16Arithmetic::multiply_add,
                             Bf16Arithmetic::portable, Bf16Arithmetic::amx);
  }
  static std::string name(const ::testing::TestParamInfo<Bf16Arithmetic>& info) {
    return name_of(info.param);
  }

 protected:
  void SetUp() override {
    if (!has_arithmetic(GetParam())) GTEST_SKIP() << "this CPU has not what it takes";
  }
  Random random_{91};
};

}  // namespace sluice::test
