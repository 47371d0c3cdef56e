#pragma once

#include <cstdint>

#include "perfmodels/work.h"

namespace sluice {

/// What a sublayer must read from memory and compute; activations stay in caches.
struct SublayerLoad {
  double bytes = 0;  ///< weights, or K and V; of storing K and V, read and written
  double flops = 0;  ///< of keys that a row sees only
  bool attends = false;

  /// max(bytes / bandwidth, flops / rate): what no implementation can do without.
  double seconds(const MachineRates& rates) const;
};

/// What takes `seconds` at the rates `from`, at the rates `to`, fitted to what was seen of one
/// machine at 35 and 62 GB/s (docs/design/cost-model.md):
///   a GEMM     what it takes beyond its load is neither memory's nor arithmetic's, and stays
///   attention  reading m and the rest r blend as (m^2.5 + r^2.5)^(1/2.5): its arithmetic is far
///              from a GEMM's rate and hides behind the reading in part; r goes with the GEMM rate
/// What takes less than its load changes as its load does.
double carried_over(double seconds, const SublayerLoad& load, const MachineRates& from,
                    const MachineRates& to);

/// What attention takes with another load at the same rates: of its two parts, as above, reading
/// goes with bytes, the rest with FLOP. No longer than its load: all of it with bytes.
double resized_attention(double seconds, const SublayerLoad& from, const SublayerLoad& to,
                         const MachineRates& rates);

/// Of one of a layer's sublayers, `attention`, which is 2 and 3, or `kv_store`, which reads
/// and writes them.
SublayerLoad sublayer_load(const ModelDimensions& model, Sublayer sublayer,
                           const BatchShape& shape);
SublayerLoad lm_head_load(const ModelDimensions& model, std::int64_t logit_rows);

}  // namespace sluice
