#pragma once

namespace sluice {

/// How long the GPU's worker has had a task that had begun and not ended: by StarPU's own account,
/// which costs some microseconds a task, and is kept while this lives. One thread calls; StarPU
/// runs.
class GpuBusy {
 public:
  GpuBusy();
  ~GpuBusy();
  GpuBusy(const GpuBusy&) = delete;
  GpuBusy& operator=(const GpuBusy&) = delete;

  /// Since this was made; 0 without a GPU.
  double seconds();

 private:
  double seconds_ = 0;
};

}  // namespace sluice
