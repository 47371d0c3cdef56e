#include "perfmodels/accelerated_model.h"

#include <algorithm>

#include "base/error.h"

namespace sluice {

AcceleratedModel::AcceleratedModel(Parts parts) : parts_(std::move(parts)) {
  if (parts_.accelerator == nullptr && !parts_.link)
    throw Error("nothing says what moving data to the accelerator takes");
}

std::uint64_t AcceleratedModel::capacity_bytes(Tier tier) const {
  return tier == Tier::hbm ? parts_.hbm_bytes : parts_.cpu->capacity_bytes(tier);
}

std::pair<const CostModel*, Device> AcceleratedModel::of(Device device) const {
  if (device == Device::cpu || parts_.accelerator == nullptr)
    return {parts_.cpu.get(), Device::cpu};
  return {parts_.accelerator.get(), Device::gpu};
}

double AcceleratedModel::compute_s(Device device, Sublayer sublayer, const BatchShape& shape,
                                   Tier operand) const {
  const auto [costs, as] = of(device);
  return costs->compute_s(as, sublayer, shape, device == Device::gpu ? own_tier(as) : operand);
}

double AcceleratedModel::experts_s(Device device, Sublayer sublayer, const BatchShape& shape,
                                   Tier operand, const ExpertPart& part) const {
  const auto [costs, as] = of(device);
  return costs->experts_s(as, sublayer, shape, device == Device::gpu ? own_tier(as) : operand,
                          part);
}

double AcceleratedModel::lm_head_s(Device device, std::int64_t logit_rows) const {
  const auto [costs, as] = of(device);
  return costs->lm_head_s(as, logit_rows);
}

double AcceleratedModel::transfer_s(Tier from, Tier to, double bytes) const {
  if (from == to || bytes <= 0) return 0;
  if (from != Tier::hbm && to != Tier::hbm) return parts_.cpu->transfer_s(from, to, bytes);
  if (from == Tier::cxl || to == Tier::cxl)
    return std::max(transfer_s(from, Tier::ddr, bytes), transfer_s(Tier::ddr, to, bytes));
  if (parts_.link) return parts_.link->latency_s + bytes / parts_.link->bytes_per_s;
  return parts_.accelerator->transfer_s(from, to, bytes);
}

Interference AcceleratedModel::interference(Phase phase) const {
  Interference found =
      parts_.accelerator == nullptr ? Interference{} : parts_.accelerator->interference(phase);
  if (parts_.shares_cores) found.together = 2;
  return found;
}

double AcceleratedModel::two_way_slowdown() const {
  return parts_.accelerator == nullptr ? 1 : parts_.accelerator->two_way_slowdown();
}

double AcceleratedModel::task_overhead_s(Device device, int num_sublayers) const {
  const auto [costs, as] = of(device);
  return costs->task_overhead_s(as, num_sublayers);
}

}  // namespace sluice
