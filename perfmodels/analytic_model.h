#pragma once

#include "perfmodels/cost_model.h"
#include "perfmodels/profile.h"

namespace sluice {

/// What a machine's profile says that one model costs. With `rows` the rows of all sequences, and
/// FLOP and bytes of sublayer_work() (LIA Table 1):
///   1, 4, 5, 6   reading = x / memory bandwidth + y / bandwidth of the tier it is in
///                arithmetic = FLOP / gemm(rows); with experts, rows of one touched expert
///                and, where weights are narrower than 16 bits, their widening: 2 bytes an element
///                at the dequantisation rate
///   2, 3 decode  reading = (x + y) / attention bandwidth(batch, visible_tokens()); at most the
///   tier's rate
///                arithmetic = FLOP / attention rate(rows)
///   2, 3 prefill reading as 1; arithmetic as decode's. Where the profile's attention is causal,
///                only the FLOP of keys that a row sees: causal_share()
/// Where a cache stands before DDR, the CPU's memory bandwidth, and the link from DDR to HBM, are
/// those of hits and misses as often as reading all of the model's weights over and over makes them
/// (MemoryCacheProfile); decode's attention is always of hits.
/// Reading and arithmetic are added or the longer one counts, as the device's profile says. Several
/// GPUs share every sublayer evenly, as Megatron's tensor parallelism has it: each half of a layer,
/// at sublayers 4 and 6, ends with an all-reduce of its output, 2 bytes an element, where the
/// profile says how long these take.
class AnalyticModel : public CostModel {
 public:
  /// Throws Error when weights are narrower than 16 bits and a device's profile does not say how
  /// fast it widens them.
  AnalyticModel(MachineProfile profile, const ModelDimensions& model);

  const MachineProfile& profile() const { return profile_; }
  const ModelDimensions& model() const override { return model_; }
  bool has(Device device) const override { return device == Device::cpu || profile_.gpu; }
  std::uint64_t capacity_bytes(Tier tier) const override;

  using CostModel::compute_s;
  /// Of LIA's six, and of `attention`, which is 2 and 3 together. Throws Error for another
  /// sublayer, and for a device that the profile does not have.
  double compute_s(Device device, Sublayer sublayer, const BatchShape& shape,
                   Tier operand) const override;
  double lm_head_s(Device device, std::int64_t logit_rows) const override;
  /// Over the direct link if there is one, else through DDR, a piece at a time: the slower link's
  /// time and both latencies; with the GPU at no more than PCIe's rate
  /// (MachineProfile::link_gb_per_s). 0 for 0 bytes. Throws Error when there is no way.
  double transfer_s(Tier from, Tier to, double bytes) const override;
  /// A profile's is each sublayer's: of what it describes, each has kernels of its own.
  double task_overhead_s(Device device, int num_sublayers) const override;

 private:
  const DeviceProfile& of(Device device) const;
  double count(Device device) const;  ///< of equal ones that share the work
  double memory_bytes_per_s(Device device, Tier tier) const;
  double linear_s(Device device, double x_bytes, double y_bytes, double flops, double rows,
                  Tier operand) const;
  double attention_s(Device device, Sublayer sublayer, const BatchShape& shape, Tier operand) const;
  double widening_s(Device device, double weight_bytes) const;
  double all_reduce_s(Device device, Sublayer sublayer, double rows) const;
  double link_s(const LinkProfile& link, double bytes) const;
  /// Of what is read from DDR at a rate, as far as its cache has it, else at another one.
  double through_cache(double hit_rate, double miss_rate) const;
  const LinkProfile& require_link(Tier from, Tier to, Tier start, Tier end) const;

  MachineProfile profile_;
  ModelDimensions model_;
  double missing_share_ = 0;  ///< of DDR's cache
};

}  // namespace sluice
