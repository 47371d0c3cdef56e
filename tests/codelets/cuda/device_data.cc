#include "tests/codelets/cuda/device_data.h"

#include <utility>

#include "codelets/cuda/blas.h"

namespace sluice::test {
namespace {

void* allocate(std::size_t bytes, void* /*state*/) {
  void* memory = nullptr;
  return cudaMalloc(&memory, bytes) == cudaSuccess ? memory : nullptr;
}
void release(void* memory, std::size_t /*bytes*/, void* /*state*/) { cudaFree(memory); }

/// In pinned host memory, which has one address on both sides.
cuda::DeviceFailure* failure() {
  static cuda::DeviceFailure* shared = [] {
    void* memory = nullptr;
    cuda::check(cudaHostAlloc(&memory, sizeof(cuda::DeviceFailure), cudaHostAllocMapped),
                "pinning memory");
    return new (memory) cuda::DeviceFailure;
  }();
  return shared;
}

int attribute(cudaDeviceAttr which) {
  int value = 0;
  cuda::check(cudaDeviceGetAttribute(&value, which, 0), "asking for the device");
  return value;
}

}  // namespace

const cuda::Context& gpu() {
  static cuda::Workspace workspace({allocate, release, nullptr}, nullptr);
  static const OnDevice<std::byte> for_blas(cuda::Blas::default_workspace_bytes);
  static cuda::Blas blas(const_cast<std::byte*>(for_blas.get()),
                         cuda::Blas::default_workspace_bytes);
  // Enough for contexts that pretend to have more multiprocessors, too.
  static const OnDevice<unsigned> arrived(std::vector<unsigned>(1024));
  static const cuda::Context context{
      .workspace = workspace,
      .blas = &blas,
      .failure = failure(),
      .compute_capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor) +
                            attribute(cudaDevAttrComputeCapabilityMinor),
      .num_multiprocessors = attribute(cudaDevAttrMultiProcessorCount),
      .arrived = const_cast<unsigned*>(arrived.get())};
  return context;
}

cuda::DeviceFailure take_device_failure() {
  cuda::check(cudaDeviceSynchronize(), "waiting for the device");
  return std::exchange(*failure(), cuda::DeviceFailure{});
}

}  // namespace sluice::test
