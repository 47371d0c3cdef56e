#include "engine/host_costs.h"

#include <algorithm>

#include "perfmodels/layer_cost.h"

namespace sluice {

double HostCosts::longest_s(double bytes, double flops) const {
  return std::max(bytes / rates_.read_bandwidth_bytes_per_s, flops / rates_.gemm_flop_per_s);
}

double HostCosts::compute_s(Device /*device*/, Sublayer sublayer, const BatchShape& shape,
                            Tier /*operand*/) const {
  const SublayerWork work = sublayer_work(model_, sublayer, shape);
  return longest_s(work.x_bytes + work.y_bytes, work.flops);
}

double HostCosts::lm_head_s(Device /*device*/, std::int64_t logit_rows) const {
  const auto elements = static_cast<double>(model_.vocab_size * model_.embed_size);
  return longest_s(model_.weight_bytes(elements), 2 * static_cast<double>(logit_rows) * elements);
}

double HostCosts::transfer_s(Tier from, Tier to, double bytes) const {
  return from == to ? 0 : bytes / rates_.read_bandwidth_bytes_per_s;
}

/// docs/performance.md: an empty task takes two to three microseconds.
double HostCosts::task_overhead_s(Device /*device*/) const { return 2.5e-6; }

}  // namespace sluice
