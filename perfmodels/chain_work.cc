#include "perfmodels/chain_work.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "perfmodels/hot_experts.h"
#include "perfmodels/kv_store.h"
#include "perfmodels/layer_cost.h"
#include "perfmodels/layer_run.h"

namespace sluice {
namespace {

BatchShape all_rows(std::span<const ChainPart> parts) {
  if (parts.size() == 1) return parts.front().shape;
  BatchShape shape = {Phase::decode, 0, 1, 1};
  for (const ChainPart& part : parts) {
    shape.batch += part.shape.total_rows();
    shape.context = std::max(shape.context, part.shape.context);
    if (part.shape.phase == Phase::prefill) shape.phase = Phase::prefill;
  }
  return shape;
}

/// The rows that tokens are drawn from, one a sequence: all that the last layer has from sublayer 4
/// on.
BatchShape drawing_rows(BatchShape shape) {
  shape.rows = 1;
  return shape;
}
BatchShape drawing_rows(std::span<const ChainPart> parts) {
  BatchShape shape = drawing_rows(all_rows(parts));
  shape.batch = 0;
  for (const ChainPart& part : parts) shape.batch += part.shape.batch;
  return shape;
}

/// Adds the way of some bytes from their home to a device. From a disk they pass through DDR, each
/// tensor crosses the link while the next one is read.
void add_load(const CostModel& costs, Tier home, Device device, double bytes, UnitLoad& load) {
  if (reader_of(home) == device) return;
  if (home != Tier::disk) {
    load.link_s[index(device)] += costs.transfer_s(home, own_tier(device), bytes);
    return;
  }
  load.disk_s += costs.transfer_s(Tier::disk, Tier::ddr, bytes);
  if (device == Device::gpu) load.link_s[0] += costs.transfer_s(Tier::ddr, Tier::hbm, bytes);
}

/// In so many tensors a sublayer's weights cross.
std::int64_t num_tensors(const ModelDimensions& model, Sublayer sublayer) {
  if (sublayer == Sublayer::out_proj && model.shared_ffn_size > 0) return model.gated_ffn ? 4 : 3;
  if (sublayer < Sublayer::fc1 || model.num_experts == 0)
    return sublayer == Sublayer::fc1 && model.gated_ffn ? 2 : 1;
  const double chunks = sublayer_weight_bytes(model, sublayer) / most_chunk_bytes;
  return std::clamp<std::int64_t>(std::llround(chunks), 1, model.num_experts);
}

void add_weights(const CostModel& costs, Sublayer sublayer, Device device, const LayerHomes& homes,
                 UnitLoad& load) {
  const double y_bytes = sublayer_weight_bytes(costs.model(), sublayer);
  double elements = 0;
  for (const WeightKind kind : weights_of(sublayer))
    elements += weight_elements(costs.model(), kind);
  UnitLoad tensors;
  double from_disk_bytes = 0;
  for (const WeightKind kind : weights_of(sublayer)) {
    const double bytes = y_bytes * weight_elements(costs.model(), kind) / elements *
                         (1 - hot_share(costs.model(), homes, kind));
    add_load(costs, homes[kind], device, bytes, tensors);
    if (homes[kind] == Tier::disk) from_disk_bytes += bytes;
    if (device == Device::gpu && homes[kind] != Tier::hbm) tensors.weight_bytes += bytes;
  }
  if (from_disk_bytes > 0 && device == Device::gpu)
    tensors.behind_disk_s = costs.transfer_s(Tier::ddr, Tier::hbm, from_disk_bytes);
  tensors.cut(num_tensors(costs.model(), sublayer));
  load += tensors;
}

/// What attention reads of a part's cached KV, where that lives elsewhere. Keys and values lie in
/// one slab: all of it crosses where only one of the two sublayers is away, and one that passes DDR
/// crosses the link when all of it has been read.
UnitLoad cached_kv(const CostModel& costs, const ChainPart& part, const Placement& placement,
                   Tier layers_home) {
  const Tier home = part.kv.value_or(layers_home);
  const std::array devices = {part.attention.value_or(placement[Sublayer::qk]),
                              part.attention.value_or(placement[Sublayer::sv])};
  const double bytes = devices[0] == devices[1] ? context_kv_bytes(costs.model(), part.shape)
                                                : context_slab_bytes(costs.model(), part.shape);
  UnitLoad load;
  for (const Device device : devices) add_load(costs, home, device, bytes, load);
  load.cut(1);
  load.has_kv = !load.is_nothing();
  if (home == Tier::disk) load.behind_disk_s = load.link_s[index(Device::gpu)];
  return load;
}

bool is_last(const MemoryPlan& memory, std::size_t layer) {
  return layer + 1 == memory.layers.size();
}

/// Which rows a layer has from sublayer 4 on.
enum class RowsAfterAttention : std::uint8_t { all, drawing };

/// Adds the task that stores one part's new KV, if there is one; a disk's is in write_s.
void add_kv_store(const CostModel& costs, const ChainPart& part, const Placement& placement,
                  const LayerHomes& homes, NewKv new_kv, ChainLayer& layer) {
  const std::optional<Device> home = reader_of(homes.kv);
  if (!home) return;
  const auto cached = part.shape.phase == Phase::decode ? CachedTokens::some : CachedTokens::none;
  const std::optional<Sublayer> behind = kv_stored_behind(placement, home, cached, new_kv);
  if (!behind) return;
  ChainStep& step = layer[*behind == Sublayer::qkv ? 0 : attention_joins];
  step.kv_store_s[index(*home)] +=
      costs.compute_s(*home, Sublayer::kv_store, part.shape, homes.kv) +
      costs.task_overhead_s(*home, 1);
}

/// Adds one part's attention (and the way home of its new KV) to the layer.
void add_attention(const CostModel& costs, const ChainPart& part, const Placement& chains_own,
                   LayerHomes homes, RowsAfterAttention rows, NewKv new_kv, ChainLayer& layer) {
  Placement placement = chains_own;
  if (part.attention) placement[Sublayer::qk] = placement[Sublayer::sv] = *part.attention;
  if (part.kv) homes.kv = *part.kv;
  const LayerCost cost = layer_cost(costs, placement, part.shape, homes);
  layer[0].store_s += cost.sublayers[0].store_s - cost.sublayers[0].write_s;
  layer[0].write_s += cost.sublayers[0].write_s;
  layer[0].store_to = reader_of(homes.kv).value_or(Device::cpu);
  add_kv_store(costs, part, placement, homes, new_kv, layer);
  for (std::size_t i = 1; i <= 2; ++i) {
    const SublayerCost& sublayer = cost.sublayers[i];
    const Sublayer which = layer_sublayers[i];
    if (placement[which] == chains_own[which]) {
      layer[i].values_s += sublayer.values_s;
      layer[i].compute_s += sublayer.compute_s;
    } else {
      layer[1].beside_values_s += sublayer.values_s;
      layer[1].beside_s += sublayer.compute_s;
    }
  }
  const bool narrows = rows == RowsAfterAttention::drawing && part.shape.rows > 1;
  layer[3].values_s +=
      narrows ? layer_cost(costs, placement, drawing_rows(part.shape), homes).sublayers[3].values_s
              : cost.sublayers[3].values_s;
}

}  // namespace

void UnitLoad::cut(std::int64_t count) {
  for (std::size_t d = 0; d < link_s.size(); ++d) {
    if (link_s[d] > 0) {
      tensors_s[d].assign(static_cast<std::size_t>(count), link_s[d] / static_cast<double>(count));
    }
  }
}

LayerLoads make_layer_loads(const CostModel& costs, std::span<const Chain> chains,
                            std::size_t layer, const MemoryPlan& memory) {
  const LayerHomes& homes = memory.layers[layer];
  LayerLoads loads;
  // KV comes first.
  for (const Chain& chain : chains) {
    for (const ChainPart& part : chain.parts) {
      if (part.shape.phase == Phase::decode)
        loads[0] += cached_kv(costs, part, chain.placements[layer], homes.kv);
    }
  }
  for (const Device device : {Device::gpu, Device::cpu}) {
    for (const Sublayer sublayer : layer_sublayers) {
      const bool wanted = std::any_of(chains.begin(), chains.end(), [&](const Chain& chain) {
        return chain.placements[layer][sublayer] == device;
      });
      const std::size_t half = sublayer >= Sublayer::fc1 ? 1 : 0;
      if (wanted) add_weights(costs, sublayer, device, homes, loads[half]);
    }
  }
  return loads;
}

ChainLayer make_chain_layer(const CostModel& costs, const Chain& chain, std::size_t layer_index,
                            const MemoryPlan& memory) {
  const LayerHomes& homes = memory.layers[layer_index];
  const auto rows =
      is_last(memory, layer_index) ? RowsAfterAttention::drawing : RowsAfterAttention::all;
  ChainLayer layer;
  const Placement& placement = chain.placements[layer_index];
  const LayerCost before = layer_cost(costs, placement, all_rows(chain.parts), homes);
  const LayerCost after = rows == RowsAfterAttention::all
                              ? before
                              : layer_cost(costs, placement, drawing_rows(chain.parts), homes);
  for (std::size_t i = 0; i < sublayers_per_layer; ++i) {
    ChainStep& step = layer[i];
    step.device = placement[layer_sublayers[i]];
    if (i == 1 || i == 2) continue;  // by part
    const SublayerCost& cost = (i < attention_joins ? before : after).sublayers[i];
    step.compute_s = cost.compute_s;
    step.beside_s = cost.hot_s;
    step.beside_values_s = cost.hot_values_s;
    step.beside_back_s = cost.hot_sum_s;
    if (i != attention_joins) step.values_s = cost.values_s;
  }
  const auto new_kv = chain.parts.size() > 1 ? NewKv::passes : NewKv::as_placed;
  for (const ChainPart& part : chain.parts)
    add_attention(costs, part, placement, homes, rows, new_kv, layer);
  return layer;
}

void join_layers(const CostModel& costs, const Chain& chain, const MemoryPlan& memory,
                 std::vector<ChainLayer>& layers) {
  if (chain.parts.size() > 1) return;
  const ChainPart& part = chain.parts.front();
  const auto form_of = [&](std::int64_t number) -> std::optional<LayerForm> {
    const auto layer = static_cast<std::size_t>(number);
    if (is_last(memory, layer) && part.shape.rows > 1) return std::nullopt;  // it drops rows
    const LayerHomes& homes = memory.layers[layer];
    if (hot_experts(homes) != nullptr) return std::nullopt;  // it is on both devices
    Placement placement = chain.placements[layer];
    if (part.attention) placement[Sublayer::qk] = placement[Sublayer::sv] = *part.attention;
    return LayerForm{placement, reader_of_weights(homes), reader_of(part.kv.value_or(homes.kv))};
  };
  std::size_t next = 0;
  for (std::size_t first = 0; first < layers.size(); first = next) {
    const auto number = static_cast<std::int64_t>(first);
    const auto end = static_cast<std::int64_t>(layers.size());
    next = first +
           static_cast<std::size_t>(layers_of_task(number, end, part.shape.total_rows(), form_of));
    for (std::size_t layer = first + 1; layer < next; ++layer) {
      ChainStep& step = layers[layer].front();
      constexpr int of_one = sublayers_per_layer;
      step.compute_s -= 2 * costs.task_overhead_s(step.device, of_one) -
                        costs.task_overhead_s(step.device, 2 * of_one);
    }
  }
}

double hidden_states_s(const CostModel& costs, const Chain& chain, Device to) {
  const auto hidden = static_cast<double>(costs.model().hidden_size);
  double bytes = 0;
  for (const ChainPart& part : chain.parts)
    bytes += 2 * static_cast<double>(part.shape.total_rows()) * hidden;
  return to == Device::gpu ? costs.transfer_s(Tier::ddr, Tier::hbm, bytes)
                           : costs.transfer_s(Tier::hbm, Tier::ddr, bytes);
}

HeadStep make_head(const CostModel& costs, const Chain& chain, const MemoryPlan& memory) {
  const std::optional<Device> reader = reader_of(memory.lm_head);
  HeadStep head;
  head.device = memory.lm_head_device.value_or(reader.value_or(Device::cpu));
  if (reader != head.device) {
    const ModelDimensions& model = costs.model();
    head.load_s = costs.transfer_s(
        memory.lm_head, own_tier(head.device),
        model.head_bytes(static_cast<double>(model.vocab_size * model.embed_size)));
  }
  std::int64_t rows = 0;
  for (const ChainPart& part : chain.parts) rows += part.shape.batch;
  head.compute_s = costs.lm_head_s(head.device, rows);
  return head;
}

}  // namespace sluice
