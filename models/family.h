#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "models/config.h"
#include "models/config_reader.h"
#include "models/weights.h"

namespace sluice {

/// Where one expert's tensor lies in a tensor that checkpoints have for all experts of a layer,
/// whose dimension 0 they are.
struct StackedPart {
  std::string stack;  ///< the name of the tensor of all
  std::int64_t expert = 0;
  /// An expert's weight is [in, out] rather than [out, in]. Codes are always [out, in].
  bool transposed = false;
  /// Its outputs are every step-th of the expert's from this one on.
  std::int64_t first = 0;
  std::int64_t step = 1;
};

/// A model family: how its config.json is read and written, and what its checkpoints call each
/// tensor. One file in models/families/ defines one, as `<name>_family`, and one line of
/// models/CMakeLists.txt lists it.
struct Family {
  std::string_view name;             ///< config.json's model_type, and ModelConfig::family
  std::string_view architecture;     ///< config.json's architectures[0]
  std::string_view other_name = {};  ///< a model_type that is read alike, or none
  /// What Transformers takes where config.json has no max_position_embeddings.
  std::int64_t default_max_positions = 0;
  std::string_view ffn_field;              ///< what config.json calls ffn_size, for messages
  std::string_view embed_field;            ///< what config.json calls embed_size, likewise
  std::string_view expert_ffn_field = {};  ///< what it calls an expert's ffn_size; empty: ffn_field
  std::string_view experts_field = "num_experts";  ///< and how many there are
  /// What it reads of those that other families refuse.
  std::span<const std::string_view> own_fields = {};
  bool has_experts = false;  ///< it reads how many; other families refuse such fields
  /// The fields that only the family knows; those all share are read by parse_config. Throws Error.
  void (*read)(const ConfigReader& fields, ModelConfig& config);
  /// The inverse, as published checkpoints write them.
  void (*write)(const ModelConfig& config, nlohmann::ordered_json& fields);
  /// The tensor's usual name. Readers also try it with one "model." less or more in front.
  std::string (*tensor_name)(TensorId id);
  /// Where checkpoints have it that hold the experts of a layer together; nothing for what stands
  /// by itself. A checkpoint may have each expert's tensor_name() all the same.
  std::optional<StackedPart> (*stacked_part)(TensorId id) = nullptr;
};

/// All families, sorted by name.
std::span<const Family* const> families();

/// By ModelConfig::family; null when there is none (shapes that only plan and simulate know).
const Family* find_family(std::string_view name);

}  // namespace sluice
