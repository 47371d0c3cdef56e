#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/console/tables.h"
#include "engine/draw/plot.h"
#include "engine/measure/bench.h"
#include "models/config.h"

namespace sluice {

/// A rate at one size: LIA's Figure 5 for this machine.
struct SweepPoint {
  enum class Operation : std::uint8_t {
    gemm,     ///< [rows, in] by a weight [out, in] that comes from memory
    gemv,     ///< decode attention: one row a sequence over its KV
    experts,  ///< of one layer of a mixture, as one task
  };
  Operation operation = Operation::gemm;
  std::string stage;  ///< "qkv", "out_proj", "fc1", "fc2"; "mha" or "gqa"; "experts"

  std::int64_t in = 0;  ///< not GEMV: of experts what goes in, and what passes between the products
  std::int64_t out = 0;
  std::int64_t rows = 0;

  std::int64_t num_heads = 0;  ///< GEMV only
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t batch = 0;
  std::int64_t context = 0;

  std::int64_t num_experts = 0;  ///< experts only
  std::int64_t experts_per_token = 0;
  double experts_touched = 0;  ///< different ones that the rows go through, the mean of the calls

  double seconds = 0;      ///< one call, the median of the repetitions
  StageWork work;          ///< of one call
  MachineRates rates;      ///< mean of the probes right before and right after the last repetition
  double limit_share = 0;  ///< median over the repetitions, each by the probes around it
  Bound bound = Bound::bandwidth;

  double flop_per_s() const { return work.flops / seconds; }
  double bytes_per_s() const { return work.bytes / seconds; }
};

std::vector<SweepPoint::Operation> all_sweep_operations();
/// "gemm", "gemv", "experts".
std::string_view to_string(SweepPoint::Operation operation);

/// What a sweep measures.
struct SweepOptions {
  DType dtype = DType::bf16;
  int repeat = 5;
  std::vector<SweepPoint::Operation> operations = all_sweep_operations();
  std::int64_t max_rows = 1024;
  std::int64_t max_batch = 64;
  std::int64_t max_context = 8192;
  /// Called before each point.
  std::function<void(std::int64_t done, std::int64_t total, const std::string& what)> progress;
};

/// GEMMs of a layer's weights over rows 1, 2, 4..., and decode attention over batches 1, 4, 16...
/// and contexts 256, 512, 1024..., as far as memory allows, with the model's KV heads and with one
/// a head; of a mixture the experts of one layer, in the model's formats. Operands come from
/// memory: those of one call are not used again before the caches have seen others. Sizes that take
/// half of the free memory are left out. Throws Interrupted soon after Ctrl-C.
std::vector<SweepPoint> sweep(const ModelConfig& model, Runtime& runtime,
                              const SweepOptions& options);

/// The points, ready to print; ends with a line end.
std::string format_sweep(OutputFormat format, const std::string& model, DType dtype, int threads,
                         const std::vector<SweepPoint>& points);

/// GEMM rates over rows, and attention's bandwidth over context.
std::vector<LinePlot> sweep_plots(const std::string& model, DType dtype,
                                  const std::vector<SweepPoint>& points);

}  // namespace sluice
