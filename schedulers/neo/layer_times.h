#pragma once

#include <cstdint>
#include <vector>

#include "perfmodels/cost_model.h"

namespace sluice {

/// Times of one layer that NEO decides by, in seconds (section 3.2;
/// docs/reference/policies.md#times-of-a-layer).
class LayerTimes {
 public:
  /// `costs` outlives it; its machine has both devices. `launch_s` is part of cpu_attention_s().
  LayerTimes(const CostModel& costs, double launch_s) : costs_(costs), launch_s_(launch_s) {}

  /// L(S): linear sublayers of so many rows on the GPU.
  double linear_s(std::int64_t rows);
  /// A prompt's part of P: so many rows behind `context_tokens` others, on the GPU.
  double prompt_attention_s(std::int64_t rows, std::int64_t context_tokens) const;
  /// G(n, N): of `decodes` requests that see `tokens` together.
  double gpu_attention_s(std::int64_t decodes, std::int64_t tokens) const {
    return attention_s(Device::gpu, decodes, tokens);
  }
  /// C(n, N), with what crosses for it.
  double cpu_attention_s(std::int64_t decodes, std::int64_t tokens) const;
  /// The attention of either on a device, with its task; 0 for none.
  double attention_s(Device device, std::int64_t decodes, std::int64_t tokens) const;
  /// Rows so few that the GPU's time hardly depends on them.
  bool are_idle(std::int64_t rows) { return linear_s(rows) <= idle * linear_s(1); }

 private:
  static constexpr double idle = 1.1;

  const CostModel& costs_;
  double launch_s_;
  std::vector<double> linear_s_;  ///< by rows, from 1 on; below 0: not asked yet
};

}  // namespace sluice
