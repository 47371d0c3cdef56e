#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "models/config.h"

namespace sluice {

struct MakeModelOptions {
  DType dtype = DType::bf16;
  std::uint64_t seed = 0;
  std::uint64_t largest_shard_bytes =
      5'000'000'000;  ///< Hugging Face's own limit; one tensor may exceed it
  /// Called while weights are written. What it throws ends the work, and nothing stays behind.
  std::function<void(std::uint64_t done_bytes, std::uint64_t total_bytes)> progress = {};
};

/// What make_model in models/model.h does, for any architecture that has a checkpoint format.
void write_model(const ModelConfig& config, const std::string& out_dir,
                 const MakeModelOptions& options);

}  // namespace sluice
