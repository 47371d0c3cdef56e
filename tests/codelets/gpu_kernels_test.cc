#include "codelets/runtime/gpu_kernels.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(GpuKernelsTest, ThoseOfThisProgramFit) {
  EXPECT_EQ(gpu_kernels_problem({.key = gpu_kernels_key(), .version = SLUICE_VERSION}), "");
}

TEST(GpuKernelsTest, ThoseOfAnotherOneAreNamed) {
  const std::string problem =
      gpu_kernels_problem({.key = gpu_kernels_key() + 1, .version = "9.8.7"});
  EXPECT_NE(problem.find("9.8.7"), std::string::npos) << problem;
  EXPECT_NE(problem.find(SLUICE_VERSION), std::string::npos) << problem;
}

}  // namespace
}  // namespace sluice
