#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/memory.h"
#include "codelets/runtime/kernel_times.h"

namespace sluice {

namespace cuda {
struct Context;
}

/// A GPU as CUDA shows it.
struct GpuDevice {
  std::string name;
  int compute_capability = 0;  ///< 75, 80, 90, ...
  int num_multiprocessors = 0;
  std::uint64_t memory_bytes = 0;
  std::uint64_t free_bytes = 0;  ///< now, and with CUDA's context made
  double clock_hz = 0;
  double memory_bandwidth_bytes_per_s = 0;  ///< by its clock and width
};

/// What a program can use of a machine's GPUs.
struct GpuList {
  std::vector<GpuDevice> devices;
  std::string problem;  ///< in words, when there are none
};

/// Whether this program finds CUDA kernels, which it loads.
bool has_cuda_kernels();
/// The generations that they were compiled for, by compute capability; the last one's PTX serves
/// newer ones. Empty without kernels.
std::vector<int> cuda_architectures();
/// How many GPUs CUDA shows, whether or not they can be used; none as long as nobody has looked for
/// kernels.
int count_gpus();
/// Whether NVIDIA's driver runs here, with or without kernels.
bool has_gpu_driver();
/// The GPUs that those kernels run on. Makes a context on each.
GpuList find_gpus();
/// The one that StarPU takes, if those kernels run on it: the first that CUDA shows.
GpuList find_first_gpu();

/// Rates of copies between pinned host memory and the first GPU.
struct CopyRates {
  double to_gpu_bytes_per_s = 0;
  double from_gpu_bytes_per_s = 0;
};
/// Measures for some milliseconds; before StarPU starts. Throws Error when CUDA refuses.
CopyRates measure_copy_rates();
/// The same of this host memory, wherever it lies, at most 64 MiB of it; it is pinned meanwhile,
/// and what it held stays.
CopyRates measure_copy_rates(const Buffer& host);

/// Of a GPU's memory, what StarPU does not count: CUDA's modules, cuBLAS, and what an allocator
/// cannot use.
std::uint64_t gpu_reserve_bytes();
/// What a GPU's worker takes for cuBLASLt of StarPU's `memory_bytes`; 0 without kernels.
std::uint64_t gpu_blas_bytes(std::uint64_t memory_bytes);

/// CUDA graphs that a run has made of tasks' kernels, and how often one was launched.
struct GraphUse {
  std::int64_t captured = 0;
  std::int64_t launched = 0;
};

/// What the CUDA kernels of one StarPU worker run with. Made and ended on that worker.
class GpuWorker {
 public:
  enum class Launches : std::uint8_t {
    timed,     ///< kernels one by one, and GpuSublayerClocks stamp
    single,    ///< kernels one by one
    in_graphs  ///< those of tasks that come again as CUDA graphs
  };
  /// Throws Error when CUDA refuses, or there are no kernels.
  static std::unique_ptr<GpuWorker> make(Launches launches);
  virtual ~GpuWorker() = default;
  GpuWorker(const GpuWorker&) = delete;
  GpuWorker& operator=(const GpuWorker&) = delete;

  virtual const cuda::Context& context() const = 0;
  /// See Runtime::reserve_on_gpu().
  virtual void reserve(std::uint64_t workspace_bytes, std::uint64_t stage_bytes) = 0;
  /// What device code found wrong since the last call; empty if nothing. Any thread asks.
  virtual std::string take_failure() = 0;
  /// Waits for the kernels that were stamped, and adds their times. Throws Error when CUDA refuses.
  virtual void collect_times(KernelTimes& times) = 0;
  virtual GraphUse graph_use() const = 0;

 protected:
  GpuWorker() = default;
};

/// Stamps the sublayers of one task on a GPU, one after the other, as its stream gets there:
/// SublayerClock's sibling. Does nothing where nobody asked for times.
class GpuSublayerClock {
 public:
  GpuSublayerClock(const cuda::Context& gpu, Phase phase);
  /// All kernels of a sublayer have been submitted. Throws Error when CUDA refuses.
  void end_of(Sublayer sublayer);

 private:
  const cuda::Context& gpu_;
  Phase phase_;
};

/// Host memory that a GPU copies from and to at full speed, for as long as it lives; StarPU runs.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  /// What the system does not pin (a file's pages) is left as it is.
  void pin(void* memory, std::size_t bytes);
  std::uint64_t size_bytes() const { return size_bytes_; }

 private:
  struct Range {
    void* memory;
    std::size_t bytes;
  };
  std::vector<Range> ranges_;
  std::uint64_t size_bytes_ = 0;
};

}  // namespace sluice
