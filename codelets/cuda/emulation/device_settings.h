#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

namespace sluice::cuda::emulation {

/// What the environment says of the emulated device.
struct DeviceSettings {
  /// SLUICE_EMULATED_GPU: its memory in MiB; 2048 without it. Only what is used is taken.
  std::size_t memory_bytes;
  /// SLUICE_EMULATED_GPU=none: there is no device.
  bool missing;
  /// SLUICE_EMULATED_GPU=busy: there is one, and another process has it for itself.
  bool busy;
};
const DeviceSettings& settings();

/// What calls that need a context return, as the device is missing or busy.
cudaError_t status_of_context();
/// Whether the calling thread captures a stream, and what those calls return then that must not
/// come between.
bool is_capturing();
cudaError_t status_beside_capture();
/// The thread's last error.
cudaError_t fail(cudaError_t error);

}  // namespace sluice::cuda::emulation
