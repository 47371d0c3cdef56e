#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.h"
#include "base/weight_format.h"
#include "models/config.h"

namespace sluice {

class QuantizedTensor;

/// What a tensor is for, whatever its family calls it. Linear weights are [out, in], row-major.
enum class TensorRole : std::uint8_t {
  token_embedding,     ///< [vocab_size, embed_size]
  position_embedding,  ///< [max_positions + position_offset, hidden_size], learned positions only
  project_in,          ///< [hidden_size, embed_size], only where embed_size != hidden_size
  project_out,         ///< [embed_size, hidden_size], likewise
  final_norm_weight,   ///< [hidden_size]
  final_norm_bias,     ///< [hidden_size], layer_norm only
  lm_head,             ///< [vocab_size, embed_size], untied only
  // One of each per layer:
  attention_norm_weight,  ///< [hidden_size]
  attention_norm_bias,    ///< [hidden_size], layer_norm only
  q_weight,               ///< [q_size, hidden_size]
  q_bias,                 ///< [q_size]
  k_weight,               ///< [kv_size, hidden_size]
  k_bias,                 ///< [kv_size]
  v_weight,               ///< [kv_size, hidden_size]
  v_bias,                 ///< [kv_size]
  out_weight,             ///< [hidden_size, q_size]
  out_bias,               ///< [hidden_size]
  ffn_norm_weight,        ///< [hidden_size]
  ffn_norm_bias,          ///< [hidden_size], layer_norm only
  gate_weight,            ///< [ffn_size, hidden_size], gated only
  fc1_weight,             ///< [ffn_size, hidden_size]; the "up" projection of a gated FFN
  fc1_bias,               ///< [ffn_size]
  fc2_weight,             ///< [hidden_size, ffn_size]; the "down" projection of a gated FFN
  fc2_bias,               ///< [hidden_size]
  gate_bias,              ///< [ffn_size], gated with ffn_bias only (Llama's mlp_bias)
  router_weight,          ///< [num_experts, hidden_size], layers with experts only
  q_norm_weight,          ///< [head_dim], qk_norm only
  k_norm_weight,          ///< [head_dim], likewise
  attention_sinks,        ///< [num_heads], attention_sinks only
  router_bias,            ///< [num_experts], router_bias only
  router_correction,      ///< [num_experts], layers with experts and router_correction only
  shared_gate_weight,     ///< [shared_ffn_size, hidden_size], layers with experts, likewise
  shared_fc1_weight,      ///< the same shape
  shared_fc2_weight,      ///< [hidden_size, shared_ffn_size]
};

/// "q_weight" and so on, for messages.
std::string_view to_string(TensorRole role);

/// A role of a given layer (-1 for tensors that belong to no layer), and of one of its experts (-1
/// for tensors that belong to none).
struct TensorId {
  TensorRole role;
  std::int64_t layer = -1;
  std::int64_t expert = -1;

  /// One number for each, as long as there are fewer than 2^16 experts.
  std::int64_t key() const {
    return ((layer + 1) * 65536 + expert + 1) * 256 + static_cast<std::int64_t>(role);
  }
};
/// "layer 3", "layer 3, expert 17": for messages.
std::string place_of(TensorId id);

/// Every tensor a model of this config has, in layer order, and the shape each must have.
std::vector<TensorId> tensors_outside_layers(const ModelConfig& config);
std::vector<TensorId> expected_tensors(const ModelConfig& config);
std::vector<std::int64_t> expected_shape(const ModelConfig& config, TensorId id);
/// The same in config.json's words: "[intermediate_size, hidden_size]".
std::string expected_shape_fields(const ModelConfig& config, TensorId id);

/// How config.json alone says that the tensor is stored: before there are files, for plans. Its
/// scales' type and whether zero points are needed stand in the files.
WeightFormat expected_format(const ModelConfig& config, TensorId id);

/// A tensor where it lies (mapped file, embedded data or memory): row-major, little-endian.
/// `data` need not be aligned to the element.
struct TensorView {
  std::string name;  ///< its name in the checkpoint, for messages
  std::string file;  ///< the file it came from, for messages
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> data;
};

/// `count` elements from `first` on, as float. Throws Error when the tensor ends before that.
void read_floats(const TensorView& tensor, std::size_t first, std::size_t count, float* out);

/// Where a model's weights come from. Views stay valid as long as the source; calls are
/// thread-safe.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// The tensor, its shape checked against the config. Throws Error when it is missing,
  /// misshapen or quantised.
  virtual TensorView tensor(TensorId id) const = 0;
  /// The same of a quantised tensor; null for a plain one.
  virtual std::shared_ptr<const QuantizedTensor> quantized(TensorId id) const;
  /// How the tensor's values are stored; f16 counts as bf16. Throws Error when it is missing.
  virtual WeightFormat format(TensorId id) const;
  /// Gives the tensor's memory up. Every view of it is void; tensor(id) makes a new one.
  virtual void release(TensorId /*id*/) const {}
  /// One line that two sources share only if all their values are the same, made without reading
  /// them: of files, their paths, sizes and times of change. Empty: nothing is known.
  virtual std::string identity() const { return ""; }
};

/// The format of a tensor by the config's layer_formats and head_format; plain for what is never
/// quantised.
WeightFormat stored_format(const ModelConfig& config, TensorId id);

/// Sets the formats of the config's layers and head to those of its checkpoint. Throws Error where
/// tensors that become one weight differ.
void set_formats(const WeightSource& weights, ModelConfig& config);

/// The same for a shape: all layers' linear weights, and the head, which is its own tensor where it
/// has codes. Throws Error for a group that does not divide the inputs of a weight.
void set_formats(const WeightFormat& layers, const WeightFormat& head, ModelConfig& config);

/// The format that these tensors share, for weights that are packed into one, as q, k and v are.
/// It has zero points where one of them has. Throws Error that names the first that differs.
WeightFormat common_format(const WeightSource& weights, std::span<const TensorId> ids);

}  // namespace sluice
