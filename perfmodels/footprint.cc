#include "perfmodels/footprint.h"

#include <algorithm>
#include <cmath>

#include "perfmodels/hot_experts.h"
#include "perfmodels/task.h"

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

/// Bytes of a layer's weight that live at its home: all but hot experts.
double bytes_at_home(const ModelDimensions& model, const LayerHomes& homes, WeightKind kind) {
  return model.weight_bytes(weight_elements(model, kind)) * (1 - hot_share(model, homes, kind));
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
        if (passes(homes[kind])) layer += bytes_at_home(model, homes, kind);
      }
    }
    largest = std::max(largest, prefetch == Prefetch::layer ? 2 * layer : layer);
  });
  return largest;
}

/// Whether the GPU reads a layer's cached K or V though they live elsewhere: its slab crosses.
bool slab_passes(const ChainPart& part, const Placement& placement, Tier kv_home) {
  if (part.shape.phase == Phase::prefill || reader_of(part.kv.value_or(kv_home)) == Device::gpu)
    return false;
  return part.attention.value_or(placement[Sublayer::qk]) == Device::gpu ||
         part.attention.value_or(placement[Sublayer::sv]) == Device::gpu;
}

/// KV that passes through HBM if the GPU attends in every layer.
double kv_if_gpu_attends(const CostModel& costs, const MemoryPlan& memory, Prefetch prefetch,
                         const Workload& workload) {
  if (!memory.uses_gpu || !costs.has(Device::gpu) || workload.output_tokens < 2) return 0;
  const Chain decode = {
      .parts = {{.shape = BatchShape::decode(workload.batch,
                                             workload.input_tokens + workload.output_tokens)}},
      .placements = std::vector<Placement>(memory.layers.size(), Placement(Device::gpu))};
  return passing_kv_bytes(costs.model(), memory, {&decode, 1}, prefetch, workload);
}

/// Requests of a phase that one iteration takes.
std::int64_t requests_at_once(const Pipeline& pipeline, const Workload& workload) {
  const std::int64_t most = pipeline.requests_at_once;
  return most > 0 ? std::min(most, workload.batch) : workload.batch;
}

/// Whether some requests decode beside the prompts of others.
bool mixes(const std::array<Pipeline, 2>& pipelines, const Workload& workload) {
  return requests_at_once(pipelines[0], workload) < workload.batch;
}

/// Of a phase's requests, those in one chain.
double requests_of_chain(const Pipeline& pipeline, const Workload& workload) {
  const auto parts = static_cast<double>(std::max<std::int64_t>(pipeline.mini_batches, 1));
  return std::ceil(static_cast<double>(requests_at_once(pipeline, workload)) / parts);
}

/// Rows that one chain computes, at most: of prompts; of requests that decode; of both.
double rows_at_once(const std::array<Pipeline, 2>& pipelines, const Workload& workload) {
  const double prompts =
      requests_of_chain(pipelines[0], workload) * static_cast<double>(workload.input_tokens);
  const double decodes = requests_of_chain(pipelines[1], workload);
  return mixes(pipelines, workload) ? prompts + decodes : std::max(prompts, decodes);
}

/// Bytes of values in a device's memory while all sequences decode: a chain's, and all logits (f32)
/// where the head runs there.
double decode_value_bytes(const ModelDimensions& model, const MemoryPlan& memory,
                          const Pipeline& decode, const Workload& workload, Device device) {
  const Device head =
      memory.lm_head_device.value_or(reader_of(memory.lm_head).value_or(Device::cpu));
  const double logits =
      head == device ? 4 * static_cast<double>(workload.batch * model.vocab_size) : 0;
  return activation_bytes(model, requests_of_chain(decode, workload)) + logits;
}

/// New KV of prompts that waits in DDR to be stored, since the CPU attends for others meanwhile: an
/// iteration's.
double waiting_kv_bytes(const ModelDimensions& model, const MemoryPlan& memory,
                        const std::array<Pipeline, 2>& pipelines, const Workload& workload) {
  if (!mixes(pipelines, workload) || memory.hbm_requests >= workload.batch) return 0;
  const auto rows =
      static_cast<double>(requests_at_once(pipelines[0], workload) * workload.input_tokens);
  const auto layers = std::count_if(memory.layers.begin(), memory.layers.end(),
                                    [](const LayerHomes& homes) { return homes.kv != Tier::hbm; });
  return rows * static_cast<double>(layers) * kv_bytes_per_token(model);
}

/// Bytes of hidden states (f32) that wait in DDR between two layers while other mini-batches
/// compute on the GPU: those of a whole iteration.
double waiting_bytes(const ModelDimensions& model, const std::array<Pipeline, 2>& pipelines,
                     const Workload& workload) {
  double rows = 0;
  for (std::size_t phase = 0; phase < pipelines.size(); ++phase) {
    if (pipelines[phase].mini_batches <= 1) continue;
    const auto requests = static_cast<double>(requests_at_once(pipelines[phase], workload));
    rows =
        std::max(rows, requests * (phase == 0 ? static_cast<double>(workload.input_tokens) : 1.0));
  }
  return rows * 4 * static_cast<double>(model.hidden_size);
}

}  // namespace

double sequence_kv_bytes(const ModelDimensions& model, const Workload& workload) {
  const std::int64_t pages = (workload.total_tokens() + page_tokens - 1) / page_tokens;
  return static_cast<double>(pages * page_tokens) * kv_bytes_per_token(model);
}

double activation_bytes(const ModelDimensions& model, double rows) {
  const auto hidden = static_cast<double>(model.hidden_size);
  const auto ffn = static_cast<double>(model.ffn_size);
  return rows * (4 * hidden + 2 * hidden + 2 * (model.q_size() + 2 * model.kv_size()) +
                 2 * model.q_size() + 2 * ffn * (model.gated_ffn ? 2 : 1) +
                 2 * static_cast<double>(model.shared_ffn_size));
}

double decode_activation_bytes(const ModelDimensions& model, const MemoryPlan& memory,
                               const Pipeline& decode, const Workload& workload) {
  return decode_value_bytes(model, memory, decode, workload, Device::gpu);
}

double staging_bytes(const ModelDimensions& model, const MemoryPlan& memory, Prefetch prefetch) {
  return two_units_bytes(model, memory, prefetch, [](Tier home) { return home != Tier::hbm; });
}

double weights_outside_hbm_bytes(const ModelDimensions& model, const MemoryPlan& memory) {
  double bytes = 0;
  for_each_run(memory.layers, [&](const LayerHomes& homes, double count) {
    for (std::size_t kind = 0; kind < num_weight_kinds; ++kind) {
      const auto weight = static_cast<WeightKind>(kind);
      if (homes[weight] != Tier::hbm) bytes += count * bytes_at_home(model, homes, weight);
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
  const double slab = static_cast<double>(requests) * sequence_kv_bytes(model, workload);
  return (prefetch == Prefetch::layer ? 3 : 2) * slab;
}

double passing_kv_bytes(const ModelDimensions& model, const MemoryPlan& memory,
                        std::span<const Chain> chains, Prefetch prefetch,
                        const Workload& workload) {
  const double request_bytes = sequence_kv_bytes(model, workload);
  double largest = 0;
  for (std::size_t layer = 0; layer < memory.layers.size(); ++layer) {
    double bytes = 0;
    for (const Chain& chain : chains) {
      for (const ChainPart& part : chain.parts) {
        if (slab_passes(part, chain.placements[layer], memory.layers[layer].kv))
          bytes += static_cast<double>(part.shape.batch) * request_bytes;
      }
    }
    largest = std::max(largest, bytes);
  }
  return prefetch == Prefetch::layer ? 2 * largest : largest;
}

Footprint footprint(const CostModel& costs, const MemoryPlan& memory,
                    const std::array<Pipeline, 2>& pipelines, const Workload& workload,
                    double passing_kv) {
  const ModelDimensions& model = costs.model();
  Footprint result;
  const double request_kv_bytes = sequence_kv_bytes(model, workload);
  const auto in_hbm = static_cast<double>(std::min(memory.hbm_requests, workload.batch));
  const double elsewhere = static_cast<double>(workload.batch) - in_hbm;
  for_each_run(memory.layers, [&](const LayerHomes& homes, double count) {
    for (std::size_t kind = 0; kind < num_weight_kinds; ++kind) {
      const auto weight = static_cast<WeightKind>(kind);
      result.weights[homes[weight]] += count * bytes_at_home(model, homes, weight);
    }
    if (const CountedHotExperts* hot = hot_experts(homes))
      result.weights[Tier::hbm] += count * hot->bytes();
    result.kv[homes.kv] += count * elsewhere * request_kv_bytes;
    result.kv[Tier::hbm] += count * in_hbm * request_kv_bytes;
  });
  const double head = model.head_bytes(lm_head_elements(model));
  result.weights[memory.lm_head] += head;
  result.weights[memory.embedding] += model.table_bytes(embedding_elements(model));

  const bool uses_gpu = memory.uses_gpu && costs.has(Device::gpu);
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    const Pipeline& pipeline = pipelines[static_cast<std::size_t>(phase)];
    result.staging[Tier::ddr] =
        std::max(result.staging[Tier::ddr],
                 disk_staging_bytes(model, memory, pipeline.prefetch) +
                     disk_kv_staging_bytes(model, memory, pipeline.prefetch, workload));
    if (!uses_gpu) continue;
    double passing = staging_bytes(model, memory, pipeline.prefetch);
    if (phase == Phase::decode) passing += passing_kv;
    result.staging[Tier::hbm] = std::max(result.staging[Tier::hbm], passing);
  }
  if (memory.lm_head_device == Device::gpu && memory.lm_head != Tier::hbm)
    result.staging[Tier::hbm] += head;
  const double values = activation_bytes(model, rows_at_once(pipelines, workload));
  const auto in_memory_of = [&](Device device) {
    return std::max(values, decode_value_bytes(model, memory, pipelines[1], workload, device));
  };
  if (uses_gpu) result.activations[Tier::hbm] = in_memory_of(Device::gpu);
  if (costs.has(Device::cpu)) result.activations[Tier::ddr] = in_memory_of(Device::cpu);
  if (uses_gpu) {
    result.activations[Tier::ddr] += waiting_bytes(model, pipelines, workload) +
                                     waiting_kv_bytes(model, memory, pipelines, workload);
  }
  return result;
}

bool fits_hbm(const CostModel& costs, const MemoryPlan& memory,
              const std::array<Pipeline, 2>& pipelines, const Workload& workload,
              double passing_kv) {
  return footprint(costs, memory, pipelines, workload, passing_kv).total(Tier::hbm) <=
         static_cast<double>(costs.capacity_bytes(Tier::hbm));
}

bool cut_prefill_to_fit(const CostModel& costs, const MemoryPlan& memory, const Workload& workload,
                        std::array<Pipeline, 2>& pipelines) {
  std::int64_t& parts = pipelines[static_cast<std::size_t>(Phase::prefill)].mini_batches;
  const double passing_kv = kv_if_gpu_attends(costs, memory, pipelines[1].prefetch, workload);
  const auto fits = [&](std::int64_t count) {
    parts = count;
    return fits_hbm(costs, memory, pipelines, workload, passing_kv);
  };
  if (fits(parts)) return true;
  // Where some fit, more do.
  std::int64_t too_few = parts;
  std::int64_t enough = std::max(parts, workload.batch);
  if (!fits(enough)) return false;
  while (enough - too_few > 1) {
    const std::int64_t middle = (too_few + enough) / 2;
    (fits(middle) ? enough : too_few) = middle;
  }
  parts = enough;
  return true;
}

}  // namespace sluice
