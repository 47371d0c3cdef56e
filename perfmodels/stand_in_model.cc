#include "perfmodels/stand_in_model.h"

namespace sluice {

std::uint64_t StandInModel::capacity_bytes(Tier tier) const {
  if (tier == Tier::hbm) return stand_in_.memory_bytes - stand_in_.memory_bytes / 16;
  return cpu_->capacity_bytes(tier);
}

double StandInModel::compute_s(Device device, Sublayer sublayer, const BatchShape& shape,
                               Tier operand) const {
  const Tier in_host_memory = device == Device::gpu ? Tier::ddr : operand;
  return cpu_->compute_s(Device::cpu, sublayer, shape, in_host_memory);
}

double StandInModel::lm_head_s(Device /*device*/, std::int64_t logit_rows) const {
  return cpu_->lm_head_s(Device::cpu, logit_rows);
}

double StandInModel::transfer_s(Tier from, Tier to, double bytes) const {
  if (from == to || bytes <= 0) return 0;
  if (from != Tier::hbm && to != Tier::hbm) return cpu_->transfer_s(from, to, bytes);
  return stand_in_.latency_s + bytes / stand_in_.bytes_per_s;
}

double StandInModel::task_overhead_s(Device /*device*/) const {
  return cpu_->task_overhead_s(Device::cpu);
}

}  // namespace sluice
