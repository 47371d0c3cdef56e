#include "codelets/cuda/probe.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/codelets/cuda/device_data.h"

namespace sluice::cuda {
namespace {

/// What it says of the device is for people to judge; here, that each figure was taken at all.
TEST(CudaProbeTest, TakesEveryFigure) {
  const ProbedRates rates = probe(test::gpu(), 1 << 20);
  for (const double figure :
       {rates.memory_read_bytes_per_s, rates.to_device_bytes_per_s, rates.to_host_bytes_per_s,
        rates.transfer_latency_s, rates.launch_s}) {
    EXPECT_GT(figure, 0);
    EXPECT_TRUE(std::isfinite(figure));
  }
}

}  // namespace
}  // namespace sluice::cuda
