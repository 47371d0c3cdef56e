#include <fmt/ranges.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/nearest_word.h"
#include "models/model.h"

namespace sluice {
namespace {

/// What distinguishes the sizes of one family.
struct Size {
  std::int64_t hidden_size;
  std::int64_t num_layers;
  std::int64_t num_heads;
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
  std::int64_t ffn_size;
  std::int64_t vocab_size;
};

ModelConfig base_config(std::string_view family, const Size& size, std::int64_t max_positions) {
  ModelConfig config;
  config.family = family;
  config.hidden_size = config.embed_size = size.hidden_size;
  config.num_layers = size.num_layers;
  config.num_heads = size.num_heads;
  config.num_kv_heads = size.num_kv_heads;
  config.head_dim = size.head_dim;
  config.ffn_size = size.ffn_size;
  config.vocab_size = size.vocab_size;
  config.max_positions = max_positions;
  return config;
}

/// Zhang et al. 2022, Table 1, and the configurations of facebook/opt-*.
ModelConfig opt(std::int64_t hidden_size, std::int64_t num_layers, std::int64_t num_heads) {
  ModelConfig config = base_config("opt",
                                   {.hidden_size = hidden_size,
                                    .num_layers = num_layers,
                                    .num_heads = num_heads,
                                    .num_kv_heads = num_heads,
                                    .head_dim = hidden_size / num_heads,
                                    .ffn_size = 4 * hidden_size,
                                    .vocab_size = 50272},
                                   2048);
  config.norm = NormKind::layer_norm;
  config.activation = Activation::relu;
  config.gated_ffn = false;
  config.qkv_bias = config.out_bias = config.ffn_bias = true;
  config.position = PositionKind::learned;
  config.position_offset = 2;
  config.tied_embeddings = true;
  config.bos_token_id = 2;
  config.eos_token_ids = {2};
  config.stored_dtype = DType::f16;
  return config;
}

/// The only one with its norms after the blocks, and with an embedding narrower than its layers.
ModelConfig opt_350m() {
  ModelConfig config = opt(1024, 24, 16);
  config.embed_size = 512;
  config.norm_place = NormPlace::post;
  config.final_norm = false;
  return config;
}

ModelConfig llama2(const Size& size) {
  ModelConfig config = base_config("llama", size, 4096);
  config.bos_token_id = 1;
  config.eos_token_ids = {2};
  config.stored_dtype = DType::f16;
  return config;
}

/// Small ones of Llama's form, published by others.
ModelConfig small_llama(const Size& size, std::int64_t positions, float norm_eps, DType stored) {
  ModelConfig config = llama2(size);
  config.max_positions = positions;
  config.norm_eps = norm_eps;
  config.stored_dtype = stored;
  return config;
}

ModelConfig llama3(const Size& size) {
  ModelConfig config = base_config("llama", size, 8192);
  config.rope_theta = 500000.0F;
  config.bos_token_id = 128000;
  config.eos_token_ids = {128001};
  return config;
}

/// 3.1 and 3.2: the context stretched from 8192 to 131072 tokens.
ModelConfig llama31(const Size& size, float rope_factor) {
  ModelConfig config = llama3(size);
  config.max_positions = 131072;
  config.rope_scaling = RopeVariant{.factor = rope_factor,
                                    .low_freq_factor = 1.0F,
                                    .high_freq_factor = 4.0F,
                                    .original_max_positions = 8192};
  return config;
}

ModelConfig llama32(const Size& size) {
  ModelConfig config = llama31(size, 32.0F);
  config.tied_embeddings = true;
  return config;
}

ModelConfig qwen2(const Size& size, bool tied_embeddings) {
  ModelConfig config = base_config("qwen2", size, 131072);
  config.norm_eps = 1e-6F;
  config.qkv_bias = true;
  config.rope_theta = 1000000.0F;
  config.tied_embeddings = tied_embeddings;
  config.bos_token_id = 151643;
  config.eos_token_ids = {151643};
  return config;
}

ModelConfig qwen2_72b() {
  ModelConfig config = qwen2({8192, 80, 64, 8, 128, 29568, 152064}, false);
  config.norm_eps = 1e-5F;
  return config;
}

/// Qwen/Qwen3-*; not the base models, whose contexts are shorter.
ModelConfig qwen3(const Size& size, bool tied_embeddings) {
  ModelConfig config = base_config("qwen3", size, 40960);
  config.norm_eps = 1e-6F;
  config.qk_norm = true;
  config.rope_theta = 1000000.0F;
  config.tied_embeddings = tied_embeddings;
  config.bos_token_id = 151643;
  config.eos_token_ids = {151645};
  return config;
}

ModelConfig mistral(std::int64_t vocab_size, float rope_theta, std::int64_t window_tokens) {
  ModelConfig config = base_config("mistral", {4096, 32, 32, 8, 128, 14336, vocab_size}, 32768);
  config.rope_theta = rope_theta;
  config.sliding_window_tokens = window_tokens;
  config.bos_token_id = 1;
  config.eos_token_ids = {2};
  return config;
}

/// bigscience/bloom, but for the norm after its embedding (28672 elements): shape only.
ModelConfig bloom_176b() {
  ModelConfig config = base_config("bloom", {14336, 70, 112, 112, 128, 57344, 250880}, 2048);
  config.norm = NormKind::layer_norm;
  config.activation = Activation::gelu_tanh;
  config.gated_ffn = false;
  config.qkv_bias = config.out_bias = config.ffn_bias = true;
  config.position = PositionKind::alibi;
  config.tied_embeddings = true;
  config.bos_token_id = 1;
  config.eos_token_ids = {2};
  return config;
}

/// mistralai/Mixtral-8x7B and 8x22B: two of eight experts a token.
ModelConfig mixtral(const Size& size, std::int64_t max_positions) {
  ModelConfig config = base_config("mixtral", size, max_positions);
  config.rope_theta = 1000000.0F;
  config.num_experts = 8;
  config.experts_per_token = 2;
  config.bos_token_id = 1;
  config.eos_token_ids = {2};
  return config;
}

/// Qwen/Qwen3-30B-A3B and Qwen3-235B-A22B: eight of 128 experts a token.
ModelConfig qwen3_moe(const Size& size) {
  ModelConfig config = base_config("qwen3_moe", size, 40960);
  config.norm_eps = 1e-6F;
  config.rope_theta = 1000000.0F;
  config.qk_norm = true;
  config.num_experts = 128;
  config.experts_per_token = 8;
  config.bos_token_id = 151643;
  config.eos_token_ids = {151645};
  return config;
}

/// openai/gpt-oss-20b and 120b: four experts a token, and a window in every other layer.
ModelConfig gpt_oss(std::int64_t num_layers, std::int64_t num_experts) {
  ModelConfig config = base_config("gpt_oss", {2880, num_layers, 64, 8, 64, 2880, 201088}, 131072);
  config.qkv_bias = config.out_bias = config.ffn_bias = config.router_bias = true;
  config.attention_sinks = true;
  config.router = RouterKind::softmax_of_chosen;
  config.activation = Activation::clamped_swiglu;
  config.swiglu_limit = 7.0F;
  config.sliding_window_tokens = 128;
  for (std::int64_t layer = 0; layer < num_layers; ++layer)
    config.windowed_layers.push_back(layer % 2 == 0);
  config.rope_theta = 150000.0F;
  config.rope_scaling = RopeVariant{.kind = RopeKind::yarn,
                                    .factor = 32.0F,
                                    .original_max_positions = 4096,
                                    .truncate = false,
                                    .attention_factor = 1.3465736F};  // 0.1 ln 32 + 1
  config.num_experts = num_experts;
  config.experts_per_token = 4;
  config.bos_token_id = 199998;
  config.eos_token_ids = {200002};
  return config;
}

/// zai-org/GLM-4.5-Air, without its layer that predicts a second token: eight of 128 experts a
/// token, and one that all tokens go through; the first layer has one FFN.
ModelConfig glm45_air() {
  ModelConfig config = base_config("glm4_moe", {4096, 46, 96, 8, 128, 1408, 151552}, 131072);
  config.qkv_bias = true;
  config.rope_theta = 1000000.0F;
  config.rotary_dim = 64;
  config.num_experts = 128;
  config.experts_per_token = 8;
  config.router = RouterKind::sigmoid;
  config.router_correction = true;
  config.shared_ffn_size = 1408;
  config.dense_layers.resize(46);
  config.dense_layers.front() = true;
  config.dense_ffn_size = 10944;
  config.eos_token_ids = {151329, 151336, 151338};
  return config;
}

/// MiniMaxAI/MiniMax-M2, but for its norms of q and k: eight of 256 experts a token, and half of
/// each head rotates. Shape only.
ModelConfig minimax_m2() {
  ModelConfig config = base_config("minimax_m2", {3072, 62, 48, 8, 128, 1536, 200064}, 196608);
  config.norm_eps = 1e-6F;
  config.rope_theta = 5000000.0F;
  config.rotary_dim = 64;
  config.num_experts = 256;
  config.experts_per_token = 8;
  config.router = RouterKind::sigmoid;
  config.router_correction = true;
  config.bos_token_id = 200019;
  config.eos_token_ids = {200020};
  return config;
}

/// Hoffmann et al. 2022, Table 4; its relative positions (5e9 elements) are left out: shape only.
ModelConfig chinchilla_70b() {
  ModelConfig config = base_config("chinchilla", {8192, 80, 64, 64, 128, 32768, 32000}, 2048);
  config.activation = Activation::gelu;
  config.gated_ffn = false;
  config.position = PositionKind::none;
  config.tied_embeddings = true;
  return config;
}

std::vector<NamedShape> make_shapes() {
  // Size: hidden_size, layers, heads, KV heads, head_dim, ffn_size, vocab_size.
  return {
      {"opt-125m", opt(768, 12, 12)},
      {"opt-350m", opt_350m()},
      {"opt-1.3b", opt(2048, 24, 32)},
      {"opt-2.7b", opt(2560, 32, 32)},
      {"opt-6.7b", opt(4096, 32, 32)},
      {"opt-13b", opt(5120, 40, 40)},
      {"opt-30b", opt(7168, 48, 56)},
      {"opt-66b", opt(9216, 64, 72)},
      {"opt-175b", opt(12288, 96, 96)},
      {"llama-160m", small_llama({768, 12, 12, 12, 64, 3072, 32000}, 2048, 1e-6F, DType::f32)},
      {"sheared-llama-1.3b",
       small_llama({2048, 24, 16, 16, 128, 5504, 32000}, 4096, 1e-5F, DType::f32)},
      {"llama-2-7b", llama2({4096, 32, 32, 32, 128, 11008, 32000})},
      {"llama-2-13b", llama2({5120, 40, 40, 40, 128, 13824, 32000})},
      {"llama-2-70b", llama2({8192, 80, 64, 8, 128, 28672, 32000})},
      {"llama-3-8b", llama3({4096, 32, 32, 8, 128, 14336, 128256})},
      {"llama-3-70b", llama3({8192, 80, 64, 8, 128, 28672, 128256})},
      {"llama-3.1-8b", llama31({4096, 32, 32, 8, 128, 14336, 128256}, 8.0F)},
      {"llama-3.1-70b", llama31({8192, 80, 64, 8, 128, 28672, 128256}, 8.0F)},
      {"llama-3.2-1b", llama32({2048, 16, 32, 8, 64, 8192, 128256})},
      {"llama-3.2-3b", llama32({3072, 28, 24, 8, 128, 8192, 128256})},
      {"qwen2-0.5b", qwen2({896, 24, 14, 2, 64, 4864, 151936}, true)},
      {"qwen2-1.5b", qwen2({1536, 28, 12, 2, 128, 8960, 151936}, true)},
      {"qwen2-7b", qwen2({3584, 28, 28, 4, 128, 18944, 152064}, false)},
      {"qwen2-72b", qwen2_72b()},
      {"qwen3-0.6b", qwen3({1024, 28, 16, 8, 128, 3072, 151936}, true)},
      {"qwen3-8b", qwen3({4096, 36, 32, 8, 128, 12288, 151936}, false)},
      {"mistral-7b-v0.1", mistral(32000, 10000.0F, 4096)},
      {"mistral-7b-v0.3", mistral(32768, 1000000.0F, 0)},
      {"mixtral-8x7b", mixtral({4096, 32, 32, 8, 128, 14336, 32000}, 32768)},
      {"mixtral-8x22b", mixtral({6144, 56, 48, 8, 128, 16384, 32768}, 65536)},
      {"qwen3-30b-a3b", qwen3_moe({2048, 48, 32, 4, 128, 768, 151936})},
      {"qwen3-235b-a22b", qwen3_moe({4096, 94, 64, 4, 128, 1536, 151936})},
      {"gpt-oss-20b", gpt_oss(24, 32)},
      {"gpt-oss-120b", gpt_oss(36, 128)},
      {"glm-4.5-air", glm45_air()},
      {"minimax-m2", minimax_m2()},
      {"bloom-176b", bloom_176b()},
      {"chinchilla-70b", chinchilla_70b()},
  };
}

}  // namespace

const std::vector<NamedShape>& named_shapes() {
  static const std::vector<NamedShape> shapes = make_shapes();
  return shapes;
}

const ModelConfig& find_shape(const std::string& name) {
  std::vector<std::string> names;
  for (const NamedShape& shape : named_shapes()) {
    if (shape.name == name) return shape.config;
    names.push_back(shape.name);
  }
  throw Error("no shape is called '{}'; known are {}", name,
              fmt::join(nearest_first(name.substr(0, 64), std::move(names)), ", "));
}

}  // namespace sluice
