#include "perfmodels/footprint.h"

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

/// Calls `add(homes, count)` for layers with like homes that follow each other, count of them.
template <typename Add>
void for_each_run(const std::vector<LayerHomes>& layers, const Add& add) {
  for (auto first = layers.begin(); first != layers.end();) {
    const auto next =
        std::find_if(first, layers.end(), [&](const LayerHomes& homes) { return homes != *first; });
    add(*first, static_cast<double>(next - first));
    first = next;
  }
}

/// Bytes of the weights whose home `passes`, of the two units (halves of a layer, or layers) that
/// are somewhere at a time.
template <typename Passes>
double two_units_bytes(const ModelDimensions& model, const MemoryPlan& memory, Prefetch prefetch,
                       const Passes& passes) {
  double largest = 0;
  for_each_run(memory.layers, [&](const LayerHomes& homes, double /*count*/) {
    double layer = 0;
    for (const Sublayer sublayer : layer_sublayers) {
      for (const WeightKind kind : weights_of(sublayer)) {
        if (passes(homes[kind])) layer += model.weight_bytes(weight_elements(model, kind));
      }
    }
    largest = std::max(largest, prefetch == Prefetch::layer ? 2 * layer : layer);
  });
  return largest;
}

/// Of a layer's K and V, those that the GPU reads though they live elsewhere: 0, half or all.
double passing_share(const ChainPart& part, const Placement& placement, Tier kv_home) {
  if (part.shape.phase == Phase::prefill || reader_of(part.kv.value_or(kv_home)) == Device::gpu)
    return 0;
  double share = 0;
  for (const Sublayer sublayer : {Sublayer::qk, Sublayer::sv}) {
    if (part.attention.value_or(placement[sublayer]) == Device::gpu) share += 0.5;
  }
  return share;
}

/// Rows that one chain of a phase computes.
double rows_at_once(const Pipeline& pipeline, const Workload& workload, Phase phase) {
  const auto parts = static_cast<double>(std::max<std::int64_t>(pipeline.mini_batches, 1));
  const double batch = std::ceil(static_cast<double>(workload.batch) / parts);
  return phase == Phase::prefill ? batch * static_cast<double>(workload.input_tokens) : batch;
}

}  // namespace

double activation_bytes(const ModelDimensions& model, double rows) {
  const auto hidden = static_cast<double>(model.hidden_size);
  const auto ffn = static_cast<double>(model.ffn_size);
  return rows * (4 * hidden + 2 * hidden + 2 * (model.q_size() + 2 * model.kv_size()) +
                 2 * model.q_size() + 2 * ffn * (model.gated_ffn ? 2 : 1));
}

double staging_bytes(const ModelDimensions& model, const MemoryPlan& memory, Prefetch prefetch) {
  return two_units_bytes(model, memory, prefetch, [](Tier home) { return home != Tier::hbm; });
}

double weights_outside_hbm_bytes(const ModelDimensions& model, const MemoryPlan& memory) {
  double bytes = 0;
  for_each_run(memory.layers, [&](const LayerHomes& homes, double count) {
    for (std::size_t kind = 0; kind < num_weight_kinds; ++kind) {
      const auto weight = static_cast<WeightKind>(kind);
      if (homes[weight] != Tier::hbm)
        bytes += count * model.weight_bytes(weight_elements(model, weight));
    }
  });
  return bytes;
}

double disk_staging_bytes(const ModelDimensions& model, const MemoryPlan& memory,
                          Prefetch prefetch) {
  return two_units_bytes(model, memory, prefetch, [](Tier home) { return home == Tier::disk; });
}

double disk_kv_staging_bytes(const ModelDimensions& model, const MemoryPlan& memory,
                             Prefetch prefetch, const Workload& workload) {
  const bool any = std::any_of(memory.layers.begin(), memory.layers.end(),
                               [](const LayerHomes& homes) { return homes.kv == Tier::disk; });
  if (!any) return 0;
  const std::int64_t requests = workload.batch - std::min(memory.hbm_requests, workload.batch);
  const double slab =
      static_cast<double>(requests * workload.total_tokens()) * kv_bytes_per_token(model);
  return (prefetch == Prefetch::layer ? 3 : 2) * slab;
}

double passing_kv_bytes(const ModelDimensions& model, const MemoryPlan& memory,
                        std::span<const Chain> decode, Prefetch prefetch,
                        const Workload& workload) {
  const double request_bytes =
      static_cast<double>(workload.total_tokens()) * kv_bytes_per_token(model);
  double largest = 0;
  for (std::size_t layer = 0; layer < memory.layers.size(); ++layer) {
    double bytes = 0;
    for (const Chain& chain : decode) {
      for (const ChainPart& part : chain.parts) {
        bytes += passing_share(part, chain.placements[layer], memory.layers[layer].kv) *
                 static_cast<double>(part.shape.batch) * request_bytes;
      }
    }
    largest = std::max(largest, bytes);
  }
  return prefetch == Prefetch::layer ? 2 * largest : largest;
}

Footprint footprint(const CostModel& costs, const MemoryPlan& memory,
                    const std::array<Pipeline, 2>& pipelines, const Workload& workload,
                    std::span<const Chain> decode) {
  const ModelDimensions& model = costs.model();
  Footprint result;
  const double request_kv_bytes =
      static_cast<double>(workload.total_tokens()) * kv_bytes_per_token(model);
  const auto in_hbm = static_cast<double>(std::min(memory.hbm_requests, workload.batch));
  const double elsewhere = static_cast<double>(workload.batch) - in_hbm;
  for_each_run(memory.layers, [&](const LayerHomes& homes, double count) {
    for (std::size_t kind = 0; kind < num_weight_kinds; ++kind) {
      const auto weight = static_cast<WeightKind>(kind);
      result.weights[homes[weight]] += count * model.weight_bytes(weight_elements(model, weight));
    }
    result.kv[homes.kv] += count * elsewhere * request_kv_bytes;
    result.kv[Tier::hbm] += count * in_hbm * request_kv_bytes;
  });
  const double table = model.table_bytes(static_cast<double>(model.vocab_size * model.embed_size));
  result.weights[memory.lm_head] += table;
  if (!model.tied_embeddings) result.weights[memory.embedding] += table;

  const bool uses_gpu = memory.uses_gpu && costs.has(Device::gpu);
  double rows = 0;
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    const Pipeline& pipeline = pipelines[static_cast<std::size_t>(phase)];
    rows = std::max(rows, rows_at_once(pipeline, workload, phase));
    result.staging[Tier::ddr] =
        std::max(result.staging[Tier::ddr],
                 disk_staging_bytes(model, memory, pipeline.prefetch) +
                     disk_kv_staging_bytes(model, memory, pipeline.prefetch, workload));
    if (!uses_gpu) continue;
    double passing = staging_bytes(model, memory, pipeline.prefetch);
    if (phase == Phase::decode)
      passing += passing_kv_bytes(model, memory, decode, pipeline.prefetch, workload);
    result.staging[Tier::hbm] = std::max(result.staging[Tier::hbm], passing);
  }
  if (memory.lm_head_device == Device::gpu && memory.lm_head != Tier::hbm)
    result.staging[Tier::hbm] += table;
  if (uses_gpu) result.activations[Tier::hbm] = activation_bytes(model, rows);
  if (costs.has(Device::cpu)) result.activations[Tier::ddr] = activation_bytes(model, rows);
  return result;
}

bool fits_hbm(const CostModel& costs, const MemoryPlan& memory,
              const std::array<Pipeline, 2>& pipelines, const Workload& workload) {
  return footprint(costs, memory, pipelines, workload).total(Tier::hbm) <=
         static_cast<double>(costs.capacity_bytes(Tier::hbm));
}

bool cut_prefill_to_fit(const CostModel& costs, const MemoryPlan& memory, const Workload& workload,
                        std::array<Pipeline, 2>& pipelines) {
  std::int64_t& parts = pipelines[static_cast<std::size_t>(Phase::prefill)].mini_batches;
  while (!fits_hbm(costs, memory, pipelines, workload)) {
    if (parts >= workload.batch) return false;
    ++parts;
  }
  return true;
}

}  // namespace sluice
