#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "codelets/runtime/kernel_times.h"

namespace sluice::cuda {

/// How long the sublayers on a stream take, by events between them. Used by the stream's worker.
class SublayerEvents {
 public:
  explicit SublayerEvents(cudaStream_t stream) : stream_(stream) {}
  ~SublayerEvents();
  SublayerEvents(const SublayerEvents&) = delete;
  SublayerEvents& operator=(const SublayerEvents&) = delete;

  /// A task's kernels follow. Throws Error when CUDA refuses, as the others do.
  void start();
  /// All kernels of a sublayer have been submitted since start(), or since the last sublayer.
  void end_of(Phase phase, Sublayer sublayer);
  /// Waits for all of them and adds what each took.
  void collect(KernelTimes& times);

 private:
  struct Span {
    Phase phase;
    Sublayer sublayer;
    std::size_t begin, end;  ///< places in `events_`
  };
  std::size_t record();

  cudaStream_t stream_;
  std::vector<cudaEvent_t> events_;
  std::size_t num_recorded_ = 0;  ///< of them, since collect()
  std::vector<Span> spans_;
};

}  // namespace sluice::cuda
