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

/// Products by weights of one shape, each from memory, on a pool's present cut.
class GemmBench {
 public:
  /// Takes memory for as many weights as must be taken in turn, where a model's would lie: in
  /// `parts`, or on `nodes` in turn. Throws Error where it does not fit.
  GemmBench(ThreadPool& pool, const GemmShape& shape, const std::vector<NodeShare>& parts,
            const std::vector<int>& nodes);

  /// Seconds of one product of so many rows by each of these schedules: in turn, in `rounds`
  /// rounds, the median of each. Products follow no other schedules meanwhile, and none after it.
  /// Throws Interrupted.
  std::vector<double> measure(std::int64_t rows, std::span<const GemmSchedule> schedules,
                              int rounds);

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

/// Seconds of a product of so many rows by weights of the shape from memory, by oneDNN, with the
/// layout and the threads that it chooses itself among `shape.threads`: what a program without
/// kernels of its own has. On a thread of its own, which may run anywhere. Nothing where oneDNN has
/// no such product on this CPU. The median of `rounds`.
std::optional<double> onednn_seconds(const GemmShape& shape, std::int64_t rows, int rounds);

}  // namespace sluice
