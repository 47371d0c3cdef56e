#include "engine/device.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace sluice {
namespace {

constexpr std::string_view stand_in_prefix = "standin:";
constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

std::uint64_t bytes_of(const DataHandle& handle) {
  return handle ? starpu_data_get_size(handle.get()) : 0;
}

std::uint64_t bytes_of(const LayerWeights& weights) {
  std::uint64_t sum = 0;
  for (const DataHandle* handle :
       {&weights.vectors, &weights.qkv, &weights.out, &weights.gate, &weights.fc1, &weights.fc2})
    sum += bytes_of(*handle);
  return sum;
}

/// StarPU counts what it sends in an int.
void check_sendable(std::uint64_t bytes, const char* what) {
  constexpr std::uint64_t most = std::uint64_t{1} << 31;
  if (bytes < most) return;
  throw Error("{} of {} cannot go to the stand-in accelerator, which takes less than {} at once",
              what, format_bytes(bytes), format_bytes(most));
}

void check_kept(const Plan& plan, const std::string& policy) {
  for (const LayerHomes& homes : plan.memory.layers) {
    for (const Tier tier : homes.weights) {
      if (tier == Tier::cxl || tier == Tier::disk)
        throw Error("policy {} has weights in {}, which this machine does not have", policy,
                    to_string(tier));
    }
  }
  if (plan.memory.hbm_requests > 0 && plan.memory.hbm_requests < plan.workload.batch) {
    throw Error(
        "policy {} keeps the KV of {} of {} requests in HBM; the stand-in accelerator does not "
        "run requests of two kinds",
        policy, plan.memory.hbm_requests, plan.workload.batch);
  }
}

}  // namespace

void declare_device_option(CommandLine& line) {
  line.options().add_options()  //
      ("device", boost::program_options::value<std::string>()->default_value("cpu"),
       "cpu; or standin:MEMORY, e.g. standin:64MiB: a second process plays a GPU with so much "
       "memory, to test with");
}

std::uint64_t read_device(const CommandLine& line) {
  const std::string& text = line.get<std::string>("device");
  if (text == "cpu") return 0;
  if (!text.starts_with(stand_in_prefix))
    throw UsageError("--device {}: expected cpu, or standin:MEMORY such as standin:64MiB", text);
  const std::uint64_t bytes = parse_size_bytes(text.substr(stand_in_prefix.size()), "device");
  if (bytes < mebibyte || bytes >= total_memory_bytes()) {
    throw UsageError("--device {}: from 1MiB to less than this machine's memory of {}", text,
                     format_bytes(total_memory_bytes()));
  }
  return bytes;
}

std::string stand_in_name(std::uint64_t memory_bytes) {
  return fmt::format("stand-in accelerator (a second process, for tests) of {}",
                     format_bytes(memory_bytes));
}

StandInRun::StandInRun(LoadedPolicy& policy, const CostModel& costs, const Workload& workload)
    : plan_(make_plan(policy.policy(), costs,
                      {.batch = workload.batch,
                       .input_tokens = std::max<std::int64_t>(1, workload.input_tokens),
                       .output_tokens = std::max<std::int64_t>(1, workload.output_tokens)})) {
  check_kept(plan_, policy.name());
  const ModelDimensions& model = costs.model();
  const double staged =
      std::max(staging_bytes(model, plan_.memory, plan_.prefill.pipeline.prefetch),
               staging_bytes(model, plan_.memory, plan_.decode.pipeline.prefetch));
  policy.set_staging(
      {.bytes = static_cast<std::uint64_t>(staged), .ahead = plan_.decode.pipeline.prefetch});
}

/// At its real size, in bytes.
struct StandInRun::Need {
  std::uint64_t resident = 0;     ///< weights
  std::uint64_t kv = 0;           ///< that lives there
  std::uint64_t streamed = 0;     ///< weights on their way
  std::uint64_t passing_kv = 0;   ///< that lives elsewhere
  std::uint64_t activations = 0;  ///< logits included

  std::uint64_t total() const { return resident + kv + streamed + passing_kv + activations; }
};

bool StandInRun::reads_kv_from_elsewhere() const {
  const auto away = [](const LayerHomes& homes, const Placement& placement) {
    return homes.kv != Tier::hbm &&
           (placement[Sublayer::qk] == Device::gpu || placement[Sublayer::sv] == Device::gpu);
  };
  for (const PhasePlan* phase : {&plan_.prefill, &plan_.decode}) {
    for (const LayerGroup& group : phase->groups) {
      if (away(group.homes, group.cost.placement)) return true;
    }
  }
  return false;
}

StandInRun::Need StandInRun::need_of(const LoadedModel& model, std::span<const KvCache> caches,
                                     std::int64_t max_rows, std::int64_t max_logit_rows) const {
  Need need;
  std::uint64_t largest_layer = 0;
  for (std::size_t layer = 0; layer < plan_.memory.layers.size(); ++layer) {
    for (const KvCache& kv : caches) {
      const std::uint64_t slab = bytes_of(kv.slab(static_cast<std::int64_t>(layer)));
      check_sendable(slab, "a layer's KV");
      (kv.home(static_cast<std::int64_t>(layer)) == Tier::hbm ? need.kv : need.passing_kv) += slab;
    }
    const bool resident = plan_.memory.layers[layer].resident();
    if (!resident) largest_layer = std::max(largest_layer, bytes_of(model.layers()[layer]));
  }
  // Of one layer, and the next one's.
  const auto layers = static_cast<std::uint64_t>(plan_.memory.layers.size());
  need.passing_kv = reads_kv_from_elsewhere() ? 2 * need.passing_kv / layers : 0;
  if (!plan_.memory.uses_gpu) return need;
  need.streamed = 2 * largest_layer;
  if (plan_.memory.lm_head_device == Device::gpu && plan_.memory.lm_head != Tier::hbm)
    need.streamed += bytes_of(model.head);
  // Of one iteration, and the next one's, which is submitted before the first has ended.
  const ModelConfig& config = model.config();
  const std::int64_t floats = max_rows * (config.hidden_size + 2 * model.shape().qkv_size() +
                                          model.shape().q_size() + 2 * config.ffn_size) +
                              max_logit_rows * config.vocab_size;
  need.activations = 2 * static_cast<std::uint64_t>(floats) * sizeof(float);
  return need;
}

std::unique_ptr<ResidentWeights> StandInRun::bring(const Runtime& runtime, const LoadedModel& model,
                                                   std::span<const KvCache> caches,
                                                   std::int64_t max_rows,
                                                   std::int64_t max_logit_rows) const {
  check_sendable(bytes_of(model.head), "the LM head");
  check_sendable(bytes_of(model.token_table), "the embedding");
  auto resident = std::make_unique<ResidentWeights>(model, plan_.memory);
  Need need = need_of(model, caches, max_rows, max_logit_rows);
  need.resident = resident->size_bytes();
  const std::uint64_t there = runtime.stand_in_use().memory_bytes;
  if (need.total() > there) {
    throw Error(
        "not enough memory in the {}: {} needed (weights that stay {}, KV {}, weights on the way "
        "{}, KV on the way {}, activations {}); --device standin:{}MiB would do",
        stand_in_name(there), format_bytes(need.total()), format_bytes(need.resident),
        format_bytes(need.kv), format_bytes(need.streamed), format_bytes(need.passing_kv),
        format_bytes(need.activations), (need.total() + mebibyte - 1) / mebibyte);
  }
  resident->hold_on(runtime.stand_in_node().value());
  return resident;
}

const StandInUse& StandInRun::use(const Runtime& runtime) {
  if (!use_) use_ = runtime.stand_in_use();
  return *use_;
}

std::string StandInRun::summary(const Runtime& runtime) {
  const StandInUse& used = use(runtime);
  return fmt::format("{}: peak {}, {} moved to it, {} from it", stand_in_name(used.memory_bytes),
                     format_bytes(used.peak_bytes), format_bytes(used.to_bytes),
                     format_bytes(used.from_bytes));
}

void StandInRun::add_to(nlohmann::json& stats, const Runtime& runtime) {
  const StandInUse& used = use(runtime);
  stats["peak_bytes"]["hbm"] = used.peak_bytes;
  stats["device"] = {{"kind", "stand-in"},
                     {"memory_bytes", used.memory_bytes},
                     {"bytes_to_device", used.to_bytes},
                     {"bytes_from_device", used.from_bytes}};
}

}  // namespace sluice
