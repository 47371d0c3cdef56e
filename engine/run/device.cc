#include "engine/run/device.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/units.h"

namespace sluice {
namespace {

/// Only beside a disk some layers' weights are in CXL memory, and some not.
std::optional<Plan> plan_in_ddr(LoadedPolicy& policy, const CostModel& costs,
                                const Workload& workload, const TierSettings& tiers) {
  if (!tiers.cxl || !tiers.disk) return std::nullopt;
  HostTiers in_ddr = tiers.host_tiers();
  in_ddr.parameters = Tier::ddr;
  policy.policy().set_host_tiers(in_ddr);
  Plan plan = make_plan(policy.policy(), costs, workload);
  policy.policy().set_host_tiers(tiers.host_tiers());
  return plan;
}

}  // namespace

AcceleratorRun::AcceleratorRun(const Accelerator& accelerator, LoadedPolicy& policy,
                               const CostModel& costs, const Workload& workload,
                               const TierSettings& tiers)
    : accelerator_(accelerator),
      in_ddr_(plan_in_ddr(policy, costs, workload, tiers)),
      plan_(make_plan(policy.policy(), costs, workload)),
      staging_(staging_of(plan_, costs.model())) {
  policy.set_staging(staging_);
}

HostPlan AcceleratorRun::beside(HostPlan host, const TierSettings& settings,
                                const std::string& smaller, const KvPages& kv) const {
  HbmShare share;
  for (const LayerHomes& homes : plan_.memory.layers) {
    share.layers.push_back(homes.resident());
    const bool all_requests =
        plan_.memory.hbm_requests >= plan_.workload.batch && !kv.ddr.has_value();
    if (homes.kv == Tier::hbm || all_requests) ++share.kv_layers;
  }
  share.head = plan_.memory.lm_head == Tier::hbm;
  share.passing_bytes = plan_.memory.uses_gpu ? staging_.bytes : 0;
  share.splits_attention = splits_attention();
  share.hot_experts = plan_.memory.hot_experts;
  host.set_accelerator(std::move(share));
  if (host.missing_bytes() > 0) throw Error("{}", shortage_text(host, settings, smaller));
  return host;
}

/// Through the socket StarPU counts what it sends in an int.
void AcceleratorRun::check_sendable(std::uint64_t bytes, const char* what) const {
  constexpr std::uint64_t most = std::uint64_t{1} << 31;
  if (bytes < most || accelerator_.kind != Accelerator::Kind::stand_in) return;
  throw Error("{} of {} cannot go to the stand-in accelerator, which takes less than {} at once",
              what, format_bytes(bytes), format_bytes(most));
}

/// At its real size, in bytes.
struct AcceleratorRun::Need {
  std::uint64_t resident = 0;     ///< weights
  std::uint64_t kv = 0;           ///< that lives there
  std::uint64_t streamed = 0;     ///< weights on their way
  std::uint64_t passing_kv = 0;   ///< that lives elsewhere
  std::uint64_t activations = 0;  ///< logits included
  std::uint64_t scratch = 0;      ///< of kernels

  std::uint64_t total() const {
    return resident + kv + streamed + passing_kv + activations + scratch;
  }
};

bool AcceleratorRun::any_group(
    const std::function<bool(const LayerHomes&, const Placement&)>& is) const {
  const auto any_in = [&](const Plan& plan) {
    for (const PhasePlan* phase : {&plan.prefill, &plan.decode}) {
      for (const IterationGroup& group : phase->groups) {
        for (const LayerGroup& layers : group.layers) {
          if (is(layers.homes, layers.cost.placement)) return true;
        }
      }
    }
    return false;
  };
  return any_in(plan_) || (in_ddr_ && any_in(*in_ddr_));
}

bool AcceleratorRun::reads_kv_from_elsewhere() const {
  return any_group([](const LayerHomes& homes, const Placement& placement) {
    return homes.kv != Tier::hbm &&
           (placement[Sublayer::qk] == Device::gpu || placement[Sublayer::sv] == Device::gpu);
  });
}

bool AcceleratorRun::splits_attention() const {
  return any_group([](const LayerHomes& /*homes*/, const Placement& placement) {
    return placement[Sublayer::qk] != placement[Sublayer::sv];
  });
}

RunSize RunSize::of(const ModelWeights& model, std::span<const KvCache> caches,
                    std::int64_t max_rows, std::int64_t max_logit_rows) {
  RunSize size{.config = model.config(),
               .dtype = model.shape().dtype,
               .table_bytes = model.token_table.size_bytes() + model.positions.size_bytes(),
               .kv = {},
               .max_rows = max_rows,
               .max_logit_rows = max_logit_rows};
  for (const KvCache& kv : caches) size.kv.push_back({kv.homes(), kv.num_pages()});
  return size;
}

std::uint64_t RunSize::kv_file_bytes() const {
  const DecoderShape shape = decoder_shape(config, dtype);
  std::uint64_t bytes = 0;
  for (const Kv& cohort : kv) {
    const auto slab = static_cast<std::size_t>(KvCache::size_bytes(shape, 1, cohort.num_pages));
    const auto count = std::count(cohort.homes.begin(), cohort.homes.end(), Tier::disk);
    bytes += KvFile::size_of(slab, static_cast<std::uint64_t>(count));
  }
  return bytes;
}

AcceleratorRun::Need AcceleratorRun::need_of(const RunSize& size) const {
  const ModelConfig& config = size.config;
  const DecoderShape shape = decoder_shape(config, size.dtype);
  const WeightSizes weights(config, size.dtype, size.table_bytes);
  check_sendable(weights.head, "the LM head");
  Need need;
  need.resident = weights.resident(plan_.memory);
  std::vector<std::uint64_t> passing(plan_.memory.layers.size());
  for (const RunSize::Kv& kv : size.kv) {
    const std::uint64_t slab = KvCache::size_bytes(shape, 1, kv.num_pages);
    check_sendable(slab, "a layer's KV");
    for (std::size_t layer = 0; layer < passing.size(); ++layer)
      (kv.homes.at(layer) == Tier::hbm ? need.kv : passing[layer]) += slab;
  }
  // Of one layer, and the next one's.
  if (reads_kv_from_elsewhere() && !passing.empty())
    need.passing_kv = 2 * *std::max_element(passing.begin(), passing.end());
  need.scratch = accelerator_.scratch.total();
  if (!plan_.memory.uses_gpu) return need;
  if (plan_.memory.resident_layers() < config.num_layers) need.streamed = weights.largest_pair();
  if (plan_.memory.lm_head_device == Device::gpu && plan_.memory.lm_head != Tier::hbm)
    need.streamed += weights.head;
  // Of one chain, and of the next one, or of the next iteration, which is submitted before the
  // first has ended. Other mini-batches' hidden states go to DDR where they lack room.
  // Of a mixture also normed rows, the choice of experts, and two sums of theirs.
  const std::int64_t to_experts =
      config.num_experts > 0 ? 3 * config.hidden_size + 2 * config.experts_per_token : 0;
  const std::int64_t floats =
      (size.max_rows + size.max_logit_rows) * (config.hidden_size + 2 * shape.qkv_size() +
                                               shape.q_size() + 2 * config.ffn_size + to_experts) +
      size.max_logit_rows * config.vocab_size;
  need.activations = 2 * static_cast<std::uint64_t>(floats) * sizeof(float);
  return need;
}

void AcceleratorRun::check_fits(const Need& need, std::uint64_t there_bytes,
                                const std::string& advice) const {
  if (need.total() <= there_bytes) return;
  throw Error(
      "not enough memory in the {}: {} needed (weights that stay {}, KV {}, weights on the way "
      "{}, KV on the way {}, activations {}, kernels {}){}",
      accelerator_.name(), format_bytes(need.total()), format_bytes(need.resident),
      format_bytes(need.kv), format_bytes(need.streamed), format_bytes(need.passing_kv),
      format_bytes(need.activations), format_bytes(need.scratch), advice);
}

TierUse AcceleratorRun::check(const RunSize& size) const {
  const Need need = need_of(size);
  check_fits(need, accelerator_.memory_bytes, "");
  return {
      .tier = Tier::hbm,
      .where = accelerator_.kind == Accelerator::Kind::cuda ? accelerator_.gpu.name : "stand-in",
      .weights = need.resident,
      .kv = need.kv,
      .activations = need.activations,
      .staging = need.streamed + need.passing_kv,
      .workspaces = need.scratch,
      .available = accelerator_.memory_bytes};
}

namespace {

/// A handle's memory in main RAM; StarPU pins what it takes for data from a disk.
void pin(PinnedMemory& pinned, const DataHandle& handle) {
  if (handle && handle.lives_in_main_memory())
    pinned.pin(handle.main_memory(), handle.size_bytes());
}

/// All that a GPU may read or write.
void pin_all(PinnedMemory& pinned, const ModelWeights& model, std::span<const KvCache> caches) {
  for (const DataHandle* handle :
       {&model.token_table, &model.positions, &model.project_in.data, &model.project_out.data,
        &model.frequencies, &model.final_norm, &model.head.data})
    pin(pinned, *handle);
  for (const LayerWeights& layer : model.layers()) {
    pin(pinned, layer.vectors);
    for (const WeightHandle& weight : layer.matrices) pin(pinned, weight.data);
    for (const DataHandle& chunk : layer.experts.chunks) pin(pinned, chunk);
  }
  for (const KvCache& kv : caches) {
    for (std::int64_t layer = 0; layer < model.config().num_layers; ++layer)
      pin(pinned, kv.slab(layer));
  }
}

/// What a GPU copies from and to is pinned, so it is there before a run: here as well, unless that
/// leaves the host too little.
void commit_all(Runtime& runtime, std::span<const KvCache> caches) {
  std::uint64_t bytes = 0;
  for (const KvCache& kv : caches) bytes += kv.host_bytes();
  if (available_memory_bytes() < 2 * bytes) return;
  for (const KvCache& kv : caches) kv.commit(runtime.setup_pool());
}

}  // namespace

std::unique_ptr<AcceleratorRun::Residence> AcceleratorRun::bring(Runtime& runtime,
                                                                 const ModelWeights& model,
                                                                 std::span<const KvCache> caches,
                                                                 const RunSize& size) const {
  check_sendable(model.token_table.size_bytes(), "the embedding");
  auto residence = std::make_unique<Residence>();
  residence->weights = std::make_unique<ResidentWeights>(model, plan_.memory);
  Need need = need_of(size);
  const AcceleratorUse at_start = runtime.accelerator_use();
  need.scratch +=
      at_start.peak_bytes - std::min(at_start.peak_bytes, accelerator_.scratch.blas_bytes);
  check_fits(need, at_start.memory_bytes,
             fmt::format("; {} would do", accelerator_.option_for(need.total())));
  if (accelerator_.kind == Accelerator::Kind::cuda) {
    runtime.reserve_on_gpu(accelerator_.scratch.workspace_bytes, accelerator_.scratch.stage_bytes);
    pin_all(residence->pinned, model, caches);
  } else {
    commit_all(runtime, caches);
  }
  residence->weights->hold_on(runtime.accelerator_node().value());
  return residence;
}

std::string AcceleratorRun::summary(const Runtime& runtime) const {
  const AcceleratorUse used = runtime.accelerator_use();
  std::string text = fmt::format("{}: peak {}, {} moved to it, {} from it", accelerator_.name(),
                                 format_bytes(used.peak_bytes), format_bytes(used.to_bytes),
                                 format_bytes(used.from_bytes));
  const GraphUse graphs = runtime.graph_use();
  if (graphs.captured > 0)
    text += fmt::format("; {} CUDA graphs launched {} times", graphs.captured, graphs.launched);
  return text;
}

void AcceleratorRun::add_to(nlohmann::json& stats, const Runtime& runtime) const {
  const AcceleratorUse used = runtime.accelerator_use();
  const bool is_gpu = accelerator_.kind == Accelerator::Kind::cuda;
  stats["peak_bytes"]["hbm"] = used.peak_bytes;
  stats["device"] = {{"kind", is_gpu ? "cuda" : "stand-in"},
                     {"memory_bytes", used.memory_bytes},
                     {"bytes_to_device", used.to_bytes},
                     {"bytes_from_device", used.from_bytes}};
  if (!is_gpu) return;
  const GraphUse graphs = runtime.graph_use();
  stats["device"]["name"] = accelerator_.gpu.name;
  stats["device"]["cuda_graphs"] = {{"captured", graphs.captured}, {"launched", graphs.launched}};
}

}  // namespace sluice
