#include "engine/compute_options.h"

#include "base/cpu.h"
#include "codelets/kernels/linear.h"
#include "graphs/model_weights.h"
#include "models/model.h"

namespace sluice {

ModelConfig find_model_config(const std::string& name) {
  return names_model(name) ? read_model_config(name) : find_shape(name);
}

std::optional<DType> read_dtype(const CommandLine& line) {
  if (!line.given("dtype")) return std::nullopt;
  const std::string& text = line.get<std::string>("dtype");
  const std::optional<DType> dtype = parse_dtype(text);
  if (!dtype) throw UsageError("--dtype {}: expected f32, bf16 or f16", text);
  return dtype;
}

std::optional<int> read_threads(const CommandLine& line) {
  if (!line.given("threads")) return std::nullopt;
  return in_range(line, "threads", 1, 512);
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

std::vector<std::vector<int>> cut_into_domains(const std::vector<int>& cores, int num_domains) {
  if (num_domains > static_cast<int>(cores.size())) {
    throw UsageError("--domains {}: there are only {} threads to share", num_domains, cores.size());
  }
  std::vector<std::vector<int>> domains;
  const auto count = static_cast<std::size_t>(num_domains);
  for (std::size_t i = 0; i < count; ++i) {
    domains.emplace_back(
        cores.begin() + static_cast<std::ptrdiff_t>(i * cores.size() / count),
        cores.begin() + static_cast<std::ptrdiff_t>((i + 1) * cores.size() / count));
  }
  return domains;
}

int num_threads(const std::vector<std::vector<int>>& domains) {
  std::size_t count = 0;
  for (const std::vector<int>& cores : domains) count += cores.size();
  return static_cast<int>(count);
}

ModelDimensions model_dimensions(const ModelConfig& config, DType dtype) {
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
          .weight_bits = 8 * static_cast<double>(size_bytes(dtype)),
          .kv_element_bytes = static_cast<std::int64_t>(size_bytes(dtype))};
}

}  // namespace sluice
