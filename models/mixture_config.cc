#include "models/mixture_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace sluice {

void read_experts(const ConfigReader& fields, const MixtureDefaults& defaults,
                  ModelConfig& config) {
  const bool is_local = fields.has("num_local_experts");
  const std::string_view key = is_local ? "num_local_experts" : "num_experts";
  config.num_experts = fields.count(key, defaults.num_experts);
  if (is_local && fields.has("num_experts") && fields.count("num_experts") != config.num_experts) {
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
