// Linked into a test program: all its tests are skipped where there is no GPU, real or emulated.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

namespace sluice::test {
namespace {

class NeedsDevice : public ::testing::Environment {
  void SetUp() override {
    int count = 0;
    const cudaError_t status = cudaGetDeviceCount(&count);
    if (status != cudaSuccess) GTEST_SKIP() << "no GPU: " << cudaGetErrorString(status);
    if (count == 0) GTEST_SKIP() << "no GPU: CUDA sees none";
  }
};

[[maybe_unused]] ::testing::Environment* const needs_device =
    ::testing::AddGlobalTestEnvironment(new NeedsDevice);

}  // namespace
}  // namespace sluice::test
