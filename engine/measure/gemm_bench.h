#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/memory.h"
#include "base/numa.h"
#include "base/thread_pool.h"
#include "codelets/weights/gemm_schedules.h"
#include "engine/measure/in_turn.h"

namespace sluice {

/// Where weights lie that are measured: as a model's would, in parts, or on these nodes in turn.
struct GemmBenchHomes {
  std::vector<NodeShare> parts;
  std::vector<int> nodes;
};

/// Products by weights of one shape, each from memory as far as a model's would be, on a pool's
/// present cut.
class GemmBench {
 public:
  /// Takes memory for as many weights as must be taken in turn, of a model of so many bytes. Throws
  /// Error where it does not fit.
  GemmBench(ThreadPool& pool, const GemmShape& shape, std::uint64_t model_bytes,
            const GemmBenchHomes& homes);

  /// Seconds of one product of so many rows by each of these schedules, one a round: in turn, in
  /// `rounds` rounds, or in fewer where a product takes so long that chance counts for less.
  /// Products follow no other schedules meanwhile, and none after it. Throws Interrupted.
  std::vector<std::vector<double>> measure(std::int64_t rows,
                                           std::span<const GemmSchedule> schedules, int rounds);

  /// Bytes of one weight.
  std::uint64_t weight_bytes() const { return weights_.front().size(); }

 private:
  double sample(std::int64_t rows, const GemmSchedule& schedule, int products);

  ThreadPool& pool_;
  GemmShape shape_;
  WeightType type_;
  std::vector<Buffer> weights_;
  Turn turn_;
  Workspace x_, y_;
};

/// Seconds of such a product by oneDNN, in the layout that it likes best, cut among `shape.threads`
/// as it likes: what a program without kernels of its own has. On a thread of its own, which may
/// run anywhere. Nothing where oneDNN has no such product on this CPU. The median of `rounds`.
std::optional<double> onednn_seconds(const GemmShape& shape, std::uint64_t model_bytes,
                                     std::int64_t rows, int rounds);

}  // namespace sluice
