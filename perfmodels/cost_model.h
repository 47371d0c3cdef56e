#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "perfmodels/placement.h"
#include "perfmodels/work.h"

namespace sluice {

/// How much kernels, and data on its way to the GPU, slow each other down where they share memory
/// or cores: times of what either takes alone.
struct Interference {
  std::array<double, 2> kernels = {1, 1};  ///< by device: of its kernels while data moves
  std::array<double, 2> link = {1, 1};     ///< by device: of the data while its kernels run
  double together = 1;  ///< of either device's kernels while the other's run, on the same cores
  double kernels_on(Device device) const { return kernels[static_cast<std::size_t>(device)]; }
  double link_beside(Device device) const { return link[static_cast<std::size_t>(device)]; }
};

/// How long things take on one machine for one model. The only place that knows: policies, StarPU's
/// performance models, `plan` and the simulator ask it. Two sources stand behind it: a profile
/// (AnalyticModel) and measurements (`sluice calibrate`).
class CostModel {
 public:
  virtual ~CostModel() = default;

  virtual const ModelDimensions& model() const = 0;
  virtual bool has(Device device) const = 0;
  /// Bytes that may be used of a tier; 0 where the machine has none.
  virtual std::uint64_t capacity_bytes(Tier tier) const = 0;

  /// Seconds that one sublayer of one layer takes on a device that the machine has, with its
  /// operands in the memory where that device computes; `operand` names the tier that a CPU reads
  /// the weight (or, for sublayers 2 and 3, the KV) from, DDR or CXL. LIA equation 8 by its
  /// meaning. Also of `kv_store`, which writes to `operand`: a task of its own where sublayers 1 to
  /// 3 do not all run beside the KV.
  virtual double compute_s(Device device, Sublayer sublayer, const BatchShape& shape,
                           Tier operand) const = 0;
  double compute_s(Device device, Sublayer sublayer, const BatchShape& shape) const {
    return compute_s(device, sublayer, shape, own_tier(device));
  }
  /// Of sublayer 5 or 6 of a mixture, for some of a layer's experts alone. A model that knows no
  /// better takes of what all experts take the share of those touched, or of the pairs of row and
  /// expert, whichever is larger: where reading bounds it is the first, else the second.
  virtual double experts_s(Device device, Sublayer sublayer, const BatchShape& shape, Tier operand,
                           const ExpertPart& part) const {
    if (part.touched <= 0) return 0;
    const ExpertPart all = all_experts(model(), static_cast<double>(shape.total_rows()));
    const double share = std::max(part.touched / all.touched, part.pairs / all.pairs);
    return share * compute_s(device, sublayer, shape, operand);
  }
  /// Seconds for the LM head's `logit_rows` rows on a device, its weight in the device's memory.
  virtual double lm_head_s(Device device, std::int64_t logit_rows) const = 0;

  /// Seconds that `bytes` take from one tier to another with nothing else on the way. 0 when both
  /// are the same.
  virtual double transfer_s(Tier from, Tier to, double bytes) const = 0;

  /// What compute_s() and transfer_s() leave out: each takes its time with nothing else beside it.
  virtual Interference interference(Phase /*phase*/) const { return {}; }
  /// How many times as long data to and from the GPU takes while as much comes the other way: 1
  /// where each way has a rate of its own, 2 where both share one.
  virtual double two_way_slowdown() const { return 1; }

  /// Seconds that the task system, and what starts kernels, add to a task of so many sublayers.
  virtual double task_overhead_s(Device device, int num_sublayers) const = 0;
};

}  // namespace sluice
