#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/measure/bench.h"
#include "engine/run/device.h"
#include "models/model.h"
#include "perfmodels/calibration.h"

namespace sluice {

/// Which batches a calibration measures, by how much memory and time they may take.
struct CalibrationLimits {
  std::int64_t num_layers = 1;                      ///< that are loaded
  std::uint64_t kv_bytes = std::uint64_t{2} << 30;  ///< of all of them
  double longest_s = 4;                             ///< one repetition of one batch
  MachineRates rates;                               ///< by which that is foreseen
};

/// The same model with another number of layers.
ModelConfig with_layers(ModelConfig config, std::int64_t num_layers);

/// Layers of a model that are enough for each to be read from memory and not from caches.
std::int64_t calibration_layers(const ModelConfig& config, DType dtype);

/// A calibration's largest iteration: what kernels' memory on a GPU is reckoned for.
LargestIteration largest_calibration_iteration(const ModelConfig& config, DType dtype);

/// What fits an accelerator's memory, with all weights and KV there: as many layers as on the CPU,
/// or fewer. Throws Error when not even one fits, with the memory that would do.
CalibrationLimits limits_on(const Accelerator& accelerator, const ModelConfig& config, DType dtype);

/// Seconds that one iteration of a batch takes at best.
double foreseen_s(const CalibrationBatch& batch, const ModelDimensions& model,
                  std::int64_t num_layers, const MachineRates& rates);

/// Buckets, evenly in powers of two: decode over batches and contexts, prefill over new rows,
/// tokens before them, and sequences. Between two of them one more for the linear sublayers, from
/// 24 rows on a prompt without tokens before, which tells of attention, too.
std::vector<CalibrationBatch> calibration_batches(const ModelConfig& config, DType dtype,
                                                  const CalibrationLimits& limits);
/// Batches between those buckets.
std::vector<CalibrationBatch> check_batches(const ModelConfig& config, DType dtype,
                                            const CalibrationLimits& limits);

/// An accelerator that computes all sublayers, with what it needs in its memory.
struct MeteredAccelerator {
  const AcceleratorRun& run;
  PolicyRun& policy;  ///< gpu-only
  /// Of a GPU, whose rates do not change with what else the CPU does; nothing: the CPU's, probed.
  std::optional<MachineRates> rates;
};

/// Measures batches as a run computes them: the same tasks, weights packed as a run's, KV in pages,
/// with fewer layers.
class BatchMeter {
 public:
  /// Random weights. `batches` are those that may be asked for. With an accelerator that one is
  /// measured, else the CPU. Throws Error when memory does not suffice.
  BatchMeter(const ModelConfig& config, DType dtype, Runtime& runtime, std::int64_t num_layers,
             const std::vector<CalibrationBatch>& batches,
             const std::optional<MeteredAccelerator>& accelerator);
  ~BatchMeter();
  BatchMeter(const BatchMeter&) = delete;
  BatchMeter& operator=(const BatchMeter&) = delete;

  /// Some tens of milliseconds, or one iteration; then the probes. Throws Interrupted soon after
  /// Ctrl-C.
  CalibrationSample measure(const CalibrationBatch& batch);
  /// Microseconds that a task costs beside its kernel: what --no-fuse adds to an iteration, by the
  /// tasks that it adds.
  double measure_task_overhead_us();
  /// Adds what storing KV takes, once.
  void measure_kv_stores(Calibration& into);
  /// Adds the link to the accelerator's memory and the one back, once. Only with an accelerator.
  void measure_links(Calibration& into);
  /// Adds what that link and kernels do to each other, on either device and in either phase, and
  /// what its two ways do, once. Only with an accelerator.
  void measure_interference(Calibration& into);

 private:
  struct Loaded;
  std::unique_ptr<Loaded> loaded_;
};

/// Called before each measurement with the work done so far, in all, and what comes.
using CalibrationProgress =
    std::function<void(double done_s, double total_s, const std::string& what)>;

/// Adds what is missing: every batch once, then every batch again, and so on, so that a machine
/// that drifts does so for all of them, and short ones between; after the first time, shortest
/// first, as far as all of it takes less than a minute a repetition. `save` is called now and then,
/// and when Ctrl-C ends it, before Interrupted is thrown.
void calibrate(Calibration& calibration, BatchMeter& meter,
               const std::vector<CalibrationBatch>& batches,
               const std::function<double(const CalibrationBatch&)>& cost_s,
               const CalibrationProgress& progress, const std::function<void()>& save);

std::string describe(const CalibrationBatch& batch);

}  // namespace sluice
