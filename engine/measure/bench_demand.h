#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "engine/machine/compute.h"
#include "engine/measure/bench.h"
#include "engine/run/run_setup.h"
#include "models/model.h"

namespace sluice {

/// A folder, the embedded model, or a shape, whose random weights are in memory.
struct BenchModel {
  Model model;
  std::uint64_t table_bytes = 0;  ///< embedding tables that random weights keep in memory
};
/// `set_formats` gives the config the formats that weights were asked for in. Throws Error.
BenchModel open_bench_model(const std::string& name, DType dtype,
                            const std::function<void(ModelConfig&)>& set_formats);

/// Throws UsageError where a test needs a longer context than the model has.
void check_context(const std::vector<BenchTest>& tests, const ModelConfig& config);

/// Sequences at once, of the largest test.
std::int64_t max_batch(const std::vector<BenchTest>& tests);

/// How tests run.
struct BenchRun {
  DType dtype = DType::bf16;
  CpuUse cpu;
  const TierSettings& tiers;
  Accelerator accelerator;
  Fusion fusion = Fusion::layers;
  std::string smaller;  ///< what would need less memory: see shortage_text()
};
/// What a run of these tests demands, as large as each of them gets. The model outlives it.
RunDemand bench_demand(const BenchModel& opened, const std::vector<BenchTest>& tests,
                       const BenchRun& run);

}  // namespace sluice
