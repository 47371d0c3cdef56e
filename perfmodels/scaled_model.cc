#include "perfmodels/scaled_model.h"

namespace sluice {
namespace {

/// As the model itself shows them.
MachineRates rates_of(const CostModel& costs) {
  constexpr std::int64_t many_rows = 2048;
  const BatchShape one = BatchShape::decode(1, 1);
  const BatchShape many = BatchShape::prefill(1, many_rows);
  const auto load = [&](const BatchShape& shape) {
    return sublayer_load(costs.model(), Sublayer::fc1, shape);
  };
  const auto seconds = [&](const BatchShape& shape) {
    return costs.compute_s(Device::cpu, Sublayer::fc1, shape);
  };
  return {.read_bandwidth_bytes_per_s = load(one).bytes / seconds(one),
          .gemm_flop_per_s = load(many).flops / seconds(many)};
}

}  // namespace

ScaledModel::ScaledModel(const CostModel& base, const SpeedUp& speed_up)
    : base_(base), speed_up_(speed_up) {
  if (!base.has(Device::cpu)) return;
  before_ = rates_of(base);
  after_ = {.read_bandwidth_bytes_per_s = before_.read_bandwidth_bytes_per_s * speed_up.ddr,
            .gemm_flop_per_s = before_.gemm_flop_per_s * speed_up.cpu_gemm};
}

double ScaledModel::compute_s(Device device, Sublayer sublayer, const BatchShape& shape,
                              Tier operand) const {
  const double seconds = base_.compute_s(device, sublayer, shape, operand);
  if (device != Device::cpu) return seconds;
  return carried_over(seconds, sublayer_load(model(), sublayer, shape), before_, after_);
}

double ScaledModel::experts_s(Device device, Sublayer sublayer, const BatchShape& shape,
                              Tier operand, const ExpertPart& part) const {
  const double seconds = base_.experts_s(device, sublayer, shape, operand, part);
  if (device != Device::cpu || part.touched <= 0) return seconds;
  const SublayerWork work = expert_work(model(), sublayer, shape, part);
  return carried_over(seconds, {work.y_bytes, work.flops, false}, before_, after_);
}

double ScaledModel::lm_head_s(Device device, std::int64_t logit_rows) const {
  const double seconds = base_.lm_head_s(device, logit_rows);
  if (device != Device::cpu || logit_rows <= 0) return seconds;
  return carried_over(seconds, lm_head_load(model(), logit_rows), before_, after_);
}

double ScaledModel::transfer_s(Tier from, Tier to, double bytes) const {
  const bool of_gpu = from == Tier::hbm || to == Tier::hbm;
  return base_.transfer_s(from, to, bytes) / (of_gpu ? speed_up_.link : 1);
}

}  // namespace sluice
