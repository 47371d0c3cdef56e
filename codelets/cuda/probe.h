#pragma once

#include <cstddef>

#include "codelets/cuda/context.h"

namespace sluice::cuda {

/// What a GPU and its way to the host give at best, each the fastest of a few tries.
struct ProbedRates {
  double memory_read_bytes_per_s = 0;  ///< of HBM, by a kernel that only reads
  double to_device_bytes_per_s = 0;    ///< from pinned memory
  double to_host_bytes_per_s = 0;      ///< to pinned memory
  double transfer_latency_s = 0;       ///< of a few bytes, from the call until they are there
  double launch_s = 0;                 ///< of an empty kernel, from the call until it has ended
};

/// Probes with `bytes` of device memory (the workspace's) and as much pinned host memory; from some
/// 64 MB on caches do not matter. Takes some 30 passes over it each way. Throws Error when there is
/// no memory.
ProbedRates probe(const Context& gpu, std::size_t bytes);

}  // namespace sluice::cuda
