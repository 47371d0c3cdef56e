#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/config.h"
#include "models/files.h"
#include "models/safetensors.h"
#include "models/weights.h"

namespace sluice {

/// The safetensors of a model's folder: model.safetensors, or the shards that
/// model.safetensors.index.json names.
class Checkpoint {
 public:
  /// Reads all headers. Throws Error: no weights, a missing shard (which, named where), a damaged
  /// file.
  static Checkpoint open(const ModelFiles& files);

  /// The tensor under its usual name, or with one "model." less or more in front; nothing if there
  /// is none.
  std::optional<TensorView> find(const std::string& usual_name) const;
  /// "model.safetensors" or the index, for messages.
  const std::string& path() const { return path_; }
  /// See WeightSource::identity().
  std::string identity() const;

 private:
  void open_shards(const ModelFiles& files, const std::string& index_text);
  const Safetensors* file_of(std::string_view name) const;

  std::string path_;
  std::vector<std::unique_ptr<const Safetensors>> shards_;
  std::map<std::string, const Safetensors*, std::less<>> weight_map_;  ///< empty for a single file
};

/// Finds every tensor of the model and checks its shape and type. Throws Error.
std::shared_ptr<const WeightSource> open_weights(const ModelFiles& files,
                                                 const ModelConfig& config);

}  // namespace sluice
