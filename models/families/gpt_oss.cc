#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "models/family.h"
#include "models/layer_types.h"
#include "models/mixture_config.h"
#include "models/rms_decoder.h"
#include "models/unsupported_fields.h"

namespace sluice {
namespace {

// As in Transformers.
constexpr std::int64_t kDefaultKvHeads = 8;
constexpr std::int64_t kDefaultHeadDim = 64;
constexpr std::int64_t kDefaultWindowTokens = 128;
constexpr float kDefaultTheta = 150000.0F;
constexpr float kDefaultNormEps = 1e-5F;
constexpr double kDefaultSwigluLimit = 7.0;
constexpr double kHighestSwigluLimit = 1e30;

// Transformers computes with it, we do not.
constexpr std::array other_fields = {UnsupportedField{"swiglu_alpha", "1.702"}};

void read_activation(const ConfigReader& fields, ModelConfig& config) {
  if (config.activation != Activation::silu)
    fields.refuse("hidden_act", "\"silu\", which gpt_oss clamps to swiglu_limit");
  config.activation = Activation::clamped_swiglu;
  constexpr std::string_view key = "swiglu_limit";
  const double limit =
      fields.number(key, -kHighestSwigluLimit, kHighestSwigluLimit, kDefaultSwigluLimit);
  config.swiglu_limit = static_cast<float>(limit);
  if (config.swiglu_limit <= 0) fields.refuse(key, "a number above 0");
}

/// In every second layer, from the first on, unless layer_types says otherwise.
void read_windows(const ConfigReader& fields, ModelConfig& config) {
  constexpr std::string_view key = "sliding_window";
  if (fields.is_null(key)) return refuse_windows_without_size(fields, config, key);
  std::vector<bool> windowed = read_layer_types(fields, config);
  for (std::int64_t layer = std::ssize(windowed); layer < config.num_layers; ++layer)
    windowed.push_back(layer % 2 == 0);
  set_windows(fields.count(key, kDefaultWindowTokens), std::move(windowed), config);
}

/// YaRN, unless there are RoPE parameters.
void read_missing_rope(const ConfigReader& fields, ModelConfig& config) {
  bool has_parameters = false;
  bool has_theta = fields.has("rope_theta");
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto rope = fields.object(key);
    has_parameters |= rope && !rope->keys().empty();
    has_theta |= rope && rope->has("rope_theta");
  }
  if (!has_theta) config.rope_theta = kDefaultTheta;
  if (has_parameters) return;
  constexpr std::int64_t kReach = 131072;
  config.max_positions = std::max(config.max_positions, kReach);
  config.rope_scaling = RopeVariant{.kind = RopeKind::yarn,
                                    .factor = 32.0F,
                                    .original_max_positions = 4096,
                                    .truncate = false,
                                    .attention_factor = 0.1F * std::log(32.0F) + 1.0F};
}

void read(const ConfigReader& fields, ModelConfig& config) {
  read_rms_decoder(fields, config, kDefaultKvHeads, kDefaultHeadDim);
  refuse_fields(fields, other_fields);
  if (!fields.has("rms_norm_eps")) config.norm_eps = kDefaultNormEps;
  read_missing_rope(fields, config);
  read_activation(fields, config);
  read_windows(fields, config);
  read_experts(fields, {.num_experts = 128, .experts_per_token = 4}, config);
  config.router = RouterKind::softmax_of_chosen;
  config.router_bias = config.ffn_bias = config.attention_sinks = true;
  config.qkv_bias = config.out_bias = fields.flag("attention_bias", true);
  config.bos_token_id = fields.token_id("bos_token_id");
  config.eos_token_ids = fields.token_ids("eos_token_id");
}

void write(const ModelConfig& config, nlohmann::ordered_json& fields) {
  write_rms_decoder(config, fields);
  fields["hidden_act"] = "silu";
  fields["swiglu_limit"] = shortest(config.swiglu_limit);
  fields["attention_bias"] = config.qkv_bias;
  fields["num_local_experts"] = config.num_experts;
  fields["num_experts_per_tok"] = config.experts_per_token;
  fields["sliding_window"] = nullptr;
  if (config.sliding_window_tokens > 0) fields["sliding_window"] = config.sliding_window_tokens;
  auto& types = fields["layer_types"] = nlohmann::ordered_json::array();
  for (std::int64_t layer = 0; layer < config.num_layers; ++layer)
    types.push_back(config.window_tokens(layer) > 0 ? "sliding_attention" : "full_attention");
}

std::string tensor_name(TensorId id) {
  const auto of_layer = [&](std::string_view name) {
    return fmt::format("model.layers.{}.mlp.router.{}", id.layer, name);
  };
  if (id.role == TensorRole::router_weight) return of_layer("weight");
  if (id.role == TensorRole::router_bias) return of_layer("bias");
  return rms_decoder_tensor_name(id);
}

/// The experts' outputs of gate and up stand in one tensor by turns.
std::optional<StackedPart> stacked_part(TensorId id) {
  if (id.expert < 0) return std::nullopt;
  const auto part = [&](std::string_view name, std::int64_t first, std::int64_t step) {
    return StackedPart{.stack = fmt::format("model.layers.{}.mlp.experts.{}", id.layer, name),
                       .expert = id.expert,
                       .transposed = true,
                       .first = first,
                       .step = step};
  };
  switch (id.role) {
    case TensorRole::gate_weight:
      return part("gate_up_proj", 0, 2);
    case TensorRole::fc1_weight:
      return part("gate_up_proj", 1, 2);
    case TensorRole::fc2_weight:
      return part("down_proj", 0, 1);
    case TensorRole::gate_bias:
      return part("gate_up_proj_bias", 0, 2);
    case TensorRole::fc1_bias:
      return part("gate_up_proj_bias", 1, 2);
    case TensorRole::fc2_bias:
      return part("down_proj_bias", 0, 1);
    default:
      return std::nullopt;
  }
}

}  // namespace

/// OpenAI's gpt-oss-20b and 120b: attention with sinks and biases, a window in every other layer,
/// and experts with biases and a SwiGLU that is clamped.
extern const Family gpt_oss_family = {.name = "gpt_oss",
                                      .architecture = "GptOssForCausalLM",
                                      .default_max_positions = 131072,
                                      .ffn_field = "intermediate_size",
                                      .embed_field = "hidden_size",
                                      .has_experts = true,
                                      .read = read,
                                      .write = write,
                                      .tensor_name = tensor_name,
                                      .stacked_part = stacked_part};

}  // namespace sluice
