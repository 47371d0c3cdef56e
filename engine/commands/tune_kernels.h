#pragma once

#include <cstdint>
#include <string>

#include "base/dtype.h"
#include "engine/machine/compute.h"
#include "models/config.h"

namespace sluice {

/// What `sluice tune --kernels` is asked for.
struct KernelTuningOrder {
  std::string model;  ///< as the user named it
  ModelConfig config;
  DType dtype = DType::bf16;
  CpuUse cpu;
  std::int64_t most_rows = 2048;
  bool force = false;
  bool dry_run = false;
  bool json = false;
};

/// Finds schedules for all products by one weight that the model has, up to so many rows, by the
/// CPU plan's threads; keeps them, and prints what was gained. Throws Error where the model has no
/// such product, and Interrupted.
void tune_kernels(const KernelTuningOrder& order);

}  // namespace sluice
