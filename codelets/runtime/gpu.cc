#include "codelets/runtime/gpu.h"

#include <starpu.h>

#include <filesystem>
#include <limits>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "codelets/runtime/gpu_kernels.h"

namespace sluice {
namespace {

GpuList find_gpus_up_to(int most) {
  GpuList found;
  if (const GpuKernels* kernels = find_gpu_kernels(found.problem)) return kernels->find_gpus(most);
  return found;
}

}  // namespace

PinnedMemory::~PinnedMemory() {
  for (const Range& range : ranges_) starpu_memory_unpin(range.memory, range.bytes);
}

void PinnedMemory::pin(void* memory, std::size_t bytes) {
  if (memory == nullptr || bytes == 0) return;
  if (starpu_memory_pin(memory, bytes) != 0) {
    if (const GpuKernels* kernels = loaded_gpu_kernels()) {
      constexpr std::size_t noticed_bytes = std::size_t{64} << 20;
      logger().log(bytes < noticed_bytes ? spdlog::level::info : spdlog::level::warn,
                   "{} bytes of host memory cannot be pinned and move more slowly: {}", bytes,
                   kernels->take_last_error());
    }
    return;
  }
  ranges_.push_back({memory, bytes});
  size_bytes_ += bytes;
}

bool has_cuda_kernels() {
  std::string ignored;
  return find_gpu_kernels(ignored) != nullptr;
}

std::vector<int> cuda_architectures() {
  return has_cuda_kernels() ? gpu_kernels().architectures() : std::vector<int>{};
}

int count_gpus() {
  const GpuKernels* kernels = loaded_gpu_kernels();
  return kernels != nullptr ? kernels->count_gpus() : 0;
}

bool has_gpu_driver() {
  std::error_code ignored;
  return std::filesystem::exists("/dev/nvidiactl", ignored);
}

GpuList find_gpus() { return find_gpus_up_to(std::numeric_limits<int>::max()); }
GpuList find_first_gpu() { return find_gpus_up_to(1); }

CopyRates measure_copy_rates() { return gpu_kernels().measure_copy_rates(); }
CopyRates measure_copy_rates(const Buffer& host) {
  return gpu_kernels().measure_copy_rates_of(host);
}

std::uint64_t gpu_reserve_bytes() {
  const GpuKernels* kernels = loaded_gpu_kernels();
  return kernels != nullptr ? kernels->reserve_bytes() : 0;
}

std::uint64_t gpu_blas_bytes(std::uint64_t memory_bytes) {
  const GpuKernels* kernels = loaded_gpu_kernels();
  return kernels != nullptr ? kernels->blas_bytes(memory_bytes) : 0;
}

std::unique_ptr<GpuWorker> GpuWorker::make(Launches launches) {
  return gpu_kernels().make_worker(launches);
}

GpuSublayerClock::GpuSublayerClock(const cuda::Context& gpu, Phase phase)
    : gpu_(gpu), phase_(phase) {
  gpu_kernels().start_sublayers(gpu_);
}

void GpuSublayerClock::end_of(Sublayer sublayer) {
  gpu_kernels().end_of_sublayer(gpu_, phase_, sublayer);
}

}  // namespace sluice
