#include "codelets/cuda/devices.h"

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "base/memory.h"
#include "codelets/cuda/blas.h"
#include "codelets/cuda/context.h"

namespace sluice::cuda {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "asking for a device's attributes");
  return value;
}

namespace {

constexpr int oldest_compute_capability = 75;

GpuDevice describe(int device) {
  check(cudaSetDevice(device), "choosing a device");
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "using the device");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "asking for a device's properties");
  constexpr double kilo = 1e3;
  constexpr double transfers_per_clock = 2;
  const double bytes_per_transfer = attribute(cudaDevAttrGlobalMemoryBusWidth, device) / 8.0;
  return {.name = properties.name,
          .compute_capability = 10 * properties.major + properties.minor,
          .num_multiprocessors = properties.multiProcessorCount,
          .memory_bytes = total_bytes,
          .free_bytes = free_bytes,
          .clock_hz = kilo * attribute(cudaDevAttrClockRate, device),
          .memory_bandwidth_bytes_per_s = kilo * transfers_per_clock * bytes_per_transfer *
                                          attribute(cudaDevAttrMemoryClockRate, device)};
}

/// Somebody's host memory, pinned.
class PinnedBuffer {
 public:
  PinnedBuffer(void* memory, std::size_t bytes) : memory_(memory) {
    check(cudaHostRegister(memory_, bytes, cudaHostRegisterDefault), "pinning memory");
  }
  ~PinnedBuffer() { cudaHostUnregister(memory_); }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

 private:
  void* memory_;
};

/// Pinned host memory of its own.
class PinnedBlock {
 public:
  explicit PinnedBlock(std::size_t bytes) {
    check(cudaHostAlloc(&memory_, bytes, cudaHostAllocDefault), "pinning memory");
  }
  ~PinnedBlock() { cudaFreeHost(memory_); }
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;
  void* data() const { return memory_; }

 private:
  void* memory_ = nullptr;
};

/// Copies pinned memory back and forth until a few milliseconds have passed.
class CopyProbe {
 public:
  CopyProbe(void* host, std::size_t bytes) : host_(host), bytes_(bytes) {
    check(cudaMalloc(&device_, bytes_), "taking device memory");
    try {
      check(cudaMemset(device_, 0, bytes_), "filling device memory");
    } catch (const Error&) {
      cudaFree(device_);
      throw;
    }
  }
  ~CopyProbe() { cudaFree(device_); }
  CopyProbe(const CopyProbe&) = delete;
  CopyProbe& operator=(const CopyProbe&) = delete;

  CopyRates measure() const {
    return {.to_gpu_bytes_per_s = bytes_per_s(cudaMemcpyHostToDevice),
            .from_gpu_bytes_per_s = bytes_per_s(cudaMemcpyDeviceToHost)};
  }

 private:
  double bytes_per_s(cudaMemcpyKind kind) const {
    copy(kind);
    using Clock = std::chrono::steady_clock;
    constexpr auto enough = std::chrono::milliseconds(5);
    const Clock::time_point start = Clock::now();
    int copies = 0;
    do {
      copy(kind);
      ++copies;
    } while (Clock::now() - start < enough);
    return copies * static_cast<double>(bytes_) /
           std::chrono::duration<double>(Clock::now() - start).count();
  }

  void copy(cudaMemcpyKind kind) const {
    const bool to_gpu = kind == cudaMemcpyHostToDevice;
    check(cudaMemcpy(to_gpu ? device_ : host_, to_gpu ? host_ : device_, bytes_, kind), "copying");
    check(cudaDeviceSynchronize(), "copying");
  }

  void* host_;
  std::size_t bytes_;
  void* device_ = nullptr;
};

}  // namespace

GpuList find_gpus(int most) {
  GpuList found;
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess || count == 0) {
    found.problem = status == cudaSuccess ? "no CUDA device" : cudaGetErrorString(status);
    return found;
  }
  for (int device = 0; device < std::min(count, most); ++device) {
    try {
      GpuDevice described = describe(device);
      if (described.compute_capability >= oldest_compute_capability) {
        found.devices.push_back(std::move(described));
      } else {
        found.problem =
            fmt::format("{} is of compute capability {}.{}, at least 7.5 is needed", described.name,
                        described.compute_capability / 10, described.compute_capability % 10);
      }
    } catch (const Error& error) {
      found.problem = error.what();
      static_cast<void>(cudaGetLastError());
    }
  }
  if (count > most && found.devices.empty())
    found.problem += "; CUDA_VISIBLE_DEVICES can name another one";
  return found;
}

int count_gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

CopyRates measure_copy_rates() {
  check(cudaSetDevice(0), "choosing a device");
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  check(cudaMemGetInfo(&free_bytes, &total_bytes), "using the device");
  // Starting a copy takes some 10 us: below 1 % of what this one does.
  constexpr std::size_t most_bytes = std::size_t{64} << 20;
  const std::size_t bytes = std::min(most_bytes, free_bytes / 8);
  const PinnedBlock host(bytes);
  return CopyProbe(host.data(), bytes).measure();
}

CopyRates measure_copy_rates_of(const Buffer& host) {
  check(cudaSetDevice(0), "choosing a device");
  constexpr std::size_t most_bytes = std::size_t{64} << 20;
  const std::size_t bytes = std::min(most_bytes, host.size());
  const PinnedBuffer pinned(host.data(), bytes);
  return CopyProbe(host.data(), bytes).measure();
}

/// What cuBLASLt asks for, where the memory is large enough.
std::uint64_t blas_bytes(std::uint64_t memory_bytes) {
  constexpr std::uint64_t smallest_share = 64;
  return std::min<std::uint64_t>(Blas::default_workspace_bytes, memory_bytes / smallest_share);
}

const char* take_last_error() { return cudaGetErrorString(cudaGetLastError()); }

}  // namespace sluice::cuda
