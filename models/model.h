#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/config.h"
#include "models/files.h"
#include "models/generation_config.h"
#include "models/weights.h"

namespace sluice {

/// A model that can be run: its architecture, its weights and its generation defaults.
struct Model {
  std::string name;
  ModelConfig config;
  GenerationConfig generation;
  std::shared_ptr<const WeightSource> weights;
  ModelFiles files;  ///< for the tokenizer
};

/// Opens a Hugging Face folder, or "tiny", the embedded model. Everything that can be wrong with
/// the configuration and with the files' headers (missing shards, shapes, offsets) is found here,
/// before any weight is read. Throws Error.
Model open_model(const std::string& path_or_name);

/// The architecture alone: needs no file but config.json. Throws Error.
ModelConfig read_model_config(const std::string& path_or_name);

/// Whether open_model() is meant, and no shape: a folder that exists, a path or "tiny". A folder
/// comes before a shape of its name.
bool names_model(const std::string& path_or_name);

/// A named shape ("opt-30b", "llama-3.1-8b"...): architecture only, for planning, benchmarks,
/// make-model.
struct NamedShape {
  std::string name;
  ModelConfig config;
};
const std::vector<NamedShape>& named_shapes();

/// Throws Error that lists the known names, the nearest first.
const ModelConfig& find_shape(const std::string& name);

/// Deterministic random weights of a shape, made in memory when a tensor is asked for.
/// Each element depends on (seed, tensor name, index) only. What was made stays until released.
/// Linear weights ~ N(0, 0.02^2)-like, norms 1, biases 0.
std::shared_ptr<const WeightSource> random_weights(const ModelConfig& config, DType dtype,
                                                   std::uint64_t seed);

/// Called with the bytes written so far and in all; what it throws ends the work.
using MakeModelProgress = std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)>;

/// Writes a Hugging Face folder with random weights: config.json, generation_config.json, sharded
/// safetensors. The same values as random_weights. Nothing half-written stays behind on failure.
/// There is no tokenizer in it: prompts can be given as token ids only, until tokenizer files are
/// copied there. Throws Error (unwritable, disk full, exists, or a shape that has no checkpoint
/// format).
void make_model(const std::string& shape, const std::string& out_dir, DType dtype,
                std::uint64_t seed, const MakeModelProgress& progress = {});

}  // namespace sluice
