#pragma once

#include "perfmodels/cost_model.h"
#include "perfmodels/profile.h"

namespace sluice {

/// What a machine's profile says that one model costs. With `rows` the rows of all sequences, and
/// FLOP and bytes (x, y) of sublayer_work() (LIA Table 1):
///
///   sublayer     reading                                       arithmetic
///   1, 4, 5, 6   x / memory + y / y's tier                     FLOP / gemm(rows) + widening
///   2, 3 decode  (x + y) / attention(batch, visible_tokens())  FLOP / attention(rows)
///   2, 3 prefill as 1                                          as decode, x causal_share()
///
/// 1. Both add up, or the longer one counts: DeviceProfile::combine.
/// 2. Experts: rows of one touched expert. Widening, below 16 bits: 2 bytes an element.
/// 3. Decode's attention is at most as fast as the tier, and always hits a cache before DDR; other
///    reading, and DDR's link to HBM, hits and misses it as MemoryCacheProfile has it.
/// 4. Several GPUs share a sublayer evenly (Megatron); 4 and 6 end with an all-reduce.
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
  double experts_s(Device device, Sublayer sublayer, const BatchShape& shape, Tier operand,
                   const ExpertPart& part) const override;
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
