#include "codelets/cuda/device.h"
#include "tests/codelets/cuda/gpu_runtime_kernels.h"

namespace sluice::test {
namespace {

__global__ void add(const float* values, std::int64_t count, float* sum) {
  for (std::int64_t i = threadIdx.x; i < count; i += blockDim.x) atomicAdd(sum, values[i]);
}

__global__ void find(cuda::DeviceFailure* failure) {
  constexpr std::int32_t none = cuda::DeviceFailure::none;
  constexpr std::int32_t found = cuda::DeviceFailure::token_outside_vocabulary;
  if (atomicCAS(&failure->code, none, found) != none) return;
  failure->row = 5;
  failure->value = 1234;
}

}  // namespace

void add_up(const cuda::Context& gpu, const float* values, std::int64_t count, float* sum) {
  cuda::launch("add_up", add, {.threads = dim3(32)}, gpu.stream, values, count, sum);
}

void find_fault(const cuda::Context& gpu) {
  cuda::launch("find_fault", find, {}, gpu.stream, gpu.failure);
}

}  // namespace sluice::test
