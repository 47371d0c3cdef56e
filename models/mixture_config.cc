#include "models/mixture_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/rms_decoder.h"

namespace sluice {

void read_experts(const ConfigReader& fields, const MixtureDefaults& defaults,
                  ModelConfig& config) {
  const bool is_local = fields.has("num_local_experts");
  const std::string_view usual = is_local ? "num_local_experts" : "num_experts";
  const std::string_view key = defaults.key.empty() ? usual : defaults.key;
  config.num_experts = fields.count(key, defaults.num_experts);
  if (key == "num_local_experts" && fields.has("num_experts") &&
      fields.count("num_experts") != config.num_experts) {
    throw Error(
        "{}: num_local_experts is {} and num_experts {}; expected one number, they name "
        "the same",
        fields.where(), config.num_experts, fields.count("num_experts"));
  }
  if (config.num_experts > most_experts) fields.refuse(key, fmt::format("1 to {}", most_experts));
  const bool has_other = !fields.has("num_experts_per_tok") && fields.has("experts_per_token");
  const std::string_view per_token = has_other ? "experts_per_token" : "num_experts_per_tok";
  if (!has_other && fields.has("experts_per_token") &&
      fields.count("experts_per_token") != fields.count(per_token)) {
    throw Error(
        "{}: num_experts_per_tok is {} and experts_per_token {}; expected one number, they name "
        "the same",
        fields.where(), fields.count(per_token), fields.count("experts_per_token"));
  }
  config.experts_per_token = fields.count(per_token, defaults.experts_per_token);
  if (config.experts_per_token > config.num_experts) {
    fields.refuse(per_token,
                  fmt::format("1 to {}, the number of experts ({})", config.num_experts, key));
  }
}

void read_sigmoid_router(const ConfigReader& fields, std::string_view key, ModelConfig& config) {
  constexpr double lowest_factor = 1e-6;
  constexpr double highest_factor = 1e6;
  config.router = RouterKind::sigmoid;
  config.router_correction = true;
  config.norm_chosen = fields.flag("norm_topk_prob", true);
  config.routed_scaling = static_cast<float>(
      fields.number("routed_scaling_factor", lowest_factor, highest_factor, 1.0));
  config.num_groups = fields.count("n_group", 1);
  config.groups_per_token = fields.count("topk_group", 1);
  if (config.num_experts % config.num_groups != 0)
    fields.refuse("n_group", fmt::format("a number that divides {} ({})", key, config.num_experts));
  if (config.groups_per_token > config.num_groups)
    fields.refuse("topk_group", fmt::format("1 to n_group ({})", config.num_groups));
  if (config.groups_per_token == config.num_groups) return;
  const std::int64_t in_group = config.num_experts / config.num_groups;
  if (in_group < 2) {
    fields.refuse("n_group", fmt::format("at most {}: groups are compared by two experts of each",
                                         config.num_experts / 2));
  }
  if (config.experts_per_token > in_group * config.groups_per_token) {
    fields.refuse("num_experts_per_tok",
                  fmt::format("1 to {}, as many experts as topk_group ({}) groups have",
                              in_group * config.groups_per_token, config.groups_per_token));
  }
}

void write_sigmoid_router(const ModelConfig& config, nlohmann::ordered_json& fields) {
  fields["n_group"] = config.num_groups;
  fields["topk_group"] = config.groups_per_token;
  fields["norm_topk_prob"] = config.norm_chosen;
  fields["routed_scaling_factor"] = shortest(config.routed_scaling);
}

void read_first_dense_layers(const ConfigReader& fields, std::int64_t default_count,
                             ModelConfig& config) {
  constexpr std::string_view key = "first_k_dense_replace";
  const std::int64_t count = fields.count(key, default_count, 0);
  if (count == 0) return;
  if (count >= config.num_layers) {
    fields.refuse(key, fmt::format("0 to {}, so that a layer has experts", config.num_layers - 1));
  }
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer)
    config.dense_layers.push_back(layer < count);
  config.dense_ffn_size = fields.count("intermediate_size");
}

void read_dense_layers(const ConfigReader& fields, ModelConfig& config) {
  const std::int64_t step = fields.count("decoder_sparse_step", 1);
  std::vector<bool> dense;
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer)
    dense.push_back((layer + 1) % step != 0);
  constexpr std::string_view named = "mlp_only_layers";
  if (fields.has(named)) {
    const auto last = static_cast<double>(config.num_layers - 1);
    for (const double layer : fields.numbers(named, 0, last)) {
      const auto index = static_cast<std::size_t>(layer);
      if (static_cast<double>(index) != layer) fields.refuse(named, "numbers of layers");
      dense.at(index) = true;
    }
  }
  if (std::find(dense.begin(), dense.end(), true) == dense.end()) return;
  if (std::find(dense.begin(), dense.end(), false) == dense.end()) {
    throw Error(
        "{}: decoder_sparse_step and mlp_only_layers leave no layer with experts; expected "
        "a model of a family without experts",
        fields.where());
  }
  config.dense_layers = std::move(dense);
  config.dense_ffn_size = fields.count("intermediate_size");
}

void write_dense_layers(const ModelConfig& config, nlohmann::ordered_json& fields) {
  fields["decoder_sparse_step"] = 1;
  auto& named = fields["mlp_only_layers"] = nlohmann::ordered_json::array();
  for (std::size_t layer = 0; layer < config.dense_layers.size(); ++layer) {
    if (config.dense_layers[layer]) named.push_back(layer);
  }
}

}  // namespace sluice
