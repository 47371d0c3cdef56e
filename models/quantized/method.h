#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/checkpoint.h"
#include "models/config_reader.h"
#include "models/family.h"
#include "models/quantized/quantization_config.h"
#include "models/quantized/quantized_tensor.h"

namespace sluice {

/// A weight of the model as a checkpoint may have it, plain or quantised.
struct WeightName {
  std::string module;             ///< "model.layers.0.self_attn.q_proj": the name without ".weight"
  std::string_view module_class;  ///< as PyTorch calls it: "Linear" or "Embedding"
  std::vector<std::int64_t> shape;  ///< [out, in]
  /// Where it may lie instead of under its own name, and of how many experts.
  std::optional<StackedPart> stacked = {};
  std::int64_t num_experts = 0;

  std::string part(std::string_view name) const { return module + std::string(name); }
};

/// A way in which checkpoints hold quantised weights: what it is called, how its
/// quantization_config is read and where its tensors are. One file of models/quantized/ defines
/// one, as `<name>_method`.
struct QuantizationMethod {
  std::string_view name;  ///< quant_method
  /// Throws Error.
  void (*read)(const ConfigReader& fields, QuantizationConfig& config);
  /// The scheme that the config has for a module of this class; null: none, it is plain.
  const QuantizationScheme* (*scheme_of)(const QuantizationConfig& config, std::string_view module,
                                         std::string_view module_class);
  /// Null where the checkpoint has the weight plain, or not at all. Throws Error: parts that are
  /// missing or misshapen, a tensor both plain and packed.
  std::shared_ptr<const QuantizedTensor> (*find)(const QuantizationConfig& config,
                                                 const Checkpoint& checkpoint,
                                                 const WeightName& weight);
  /// What the names of its codes end with: ".qweight".
  std::string_view codes_part;
};

/// What the class of a weight's module is called, "Linear" or "Embedding"; nothing for what is
/// never quantised.
std::string_view module_class(TensorRole role);
/// "lm_head" of "lm_head.weight".
std::string module_of(std::string tensor_name);

std::span<const QuantizationMethod* const> quantization_methods();
/// By QuantizationConfig::method.
const QuantizationMethod& quantization_method(const QuantizationConfig& config);

}  // namespace sluice
