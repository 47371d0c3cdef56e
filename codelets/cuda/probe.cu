#include <algorithm>
#include <chrono>
#include <limits>

#include "codelets/cuda/device.h"
#include "codelets/cuda/probe.h"

namespace sluice::cuda {
namespace {

constexpr int tries = 10;
constexpr unsigned block_threads = 512;
/// Enough to fill every multiprocessor.
constexpr unsigned blocks_a_multiprocessor = 4;

/// Reads everything; writes only what cannot be, so that the reads cannot be left out.
__global__ void read_all(const uint4* from, std::size_t count, unsigned* never_written) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  unsigned mixed = 0;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    const uint4 words = from[i];
    mixed |= words.x | words.y | words.z | words.w;
  }
  if (mixed != 0) *never_written = mixed;
}

__global__ void do_nothing() {}

/// Pinned host memory.
class PinnedMemory {
 public:
  explicit PinnedMemory(std::size_t bytes) {
    check(cudaHostAlloc(&memory_, bytes, cudaHostAllocDefault), "taking pinned memory");
  }
  ~PinnedMemory() { cudaFreeHost(memory_); }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  void* get() const { return memory_; }

 private:
  void* memory_ = nullptr;
};

/// Seconds of the fastest try, until the stream is idle.
template <typename Work>
double fastest_s(const Context& gpu, const Work& work) {
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < tries; ++i) {
    check(cudaStreamSynchronize(gpu.stream), "waiting for the device");
    const auto start = std::chrono::steady_clock::now();
    work();
    check(cudaStreamSynchronize(gpu.stream), "waiting for the device");
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count());
  }
  return best;
}

}  // namespace

ProbedRates probe(const Context& gpu, std::size_t bytes) {
  std::byte* device = gpu.workspace.reserve(bytes);
  const PinnedMemory host(bytes);
  const auto copy = [&](void* to, const void* from, std::size_t size, cudaMemcpyKind kind) {
    check(cudaMemcpyAsync(to, from, size, kind, gpu.stream), "copying");
  };
  check(cudaMemsetAsync(device, 0, bytes, gpu.stream), "clearing device memory");
  const LaunchShape all{
      .blocks = dim3(blocks_a_multiprocessor * static_cast<unsigned>(gpu.num_multiprocessors)),
      .threads = dim3(block_threads)};
  const auto size = static_cast<double>(bytes);
  ProbedRates rates;
  rates.launch_s =
      fastest_s(gpu, [&] { launch("do_nothing", do_nothing, LaunchShape{}, gpu.stream); });
  rates.memory_read_bytes_per_s =
      size / fastest_s(gpu, [&] {
        launch("read_all", read_all, all, gpu.stream, reinterpret_cast<const uint4*>(device),
               bytes / sizeof(uint4), reinterpret_cast<unsigned*>(device));
      });
  rates.to_host_bytes_per_s =
      size / fastest_s(gpu, [&] { copy(host.get(), device, bytes, cudaMemcpyDeviceToHost); });
  rates.to_device_bytes_per_s =
      size / fastest_s(gpu, [&] { copy(device, host.get(), bytes, cudaMemcpyHostToDevice); });
  rates.transfer_latency_s =
      fastest_s(gpu, [&] { copy(device, host.get(), sizeof(int), cudaMemcpyHostToDevice); });
  return rates;
}

}  // namespace sluice::cuda
