#pragma once

#include <functional>

#include "perfmodels/calibration.h"

namespace sluice {

/// A layer of round sizes.
inline ModelDimensions round_model() {
  ModelDimensions model;
  model.num_layers = 4;
  model.hidden_size = model.embed_size = 64;
  model.num_heads = 4;
  model.num_kv_heads = 2;
  model.head_dim = 16;
  model.ffn_size = 128;
  model.vocab_size = 1000;
  return model;
}

/// Both far below what any of these layers needs: every sublayer waits for memory.
inline constexpr MachineRates round_rates = {.read_bandwidth_bytes_per_s = 1e9,
                                             .gemm_flop_per_s = 1e15};

inline CalibrationBatch decode_of(std::int64_t batch, std::int64_t context) {
  return {.shape = BatchShape::decode(batch, context), .logit_rows = batch};
}
inline CalibrationBatch prefill_of(std::int64_t batch, std::int64_t rows, std::int64_t prior) {
  return {.shape = {.phase = Phase::prefill, .batch = batch, .rows = rows, .context = prior + rows},
          .logit_rows = 0};
}

/// A machine whose linear sublayers take 1 ms a row, the LM head 2 ms, and attention what
/// `attention_s` says; one sample a batch, all at round_rates.
/// One thread, so that no sequence is one too many.
inline Calibration round_calibration(const std::function<double(const BatchShape&)>& attention_s) {
  Calibration calibration;
  calibration.setup = {
      .cpu = "abacus", .cores = 2, .threads = 1, .isa = "beads", .dtype = "bf16", .device = ""};
  calibration.model = round_model();
  calibration.ddr_bytes = std::uint64_t{1} << 34;
  calibration.repetitions = 1;
  calibration.task_overhead_us = {2.5};
  const auto add = [&](const CalibrationBatch& batch) {
    CalibrationSample sample = {.rates = round_rates, .seconds = {}};
    sample.seconds.fill(1e-3 * static_cast<double>(batch.shape.total_rows()));
    sample.seconds[timed_index(Sublayer::attention)] = attention_s(batch.shape);
    sample.seconds[timed_index(Sublayer::lm_head)] = 2e-3 * static_cast<double>(batch.logit_rows);
    calibration.at(batch).samples.push_back(sample);
  };
  for (const std::int64_t batch : {1, 4, 16}) {
    for (const std::int64_t context : {32, 128, 512}) add(decode_of(batch, context));
  }
  for (const std::int64_t rows : {8, 32, 128}) {
    for (const std::int64_t prior : {0, 512}) add(prefill_of(1, rows, prior));
  }
  add(prefill_of(4, 32, 0));
  // Storing KV: 1 us a row of a prompt, 4 us each that decodes; of three repetitions the middle.
  for (const double times : {5, 1, 1}) {
    for (const std::int64_t rows : {8, 128}) {
      const double row_s = 1e-6 * times * static_cast<double>(rows);
      const auto add_store = [&](Phase phase, double seconds) {
        calibration.kv_stores.push_back(
            {.phase = phase, .rows = rows, .rates = round_rates, .seconds = seconds});
      };
      add_store(Phase::prefill, row_s);
      add_store(Phase::decode, 4 * row_s);
    }
  }
  return calibration;
}

/// The same of an accelerator, with the link to its memory: from it, half as fast. Three
/// repetitions of what that link and the CPU's decoding do to each other.
inline Calibration accelerator_calibration(
    const std::function<double(const BatchShape&)>& attention_s) {
  Calibration calibration = round_calibration(attention_s);
  calibration.setup.device = "sand clock";
  calibration.task_overhead_us = {200};
  calibration.links = {
      {.from = Tier::ddr, .to = Tier::hbm, .points = {{1000, 50e-6}, {1e6, 1e-3}}},
      {.from = Tier::hbm, .to = Tier::ddr, .points = {{1000, 60e-6}, {1e6, 2e-3}}}};
  // Decoding on the CPU: kernels take 1, 2 and 4 times as long, data 2, 3 and 9 times.
  const auto add = [&](double kernels_times, double link_times) {
    calibration.interference.push_back({.device = Device::cpu,
                                        .phase = Phase::decode,
                                        .kernels_alone_s = 0.5,
                                        .kernels_beside_s = 0.5 * kernels_times,
                                        .link_alone_bytes_per_s = 6e9,
                                        .link_beside_bytes_per_s = 6e9 / link_times});
  };
  add(4, 2);
  add(1, 9);
  add(2, 3);
  // Together 9 GB/s alone; 4.5, 9 and 6 both at once.
  for (const double both : {4.5e9, 9e9, 6e9}) {
    calibration.two_ways.push_back({.there_alone_bytes_per_s = 6e9,
                                    .there_beside_bytes_per_s = both / 3,
                                    .back_alone_bytes_per_s = 3e9,
                                    .back_beside_bytes_per_s = both * 2 / 3});
  }
  return calibration;
}

/// Bilinear in batch and context, which the interpolation gets right everywhere, and in prefill
/// linear in the keys that a row sees, which between two numbers of rows it gets right nearly.
inline double smooth_attention_s(const BatchShape& shape) {
  const auto rows = static_cast<double>(shape.total_rows());
  const auto context = static_cast<double>(shape.context);
  if (shape.phase == Phase::decode) return 1e-6 * rows * (5 + context);
  const double keys = context - static_cast<double>(shape.rows) / 2;
  return 1e-6 * rows * (5 + keys);
}

}  // namespace sluice
