#include "perfmodels/analytic_model.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace sluice {
namespace {

constexpr double giga = 1e9;
constexpr double tera = 1e12;
constexpr double micro = 1e-6;
constexpr double widened_bytes = 2;  ///< of a weight before it is multiplied

double combined_s(Combine combine, double reading_s, double arithmetic_s) {
  return combine == Combine::sum ? reading_s + arithmetic_s : std::max(reading_s, arithmetic_s);
}

}  // namespace

AnalyticModel::AnalyticModel(MachineProfile profile, const ModelDimensions& model)
    : profile_(std::move(profile)), model_(model) {
  for (const Device device : {Device::gpu, Device::cpu}) {
    if (model_.widens_weights() && has(device) && !of(device).dequantize_gb_per_s)
      throw Error("profile {} has no {}.dequantize_gb_per_s, which weights of {} bits need",
                  profile_.name, to_string(device), model_.weight_bits);
  }
  if (const auto& cache = profile_.tier(Tier::ddr)->cache) {
    missing_share_ =
        cache->missing_share(layer_weight_bytes(model_) * static_cast<double>(model_.num_layers) +
                             model_.head_bytes(lm_head_elements(model_)));
  }
}

std::uint64_t AnalyticModel::capacity_bytes(Tier tier) const {
  const std::optional<TierProfile>& found = profile_.tier(tier);
  if (!found) return 0;
  const double tiers = tier == Tier::hbm ? profile_.gpu_count() : 1;
  return static_cast<std::uint64_t>(tiers) * found->usable_bytes();
}

double AnalyticModel::compute_s(Device device, Sublayer sublayer, const BatchShape& shape,
                                Tier operand) const {
  const auto rows = static_cast<double>(shape.total_rows());
  const SublayerWork work = sublayer_work(model_, sublayer, shape);
  const SublayerProperties& properties = properties_of(sublayer);
  switch (properties.work) {
    case WorkKind::product:
      return linear_s(
                 device, work.x_bytes, work.y_bytes, work.flops,
                 properties.part == IterationPart::ffn ? rows_of_an_expert(model_, rows) : rows,
                 operand) +
             widening_s(device, work.y_bytes) + all_reduce_s(device, sublayer, rows);
    case WorkKind::attention:
      if (sublayer != Sublayer::attention) return attention_s(device, sublayer, shape, operand);
      return attention_s(device, Sublayer::qk, shape, operand) +
             attention_s(device, Sublayer::sv, shape, operand);
    case WorkKind::storing:
      return work.x_bytes / memory_bytes_per_s(device, own_tier(device)) +
             work.y_bytes / memory_bytes_per_s(device, operand);
    case WorkKind::other:
      break;
  }
  throw Error("sublayer {} has no cost of its own, expected one of a layer's", to_string(sublayer));
}

double AnalyticModel::experts_s(Device device, Sublayer sublayer, const BatchShape& shape,
                                Tier operand, const ExpertPart& part) const {
  if (part.touched <= 0) return 0;
  const SublayerWork work = expert_work(model_, sublayer, shape, part);
  return linear_s(device, work.x_bytes, work.y_bytes, work.flops, part.rows_of_each(), operand) +
         widening_s(device, work.y_bytes) +
         all_reduce_s(device, sublayer, static_cast<double>(shape.total_rows()));
}

double AnalyticModel::linear_s(Device device, double x_bytes, double y_bytes, double flops,
                               double rows, Tier operand) const {
  const DeviceProfile& profile = of(device);
  const double reading_s = x_bytes / memory_bytes_per_s(device, own_tier(device)) +
                           y_bytes / memory_bytes_per_s(device, operand);
  const double rate = count(device) * tera * profile.gemm_tflop_per_s.value.at(rows);
  return combined_s(profile.combine, reading_s, flops / rate);
}

double AnalyticModel::attention_s(Device device, Sublayer sublayer, const BatchShape& shape,
                                  Tier operand) const {
  const DeviceProfile& profile = of(device);
  SublayerWork work = sublayer_work(model_, sublayer, shape);
  const double own = memory_bytes_per_s(device, own_tier(device));
  const double tier = memory_bytes_per_s(device, operand);
  double reading_s = work.x_bytes / own + work.y_bytes / tier;
  if (shape.phase == Phase::decode) {
    const double rate = count(device) * giga *
                        profile.attention_bandwidth_gb_per_s.value.at(
                            static_cast<double>(shape.batch), visible_tokens(model_, shape));
    // What keeps attention below its own memory's rate keeps it below another's (LIA Figure 8b).
    const double share = operand == own_tier(device) ? 1 : std::min(1.0, tier / own);
    reading_s = (work.x_bytes + work.y_bytes) / (share * rate);
  } else if (profile_.causal_attention.value != 0) {
    work.flops *= causal_share(model_, shape);
  }
  const double rate =
      count(device) * tera *
      profile.attention_tflop_per_s.value.at(static_cast<double>(shape.total_rows()));
  return combined_s(profile.combine, reading_s, work.flops / rate);
}

double AnalyticModel::widening_s(Device device, double weight_bytes) const {
  if (!model_.widens_weights()) return 0;
  const double widened = weight_bytes * 8 / model_.weight_bits * widened_bytes;
  return widened / (count(device) * giga * of(device).dequantize_gb_per_s->value);
}

double AnalyticModel::all_reduce_s(Device device, Sublayer sublayer, double rows) const {
  const bool ends_a_half = sublayer == Sublayer::out_proj || sublayer == Sublayer::fc2;
  if (!ends_a_half || !profile_.all_reduce || count(device) == 1) return 0;
  const AllReduceProfile& all_reduce = *profile_.all_reduce;
  const double bytes = activation_element_bytes * rows * static_cast<double>(model_.hidden_size);
  return micro * all_reduce.latency_us.value +
         bytes / (giga * all_reduce.bandwidth_gb_per_s.value.at(bytes));
}

double AnalyticModel::lm_head_s(Device device, std::int64_t logit_rows) const {
  if (logit_rows <= 0) return 0;
  const auto rows = static_cast<double>(logit_rows);
  const double x_bytes = activation_element_bytes * rows * static_cast<double>(model_.hidden_size);
  const double weights = lm_head_elements(model_);
  return linear_s(device, x_bytes, model_.head_bytes(weights), 2 * rows * weights, rows,
                  own_tier(device));
}

double AnalyticModel::transfer_s(Tier from, Tier to, double bytes) const {
  if (from == to || bytes <= 0) return 0;
  if (const LinkProfile* direct = profile_.link(from, to))
    return micro * direct->latency_us.value + link_s(*direct, bytes);
  const LinkProfile& in = require_link(from, Tier::ddr, from, to);
  const LinkProfile& out = require_link(Tier::ddr, to, from, to);
  return micro * (in.latency_us.value + out.latency_us.value) +
         std::max(link_s(in, bytes), link_s(out, bytes));
}

double AnalyticModel::link_s(const LinkProfile& link, double bytes) const {
  const bool of_gpus = link.from == Tier::hbm || link.to == Tier::hbm;
  const double share = bytes / (of_gpus ? profile_.gpu_count() : 1);
  double rate = profile_.link_gb_per_s(link, share);
  if (missing_share_ > 0 && link.from == Tier::ddr && link.to == Tier::hbm) {
    rate =
        through_cache(rate, profile_.tier(Tier::ddr)->cache->missed_to_hbm_gb_per_s.value().value);
  }
  return share / (giga * rate);
}

double AnalyticModel::through_cache(double hit_rate, double miss_rate) const {
  return 1 / ((1 - missing_share_) / hit_rate + missing_share_ / miss_rate);
}

const LinkProfile& AnalyticModel::require_link(Tier from, Tier to, Tier start, Tier end) const {
  const LinkProfile* link = profile_.link(from, to);
  if (link == nullptr)
    throw Error(
        "profile {} has no way from {} to {}: neither a link between them, nor one from {} "
        "to {} on the way through ddr",
        profile_.name, to_string(start), to_string(end), to_string(from), to_string(to));
  return *link;
}

double AnalyticModel::task_overhead_s(Device device, int num_sublayers) const {
  return num_sublayers * micro * of(device).task_overhead_us.value;
}

const DeviceProfile& AnalyticModel::of(Device device) const {
  if (device == Device::cpu) return profile_.cpu;
  if (!profile_.gpu) throw Error("profile {} has no GPU, expected work for the CPU", profile_.name);
  return *profile_.gpu;
}

double AnalyticModel::count(Device device) const {
  return device == Device::gpu ? profile_.gpu_count() : 1;
}

double AnalyticModel::memory_bytes_per_s(Device device, Tier tier) const {
  if (device == Device::cpu && tier == Tier::cxl && profile_.tier(Tier::cxl))
    return giga * profile_.tier(Tier::cxl)->cpu_bandwidth_gb_per_s->value;
  const double rate = of(device).memory_bandwidth_gb_per_s.value;
  if (device == Device::cpu && missing_share_ > 0)
    return giga * through_cache(rate, profile_.tier(Tier::ddr)->cache->missed_cpu_gb_per_s.value);
  return count(device) * giga * rate;
}

}  // namespace sluice
