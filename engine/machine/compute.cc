#include "engine/machine/compute.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "base/error.h"
#include "codelets/weights/plain.h"
#include "engine/console/core_list.h"
#include "graphs/model_weights.h"
#include "models/model.h"

namespace sluice {

ModelConfig find_model_config(const std::string& name) {
  return names_model(name) ? read_model_config(name) : find_shape(name);
}

DType choose_dtype(std::optional<DType> asked) {
  const DType wanted = asked.value_or(default_dtype);
  if (wanted == DType::f32) return wanted;
  if (wanted == DType::f16) fmt::print(stderr, "sluice: f16 is computed as bf16\n");
  return DType::bf16;
}

std::vector<int> choose_cores(std::optional<int> asked) {
  const CpuTopology topology = read_cpu_topology();
  const int threads = asked.value_or(default_num_threads(topology));
  const auto cores = static_cast<int>(topology.cores.size());
  if (threads > cores) {
    fmt::print(stderr,
               "sluice: --threads {} on {} cores: threads will share cores and run slower\n",
               threads, cores);
  }
  std::vector<int> chosen;
  chosen.reserve(static_cast<std::size_t>(threads));
  for (int i = 0; i < threads; ++i)
    chosen.push_back(topology.cores[static_cast<std::size_t>(i % cores)]);
  return chosen;
}

nlohmann::json cpu_plan_as_json(const CpuUse& cpu) {
  if (cpu.plan) return as_json(*cpu.plan, Topology::of_this_machine());
  std::vector<int> cores;  // each once, also where threads share some
  for (const int core : cpu.cores) {
    if (std::find(cores.begin(), cores.end(), core) == cores.end()) cores.push_back(core);
  }
  return as_json(interleaved_plan(cores), Topology::of_this_machine());
}

std::optional<PhaseGroups> CpuUse::groups() const {
  if (!plan) return std::nullopt;
  return PhaseGroups{.prefill = threads_of(plan->prefill, cores),
                     .decode = threads_of(plan->decode, cores)};
}

std::vector<NodeShare> CpuUse::node_shares() const {
  if (!plan) return {};
  std::vector<NodeShare> shares;
  for (const CpuGroup& group : plan->decode.groups) {
    if (!group.numa_node) return {};
    shares.push_back({.node = *group.numa_node, .share = group.share});
  }
  return shares;
}

namespace {

bool is_uncut(const CpuPhasePlan& phase, std::size_t num_cores) {
  return phase.groups.size() == 1 && phase.groups.front().cores.size() == num_cores &&
         !phase.groups.front().numa_node;
}

std::string cut_text_of(const CpuPhasePlan& phase) {
  std::string text;
  for (const CpuGroup& group : phase.groups) {
    if (!text.empty()) text += " | ";
    text += cores_text(group.cores);
    if (group.numa_node) text += fmt::format("@{}", *group.numa_node);
    if (phase.groups.size() > 1) text += fmt::format(" {:.6g}", group.share);
  }
  return text;
}

CpuPhasePlan without_nodes(CpuPhasePlan phase) {
  for (CpuGroup& group : phase.groups) group.numa_node.reset();
  return phase;
}

}  // namespace

std::string CpuUse::cut_text() const { return cut_text(read_cpu_topology().numa_nodes.size()); }

std::string CpuUse::cut_text(std::size_t num_numa_nodes) const {
  if (!plan) return "";
  CpuPlan shown = *plan;
  if (num_numa_nodes < 2)
    shown = {.prefill = without_nodes(shown.prefill), .decode = without_nodes(shown.decode)};
  if (is_uncut(shown.prefill, cores.size()) && is_uncut(shown.decode, cores.size())) return "";
  return fmt::format("prefill {}; decode {}", cut_text_of(shown.prefill),
                     cut_text_of(shown.decode));
}

namespace {

/// Bits of a weight's value, with its share of scales and zero points.
double mean_bits(const WeightFormat& format, std::int64_t in) {
  const double of_group =
      8 * (static_cast<double>(size_bytes(format.scales)) + (format.has_zero_points ? 1 : 0));
  return format.bits_per_code() +
         of_group * static_cast<double>(format.num_groups(in)) / static_cast<double>(in);
}

/// The mean of the layers' weights, as they are multiplied.
void count_codes(const ModelConfig& config, ModelDimensions& model) {
  double bits = 0;
  double elements = 0;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (const LayerMatrix& matrix : layer_matrices(config, layer)) {
      if (matrix.weight == LayerWeight::router) continue;  // no part of ModelDimensions
      const WeightFormat& format =
          config.layer_formats.at(static_cast<std::size_t>(layer))[matrix.weight];
      const std::int64_t experts = matrix.of_each_expert ? config.num_experts : 1;
      const auto count = static_cast<double>(matrix.in * matrix.out * experts);
      bits += count * (format.is_plain() ? model.weight_bits : mean_bits(format, matrix.in));
      elements += count;
    }
  }
  model.weight_bits = bits / elements;
  model.fused_codes = true;
}

ModelDimensions plain_dimensions(const ModelConfig& config, DType dtype) {
  return {.num_layers = config.num_layers,
          .hidden_size = config.hidden_size,
          .embed_size = config.embed_size,
          .num_heads = config.num_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .ffn_size = config.ffn_size,
          .vocab_size = config.vocab_size,
          .sliding_window_tokens = config.sliding_window_tokens,
          .full_attention_layers = config.num_full_attention_layers(),
          .gated_ffn = config.gated_ffn,
          .learned_positions = config.position == PositionKind::learned
                                   ? config.max_positions + config.position_offset
                                   : 0,
          .num_experts = config.num_experts,
          .experts_per_token = config.experts_per_token,
          .shared_ffn_size = config.shared_ffn_size,
          .weight_bits = 8 * static_cast<double>(size_bytes(dtype)),
          .kv_element_bytes = static_cast<std::int64_t>(size_bytes(dtype))};
}

}  // namespace

ModelDimensions model_dimensions(const ModelConfig& config, DType dtype) {
  ModelDimensions model = plain_dimensions(config, dtype);
  if (!config.head_format.is_plain())
    model.head_bits = mean_bits(config.head_format, config.embed_size);
  if (!config.layer_formats.empty()) count_codes(config, model);
  return model;
}

}  // namespace sluice
