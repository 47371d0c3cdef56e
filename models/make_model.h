#pragma once

#include <cstdint>
#include <string>

#include "models/config.h"

namespace sluice {

struct MakeModelOptions {
  DType dtype = DType::bf16;
  std::uint64_t seed = 0;
  std::uint64_t largest_shard_bytes =
      5'000'000'000;  ///< Hugging Face's own limit; one tensor may exceed it
};

/// What make_model in models/model.h does, for any architecture that has a checkpoint format.
void write_model(const ModelConfig& config, const std::string& out_dir,
                 const MakeModelOptions& options);

}  // namespace sluice
