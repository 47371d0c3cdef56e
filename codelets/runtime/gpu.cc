#include "codelets/runtime/gpu.h"

#include <starpu.h>

#include "base/error.h"
#include "base/log.h"
#include "codelets/runtime/failure.h"

#ifdef SLUICE_HAS_CUDA
#include <cuda_runtime_api.h>
#include <starpu_cuda.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>
#include <new>
#include <optional>

#include "codelets/cuda/blas.h"
#include "codelets/cuda/context.h"
#include "codelets/cuda/sublayer_events.h"
#include "codelets/cuda/task_graphs.h"
#endif

namespace sluice {

PinnedMemory::~PinnedMemory() {
  for (const Range& range : ranges_) starpu_memory_unpin(range.memory, range.bytes);
}

void PinnedMemory::pin(void* memory, std::size_t bytes) {
  if (memory == nullptr || bytes == 0) return;
  if (starpu_memory_pin(memory, bytes) != 0) {
#ifdef SLUICE_HAS_CUDA
    constexpr std::size_t noticed_bytes = std::size_t{64} << 20;
    logger().log(bytes < noticed_bytes ? spdlog::level::info : spdlog::level::warn,
                 "{} bytes of host memory cannot be pinned and move more slowly: {}", bytes,
                 cudaGetErrorString(cudaGetLastError()));  // which clears it
#endif
    return;
  }
  ranges_.push_back({memory, bytes});
  size_bytes_ += bytes;
}

#ifdef SLUICE_HAS_CUDA

namespace {

using cuda::check;

constexpr int oldest_compute_capability = 75;

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "asking for a device's attributes");
  return value;
}

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

GpuList find_gpus_up_to(int most) {
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

/// Device memory from StarPU, so that it counts against its limit.
void* allocate(std::size_t bytes, void* node) {
  return reinterpret_cast<void*>(starpu_malloc_on_node(*static_cast<const unsigned*>(node), bytes));
}
void release(void* memory, std::size_t bytes, void* node) {
  starpu_free_on_node(*static_cast<const unsigned*>(node), reinterpret_cast<uintptr_t>(memory),
                      bytes);
}

std::string describe(const cuda::DeviceFailure& failure) {
  switch (failure.code) {
    case cuda::DeviceFailure::token_outside_vocabulary:
      return fmt::format("token id {} in row {} is outside of the vocabulary", failure.value,
                         failure.row);
    case cuda::DeviceFailure::position_beyond_table:
      return fmt::format("position {} in row {} is beyond the model's table of positions",
                         failure.value, failure.row);
    case cuda::DeviceFailure::logit_nan:
      return fmt::format("a logit of row {} is NaN", failure.row);
    default:
      return fmt::format("failure {} in row {}", failure.code, failure.row);
  }
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

bool has_cuda_kernels() { return true; }

std::vector<int> cuda_architectures() { return {SLUICE_CUDA_ARCHITECTURE_LIST}; }

int count_gpus() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

GpuList find_gpus() { return find_gpus_up_to(std::numeric_limits<int>::max()); }
GpuList find_first_gpu() { return find_gpus_up_to(1); }

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

CopyRates measure_copy_rates(const Buffer& host) {
  check(cudaSetDevice(0), "choosing a device");
  constexpr std::size_t most_bytes = std::size_t{64} << 20;
  const std::size_t bytes = std::min(most_bytes, host.size());
  const PinnedBuffer pinned(host.data(), bytes);
  return CopyProbe(host.data(), bytes).measure();
}

std::uint64_t gpu_reserve_bytes() { return cuda::library_bytes(); }

/// What cuBLASLt asks for, where the memory is large enough.
std::uint64_t gpu_blas_bytes(std::uint64_t memory_bytes) {
  constexpr std::uint64_t smallest_share = 64;
  return std::min<std::uint64_t>(cuda::Blas::default_workspace_bytes,
                                 memory_bytes / smallest_share);
}

struct GpuWorker::Parts {
  explicit Parts(Launches launches)
      : node(starpu_worker_get_local_memory_node()),
        stream(starpu_cuda_get_local_stream()),
        workspace({allocate, release, &node}, stream),
        blas_memory({allocate, release, &node}, stream),
        blas(blas_memory.reserve(blas_bytes(node)), blas_bytes(node)) {
    if (launches == Launches::timed) events.emplace(stream);
    if (launches == Launches::in_graphs) graphs.emplace(stream);
  }

  static std::size_t blas_bytes(unsigned of_node) {
    return gpu_blas_bytes(static_cast<std::uint64_t>(starpu_memory_get_total(of_node)));
  }

  unsigned node;
  cudaStream_t stream;
  cuda::Workspace workspace;
  cuda::Workspace blas_memory;
  cuda::Blas blas;
  cuda::DeviceFailure* failure = nullptr;  ///< in pinned host memory
  unsigned* arrived = nullptr;
  std::optional<cuda::SublayerEvents> events;
  std::optional<cuda::TaskGraphs> graphs;
  std::unique_ptr<cuda::Context> context;
};

GpuWorker::GpuWorker(Launches launches) : parts_(std::make_unique<Parts>(launches)) {
  void* host = nullptr;
  check(cudaHostAlloc(&host, sizeof(cuda::DeviceFailure), cudaHostAllocMapped), "pinning memory");
  parts_->failure = new (host) cuda::DeviceFailure;
  void* device = nullptr;
  check(cudaHostGetDevicePointer(&device, host, 0), "mapping memory");
  int current = 0;
  check(cudaGetDevice(&current), "asking for the device");
  const int num_multiprocessors = attribute(cudaDevAttrMultiProcessorCount, current);
  const std::size_t arrived_bytes =
      2 * sizeof(unsigned) * static_cast<std::size_t>(num_multiprocessors);
  void* arrived = nullptr;
  check(cudaMalloc(&arrived, arrived_bytes), "taking device memory");
  parts_->arrived = static_cast<unsigned*>(arrived);
  check(cudaMemsetAsync(arrived, 0, arrived_bytes, parts_->stream), "clearing device memory");
  check(cudaStreamSynchronize(parts_->stream), "clearing device memory");
  parts_->context = std::make_unique<cuda::Context>(cuda::Context{
      .stream = parts_->stream,
      .workspace = parts_->workspace,
      .blas = &parts_->blas,
      .failure = static_cast<cuda::DeviceFailure*>(device),
      .compute_capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor, current) +
                            attribute(cudaDevAttrComputeCapabilityMinor, current),
      .num_multiprocessors = num_multiprocessors,
      .arrived = parts_->arrived,
      .events = parts_->events ? &*parts_->events : nullptr,
      .graphs = parts_->graphs ? &*parts_->graphs : nullptr});
}

GpuWorker::~GpuWorker() {
  cudaStreamSynchronize(parts_->stream);
  cudaFree(parts_->arrived);
  cudaFreeHost(parts_->failure);
}

const cuda::Context& GpuWorker::context() const { return *parts_->context; }

void GpuWorker::reserve(std::uint64_t workspace_bytes, std::uint64_t stage_bytes) {
  parts_->workspace.reserve(workspace_bytes);
  cuda::stage_memory(context(), stage_bytes);
}

void GpuWorker::look_for_failure() {
  const volatile std::int32_t& code = parts_->failure->code;
  if (code == cuda::DeviceFailure::none) return;
  static std::mutex mutex;  // any thread asks
  const std::lock_guard lock(mutex);
  if (code == cuda::DeviceFailure::none) return;
  run_failure().record(fmt::format("a kernel on the GPU failed: {}", describe(*parts_->failure)));
  *parts_->failure = {};
}

void GpuWorker::collect_times(KernelTimes& times) {
  if (parts_->events) parts_->events->collect(times);
}

GraphUse GpuWorker::graph_use() const {
  return parts_->graphs ? parts_->graphs->use() : GraphUse{};
}

GpuSublayerClock::GpuSublayerClock(const cuda::Context& gpu, Phase phase)
    : gpu_(gpu), phase_(phase) {
  if (gpu_.events != nullptr) gpu_.events->start();
}

void GpuSublayerClock::end_of(Sublayer sublayer) {
  if (gpu_.events != nullptr) gpu_.events->end_of(phase_, sublayer);
}

#else

bool has_cuda_kernels() { return false; }
std::vector<int> cuda_architectures() { return {}; }
int count_gpus() { return 0; }
GpuList find_gpus() { return {{}, "this program was built without CUDA"}; }
GpuList find_first_gpu() { return find_gpus(); }
CopyRates measure_copy_rates() { throw Error("this program was built without CUDA"); }
CopyRates measure_copy_rates(const Buffer& /*host*/) {
  throw Error("this program was built without CUDA");
}
std::uint64_t gpu_reserve_bytes() { return 0; }
std::uint64_t gpu_blas_bytes(std::uint64_t /*memory_bytes*/) { return 0; }

struct GpuWorker::Parts {};
GpuWorker::GpuWorker(Launches /*launches*/) { throw Error("this program was built without CUDA"); }
GpuWorker::~GpuWorker() = default;
const cuda::Context& GpuWorker::context() const {
  throw Error("this program was built without CUDA");
}
void GpuWorker::reserve(std::uint64_t /*workspace_bytes*/, std::uint64_t /*stage_bytes*/) {}
void GpuWorker::look_for_failure() {}
void GpuWorker::collect_times(KernelTimes& /*times*/) {}
GraphUse GpuWorker::graph_use() const { return {}; }

#endif

}  // namespace sluice
