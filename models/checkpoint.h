#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/config.h"
#include "models/files.h"
#include "models/safetensors.h"
#include "models/weights.h"

namespace sluice {

/// The safetensors of a model's folder: model.safetensors, or the shards that
/// model.safetensors.index.json names. Where both are there the single file counts, as in
/// Transformers, and a line says so.
class Checkpoint {
 public:
  /// Reads all headers. Throws Error: no weights, a missing shard (which, named where), a damaged
  /// file.
  static Checkpoint open(const ModelFiles& files);
  /// One of a single file.
  static Checkpoint of(Safetensors file);

  /// The tensor under its usual name, or with one "model." less or more in front; nothing if there
  /// is none. What the index leaves out is found in any shard. Throws Error where the index names a
  /// shard that does not have it.
  std::optional<TensorView> find(const std::string& usual_name) const;
  /// The same, of whatever type.
  std::optional<StoredTensor> find_stored(const std::string& usual_name) const;
  /// "model.safetensors" or the index, for messages.
  const std::string& path() const { return path_; }
  /// See WeightSource::identity().
  std::string identity() const;

 private:
  void open_shards(const ModelFiles& files, const std::string& index_text);
  const Safetensors* file_of(std::string_view name) const;
  /// The file that has it under one of its names, and which.
  std::optional<std::pair<const Safetensors*, std::string>> place_of(
      const std::string& usual_name) const;
  void refuse_wrong_index(std::string_view name) const;

  std::string path_;
  std::vector<std::unique_ptr<const Safetensors>> shards_;
  std::map<std::string, const Safetensors*, std::less<>> weight_map_;  ///< empty for a single file
};

/// Finds every tensor of the model and checks its shape and type. As in Transformers 5, a head that
/// the config ties to the embedding counts where it is there and differs: a line says so, and the
/// config is untied. Throws Error.
std::shared_ptr<const WeightSource> open_weights(const ModelFiles& files, ModelConfig& config);

}  // namespace sluice
