#pragma once

#include <cstdint>
#include <string>

#include "codelets/runtime/gpu.h"
#include "codelets/runtime/runtime.h"

namespace sluice {

/// What a run has beside the CPU.
struct Accelerator {
  enum class Kind : std::uint8_t { none, cuda, stand_in };
  Kind kind = Kind::none;
  std::uint64_t memory_bytes = 0;  ///< that StarPU may use
  GpuDevice gpu;                   ///< of CUDA's only
  CopyRates copies;                ///< of CUDA's only

  explicit operator bool() const { return kind != Kind::none; }
  /// "NVIDIA H200 with 20.0 GiB", or "stand-in accelerator (a second process, for tests) of 64.0
  /// MiB".
  std::string name() const;
  /// "--hbm 20480MiB", or what else gives it so much memory that StarPU may use `bytes`.
  std::string option_for(std::uint64_t bytes) const;
  /// `options` with it.
  RuntimeOptions runtime_options(RuntimeOptions options) const;
};

}  // namespace sluice
