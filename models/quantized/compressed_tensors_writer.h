#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/model.h"
#include "models/quantized/quantize_rows.h"

namespace sluice {

struct QuantizeModelOptions {
  WeightFormat layers;                 ///< of the layers' linear weights; plain: as they are
  std::optional<WeightFormat> head{};  ///< of the LM head; nothing or plain: as it is
  std::vector<TensorRole> keep{};      ///< linear weights of the layers that stay as they are
  ScaleSearch search = ScaleSearch::none;
  std::uint64_t largest_shard_bytes = 5'000'000'000;  ///< one weight may exceed it
  int num_threads = 0;                                ///< 0: one for each core
  /// Called by the calling thread. What it throws ends the work, and nothing stays behind.
  std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)> progress = {};
};

/// What became of all weights of a role.
struct QuantizedRole {
  TensorRole role;
  WeightFormat format;
  std::uint64_t num_values = 0;
  std::uint64_t bytes = 0;    ///< in the files: codes, scales and zero points
  double squared_error = 0;   ///< sum of squared differences from the values that were there
  double squared_values = 0;  ///< sum of squares of these values
  /// The root of the first by the second; 0 for weights that are all 0.
  double relative_error() const;
};

/// Writes a folder that Transformers reads through compressed-tensors: config.json with
/// quantization_config, model.safetensors or shards with their index, and the model's other files.
/// int4 and int8 become weight_packed (I32 words along the inputs), weight_scale, weight_shape
/// (I64), and weight_zero_point (I32 words along the outputs) where the format has them; fp8
/// becomes weight (F8_E4M3) and weight_scale. A quantised head that was tied to the embedding is
/// untied. In memory are a few rows a thread.
///
/// One entry for each quantised role. Throws Error: a model that is quantised already, a group that
/// does not divide the inputs of a weight, values that are no numbers, a folder that exists, a full
/// disk; nothing half-written stays behind.
std::vector<QuantizedRole> write_compressed_tensors(const Model& model, const std::string& out_dir,
                                                    const QuantizeModelOptions& options);

}  // namespace sluice
