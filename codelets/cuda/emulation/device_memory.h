#pragma once

#include <cstddef>

namespace sluice::cuda::emulation {

/// The emulated device's memory: one range of addresses. Nobody may touch it but who holds an
/// OpenMemory in its own thread, so that host code which reads through a device pointer ends in a
/// segmentation fault, as it would on a machine with a GPU.
class OpenMemory {
 public:
  OpenMemory();
  ~OpenMemory();
  OpenMemory(const OpenMemory&) = delete;
  OpenMemory& operator=(const OpenMemory&) = delete;
};

/// Whether `memory` is the device's.
bool is_device_memory(const void* memory);

}  // namespace sluice::cuda::emulation
