#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "engine/console/tables.h"
#include "engine/measure/bench.h"

namespace sluice {

/// Mean and sample standard deviation (0 for fewer than two values).
struct MeanDeviation {
  double mean = 0;
  double deviation = 0;
};
MeanDeviation mean_deviation(const std::vector<double>& values);

/// What the repetitions of one test say.
struct BenchSummary {
  std::vector<double> tokens_per_s;  ///< one a repetition
  std::vector<double> limit_share;  ///< one a repetition: shortest possible time over measured time
  Bound bound = Bound::bandwidth;
  double overhead_us_per_iteration = 0;       ///< time outside of kernels, the median
  std::vector<double> to_device_bytes_per_s;  ///< one a repetition
};
BenchSummary summarise(const BenchResult& result);

/// Of a run with an accelerator: what its transfers are compared with. The limits of its arithmetic
/// and memory are not probed.
struct BenchDevice {
  std::int64_t resident_layers = 0;
  std::optional<double> copy_bytes_per_s;  ///< from pinned memory to a GPU
  GraphUse graphs;                         ///< a GPU's, of the whole run
};

/// What all tests of a run have in common.
struct BenchContext {
  std::string model;
  std::uint64_t weight_bytes = 0;
  std::string weights;       ///< the layers' format
  std::string head_weights;  ///< the LM head's
  double weight_bits = 0;    ///< the mean of what a token reads
  std::int64_t experts = 0;  ///< of a layer; 0: it has one FFN
  std::int64_t experts_per_token = 0;
  double expert_bytes = 0;  ///< of one expert of a layer
  DType dtype = DType::bf16;
  std::string backend;
  std::string policy;
  std::string policy_reason;  ///< in words, with its name
  int threads = 1;
  nlohmann::json cpu_plan;    ///< how the cores are cut up
  std::string cut_text = {};  ///< CpuUse::cut_text()
  /// Shapes of products that follow what `sluice tune --kernels` has found.
  std::int64_t tuned_gemm_shapes = 0;
  double load_s = 0;  ///< from opening the model to packed weights
  /// Measured apart by runs in another type.
  std::optional<double> gemm_bf16_flop_per_s;
  std::optional<BenchDevice> device;
};

/// The tests and what the probes saw, ready to print; ends with a line end.
std::string format_bench(OutputFormat format, const BenchContext& context,
                         const std::vector<BenchResult>& results);

}  // namespace sluice
