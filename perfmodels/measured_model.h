#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "perfmodels/calibration.h"
#include "perfmodels/cost_model.h"
#include "perfmodels/roofline.h"

namespace sluice {

/// Seconds over one thing, at points that were measured. Between two points the straight line (NEO
/// section 3.2: measured offline at buckets, interpolated linearly); below the first one its value;
/// beyond the last one in proportion.
class SecondsCurve {
 public:
  /// `x` ascending; both above 0. Throws Error otherwise.
  void add(double x, double seconds);
  bool empty() const { return x_.empty(); }
  double last_x() const { return x_.back(); }
  std::size_t size() const { return x_.size(); }
  /// At least one point.
  double at(double x) const;
  /// The same, but beyond the last point straight on, if the last two points rise.
  double straight_on_at(double x) const;

 private:
  std::vector<double> x_;
  std::vector<double> seconds_;
};

/// What `sluice calibrate` has measured of a device, the CPU or an accelerator, as a cost model at
/// some rates of the machine. docs/design/cost-model.md#calibrated-times has the rules:
///   1, 4, 5, 6, LM head   a curve over rows
///   attention, decode     over whole KV pages at each batch, straight between batches
///   attention, prefill    over earlier tokens at each number of rows and batch; rows in log-log
///   storing KV            a curve over rows in each phase, else the memory's rate
/// 2 and 3 are half of attention each: the fused stage has no seam to measure at.
class MeasuredModel : public CostModel {
 public:
  /// `model` must have the calibration's layers. Throws Error when a sublayer or phase was not
  /// measured.
  MeasuredModel(const Calibration& calibration, const ModelDimensions& model);

  /// What its times are for: the median over all samples, unless at_rates() says otherwise.
  const MachineRates& rates() const { return rates_; }
  /// The same machine when its memory and arithmetic give other rates.
  MeasuredModel at_rates(const MachineRates& rates) const;

  const ModelDimensions& model() const override { return model_; }
  /// The one that was measured.
  Device device() const { return device_; }
  bool has(Device device) const override { return device == device_; }
  std::uint64_t capacity_bytes(Tier tier) const override {
    return tier == Tier::ddr ? ddr_bytes_ : 0;
  }

  using CostModel::compute_s;
  /// Throws Error for the other device, and for a sublayer that is none of a layer's.
  double compute_s(Device device, Sublayer sublayer, const BatchShape& shape,
                   Tier operand) const override;
  double lm_head_s(Device device, std::int64_t logit_rows) const override;
  /// Throws Error when the link was not measured.
  double transfer_s(Tier from, Tier to, double bytes) const override;
  /// Medians; nothing is taken to be faster for what runs beside it.
  Interference interference(Phase phase) const override {
    return interference_[static_cast<std::size_t>(phase)];
  }
  /// Median.
  double two_way_slowdown() const override { return two_way_slowdown_; }
  /// Once a task: its kernels' times contain what starting them takes.
  double task_overhead_s(Device device, int num_sublayers) const override;

 private:
  using ByBatch = std::map<std::int64_t, SecondsCurve>;
  struct Reduction;

  MeasuredModel(std::shared_ptr<const Calibration> calibration, const ModelDimensions& model,
                const MachineRates& rates);
  double linear_s(Sublayer sublayer, double rows) const;
  std::int64_t measured_window() const { return calibration_->model.sliding_window_tokens; }
  double attention_s(const BatchShape& shape) const;
  double decode_attention_s(const BatchShape& shape) const;
  /// As many sequences of so many pages, or more, as keep all threads for as long: a thread takes a
  /// short context as a whole, and others wait for the last one.
  double even_sequences(double sequences, double pages) const;
  double prefill_attention_s(const BatchShape& shape) const;
  /// Of one of a measured batch's sequences.
  double prefill_row_s(std::int64_t batch, double rows, double prior) const;
  /// With more rows than were measured.
  double further_row_s(const ByBatch& by_rows, double rows, double prior) const;
  /// With a number of rows that was measured.
  double measured_row_s(const ByBatch::value_type& bucket, double prior) const;
  double keys_of_row(double rows, double prior) const;  ///< that one of so many sees
  double kv_store_s(const BatchShape& shape) const;

  std::shared_ptr<const Calibration> calibration_;
  ModelDimensions model_;
  Device device_ = Device::cpu;
  std::uint64_t ddr_bytes_ = 0;
  MachineRates rates_;
  std::array<SecondsCurve, timed_sublayers.size()> linear_;  ///< none of attention
  ByBatch decode_;                                           ///< by batch, over pages
  std::map<std::int64_t, ByBatch> prefill_;  ///< by batch, by rows, over prior tokens + 1
  /// A row's and sequence's, without tokens before, by batch, by rows: more of them.
  std::map<std::int64_t, std::map<std::int64_t, double>> first_prompts_;
  std::array<SecondsCurve, 2> kv_stores_;              ///< by phase, over rows
  std::map<std::array<Tier, 2>, SecondsCurve> links_;  ///< from and to
  std::array<Interference, 2> interference_{};
  double two_way_slowdown_ = 1;
  double task_overhead_s_ = 0;
};

}  // namespace sluice
