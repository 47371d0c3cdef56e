#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "models/config.h"
#include "perfmodels/work.h"

namespace sluice {

/// The architecture of a Hugging Face folder, of "tiny" or of a named shape. Throws Error.
ModelConfig find_model_config(const std::string& name);

/// What GEMMs take where nobody asks for another, here and on described machines.
constexpr DType default_dtype = DType::bf16;
/// The GEMM type, with a word on stderr when that is not what was asked for.
DType choose_dtype(std::optional<DType> asked);

/// The cores to compute on, one a thread, with a word on stderr when there are fewer.
std::vector<int> choose_cores(std::optional<int> asked);

/// The cores of each compute domain, as equal as can be. Throws UsageError when there are fewer
/// cores than domains.
std::vector<std::vector<int>> cut_into_domains(const std::vector<int>& cores, int num_domains);

/// Threads of all domains.
int num_threads(const std::vector<std::vector<int>>& domains);

/// What costs are counted by; weights and KV have the GEMM type.
ModelDimensions model_dimensions(const ModelConfig& config, DType dtype);

}  // namespace sluice
