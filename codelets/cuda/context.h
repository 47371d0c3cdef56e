#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>

namespace sluice::cuda {

/// Throws Error when a CUDA call failed. `what` says what was tried.
void check(cudaError_t status, const char* what);

/// Device memory that a kernel needs while it runs: the worker's, one task at a time, in the order
/// of its stream. It grows to what the largest task asked for.
class Workspace {
 public:
  /// Where the memory comes from, so that it counts against the device's budget.
  struct Source {
    void* (*allocate)(std::size_t bytes, void* state);  ///< null when there is none
    void (*release)(void* memory, std::size_t bytes, void* state);
    void* state;
  };
  Workspace(const Source& source, cudaStream_t stream) : source_(source), stream_(stream) {}
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  /// `bytes` of device memory, aligned to 256 bytes, not initialised; what an earlier call gave is
  /// gone. Throws Error when the device has no room.
  std::byte* reserve(std::size_t bytes);

  /// Another one beside it, for the kernels that a kernel calls while it holds memory of this one.
  Workspace& inner();
  /// How often this one's memory, or an inner one's, has become another one.
  std::int64_t moves() const { return moves_ + (inner_ ? inner_->moves() : 0); }

 private:
  void release() noexcept;

  Source source_;
  cudaStream_t stream_;
  void* memory_ = nullptr;
  std::size_t bytes_ = 0;
  std::int64_t moves_ = 0;
  std::unique_ptr<Workspace> inner_;
};

/// What device code found wrong, in memory that host and device both see. The first one stays.
struct DeviceFailure {
  enum Code : std::int32_t {
    none = 0,
    token_outside_vocabulary,
    position_beyond_table,
    logit_nan,
    router_logit_not_finite,
    expert_outside_mixture
  };
  std::int32_t code = none;  ///< written last
  std::int32_t row = 0;
  std::int64_t value = 0;
  std::int32_t taken = 0;  ///< by who writes it
};

/// Of a device's memory, what CUDA's modules and cuBLAS take, and what is left free so that large
/// blocks can be had.
std::uint64_t library_bytes();

class Blas;
class SublayerEvents;
class TaskGraphs;

/// What a CUDA kernel runs with: CpuContext's sibling.
struct Context {
  cudaStream_t stream = nullptr;
  Workspace& workspace;
  Blas* blas = nullptr;
  DeviceFailure* failure = nullptr;
  int compute_capability = 0;  ///< 75, 80, 90, ...
  int num_multiprocessors = 0;
  /// In device memory, two a multiprocessor: where blocks of a kernel count each other. Zeros
  /// between kernels. Null: they do without.
  unsigned* arrived = nullptr;
  SublayerEvents* events = nullptr;  ///< null: nobody wants times
  TaskGraphs* graphs = nullptr;      ///< null: kernels are launched one by one

  /// The same with another workspace.
  Context with_workspace(Workspace& other) const {
    return {stream,  other,  blas,  failure, compute_capability, num_multiprocessors,
            arrived, events, graphs};
  }
};

/// `bytes` for what passes between the kernels of one task, which have the workspace itself. Throws
/// Error when the device has no room.
std::byte* stage_memory(const Context& gpu, std::size_t bytes);

}  // namespace sluice::cuda
