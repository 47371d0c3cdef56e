#include "perfmodels/roofline.h"

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

/// How attention's reading and the rest overlap: 1 not at all, infinity fully.
constexpr double blend = 2.5;

double blended_s(double reading_s, double rest_s) {
  return std::pow(std::pow(reading_s, blend) + std::pow(rest_s, blend), 1 / blend);
}
/// The rest, given both; `seconds` is longer.
double rest_of_s(double seconds, double reading_s) {
  return std::pow(std::pow(seconds, blend) - std::pow(reading_s, blend), 1 / blend);
}

}  // namespace

double SublayerLoad::seconds(const MachineRates& rates) const {
  return std::max(bytes / rates.read_bandwidth_bytes_per_s, flops / rates.gemm_flop_per_s);
}

double carried_over(double seconds, const SublayerLoad& load, const MachineRates& from,
                    const MachineRates& to) {
  if (load.attends) {
    const double reading_s = load.bytes / from.read_bandwidth_bytes_per_s;
    const double read_s = load.bytes / to.read_bandwidth_bytes_per_s;
    if (seconds <= reading_s) return seconds * read_s / reading_s;
    const double rest_s = rest_of_s(seconds, reading_s) * from.gemm_flop_per_s / to.gemm_flop_per_s;
    return blended_s(read_s, rest_s);
  }
  const double before_s = load.seconds(from);
  const double after_s = load.seconds(to);
  return seconds > before_s ? seconds - before_s + after_s : seconds * after_s / before_s;
}

double resized_attention(double seconds, const SublayerLoad& from, const SublayerLoad& to,
                         const MachineRates& rates) {
  const double reading_s = from.bytes / rates.read_bandwidth_bytes_per_s;
  const double bytes = to.bytes / from.bytes;
  if (seconds <= reading_s) return seconds * bytes;
  return blended_s(reading_s * bytes, rest_of_s(seconds, reading_s) * to.flops / from.flops);
}

SublayerLoad sublayer_load(const ModelDimensions& model, Sublayer sublayer,
                           const BatchShape& shape) {
  if (sublayer == Sublayer::attention) {
    const SublayerLoad half = sublayer_load(model, Sublayer::qk, shape);
    return {2 * half.bytes, 2 * half.flops, true};
  }
  const SublayerWork work = sublayer_work(model, sublayer, shape);
  if (sublayer == Sublayer::kv_store) return {work.x_bytes + work.y_bytes, 0, false};
  if (sublayer != Sublayer::qk && sublayer != Sublayer::sv)
    return {work.y_bytes, work.flops, false};
  return {work.y_bytes, work.flops * causal_share(model, shape), true};
}

SublayerLoad lm_head_load(const ModelDimensions& model, std::int64_t logit_rows) {
  const double weights = lm_head_elements(model);
  return {model.head_bytes(weights), 2 * static_cast<double>(logit_rows) * weights, false};
}

}  // namespace sluice
