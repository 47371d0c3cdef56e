#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "models/family.h"
#include "models/layer_types.h"
#include "models/mixture_config.h"
#include "models/rms_decoder.h"

namespace sluice {
namespace {

constexpr std::int64_t kDefaultKvHeads = 8;

void read(const ConfigReader& fields, ModelConfig& config) {
  read_rms_decoder(fields, config, kDefaultKvHeads);
  read_experts(fields, {.num_experts = 8, .experts_per_token = 2}, config);
  if (fields.has("sliding_window")) set_windows(fields.count("sliding_window"), {}, config);
  config.bos_token_id = fields.token_id("bos_token_id", 1);
  config.eos_token_ids = fields.token_ids("eos_token_id", {2});
}

void write(const ModelConfig& config, nlohmann::ordered_json& fields) {
  write_rms_decoder(config, fields);
  fields["num_local_experts"] = config.num_experts;
  fields["num_experts_per_tok"] = config.experts_per_token;
  fields["sliding_window"] = nullptr;
  if (config.sliding_window_tokens > 0) fields["sliding_window"] = config.sliding_window_tokens;
}

/// Mixtral's own names for what others call gate, up and down.
std::string tensor_name(TensorId id) {
  const auto of_layer = [&](std::string_view name) {
    return fmt::format("model.layers.{}.block_sparse_moe.{}", id.layer, name);
  };
  if (id.role == TensorRole::router_weight) return of_layer("gate.weight");
  if (id.expert < 0) return rms_decoder_tensor_name(id);
  const std::string_view name = id.role == TensorRole::gate_weight  ? "w1"
                                : id.role == TensorRole::fc1_weight ? "w3"
                                                                    : "w2";
  return of_layer(fmt::format("experts.{}.{}.weight", id.expert, name));
}

}  // namespace

/// Mixtral 8x7B and 8x22B: Mistral's layers, each with experts in place of one FFN.
extern const Family mixtral_family = {.name = "mixtral",
                                      .architecture = "MixtralForCausalLM",
                                      .default_max_positions = 131072,
                                      .ffn_field = "intermediate_size",
                                      .embed_field = "hidden_size",
                                      .has_experts = true,
                                      .read = read,
                                      .write = write,
                                      .tensor_name = tensor_name};

}  // namespace sluice
