#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "codelets/runtime/gpu.h"
#include "codelets/runtime/runtime.h"
#include "engine/machine/gpu_scratch.h"

namespace sluice {

/// What a run is asked to have beside the CPU.
struct DeviceSettings {
  enum class Kind : std::uint8_t { automatic, cpu, cuda, stand_in };
  /// So much of the GPU's memory.
  struct Hbm {
    std::uint64_t bytes = 0;
    std::string text;  ///< as it was asked for
  };
  Kind kind = Kind::automatic;       ///< the first GPU where there is one, else nothing
  std::uint64_t stand_in_bytes = 0;  ///< memory of a stand-in, whole MiB
  std::optional<Hbm> hbm;            ///< nothing: all that is free
  bool graphs = true;                ///< whether a GPU's kernels may be launched as CUDA graphs
};

/// What a run has beside the CPU.
struct Accelerator {
  enum class Kind : std::uint8_t { none, cuda, stand_in };
  Kind kind = Kind::none;
  std::uint64_t memory_bytes = 0;  ///< that StarPU may use
  GpuDevice gpu;                   ///< of CUDA's only
  CopyRates copies;                ///< of CUDA's only
  GpuScratch scratch;              ///< of CUDA's only, once the run's sizes are known
  bool graphs = true;              ///< whether kernels that come again are launched as CUDA graphs

  explicit operator bool() const { return kind != Kind::none; }
  /// What a calibration of it is kept as: whatever memory it has, it computes alike.
  std::string calibration_name() const;
  /// "NVIDIA H200 with 20.0 GiB", or "stand-in accelerator (a second process, for tests) of 64.0
  /// MiB".
  std::string name() const;
  /// As much as option_for() may ask for: what a GPU has free, all memory for a stand-in.
  std::uint64_t most_bytes() const;
  /// "--hbm 20480MiB", or what else gives it so much memory that StarPU may use `bytes`.
  std::string option_for(std::uint64_t bytes) const;
  /// The same for iterations of at most that size. Throws Error when a GPU's memory does not even
  /// hold what the kernels need.
  Accelerator sized_for(const ModelConfig& config, DType dtype,
                        const LargestIteration& largest) const;
  /// `options` with it.
  RuntimeOptions runtime_options(RuntimeOptions options) const;
};

/// What is asked for, on this machine; a GPU only if this program has kernels for it. Throws Error
/// when the GPU cannot be had, or has less free memory.
Accelerator find_accelerator(const DeviceSettings& settings);

}  // namespace sluice
