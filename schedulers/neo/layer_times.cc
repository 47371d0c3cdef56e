#include "schedulers/neo/layer_times.h"

#include "perfmodels/work.h"

namespace sluice {

double LayerTimes::linear_s(std::int64_t rows) {
  if (rows == 0) return 0;
  const auto at = static_cast<std::size_t>(rows - 1);
  if (at >= linear_s_.size()) linear_s_.resize(at + 1, -1);
  double& sum = linear_s_[at];
  if (sum >= 0) return sum;
  // Before attention, and after it.
  sum = costs_.task_overhead_s(Device::gpu, 1) + costs_.task_overhead_s(Device::gpu, 3);
  for (const Sublayer sublayer : layer_sublayers) {
    if (!weights_of(sublayer).empty())
      sum += costs_.compute_s(Device::gpu, sublayer, BatchShape::decode(rows, 1));
  }
  return sum;
}

double LayerTimes::prompt_attention_s(std::int64_t rows, std::int64_t context_tokens) const {
  const BatchShape shape = {Phase::prefill, 1, rows, context_tokens + rows};
  return costs_.compute_s(Device::gpu, Sublayer::qk, shape) +
         costs_.compute_s(Device::gpu, Sublayer::sv, shape);
}

double LayerTimes::attention_s(Device device, std::int64_t decodes, std::int64_t tokens) const {
  if (decodes == 0) return 0;
  const BatchShape shape = BatchShape::decode(decodes, (tokens + decodes - 1) / decodes);
  return costs_.task_overhead_s(device, 2) + costs_.compute_s(device, Sublayer::qk, shape) +
         costs_.compute_s(device, Sublayer::sv, shape);
}

double LayerTimes::cpu_attention_s(std::int64_t decodes, std::int64_t tokens) const {
  if (decodes == 0) return 0;
  constexpr double value_bytes = 2;  // as plans have it
  const ModelDimensions& model = costs_.model();
  const double each = static_cast<double>(decodes) * value_bytes;
  return attention_s(Device::cpu, decodes, tokens) +
         costs_.transfer_s(Tier::hbm, Tier::ddr, each * (model.q_size() + 2 * model.kv_size())) +
         costs_.transfer_s(Tier::ddr, Tier::hbm, each * model.q_size()) + launch_s_;
}

}  // namespace sluice
