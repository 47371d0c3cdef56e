#pragma once

#include <starpu.h>

#include <cstdint>
#include <functional>
#include <optional>

#include "base/environment.h"
#include "codelets/runtime/disk_node.h"
#include "codelets/runtime/node_memory.h"
#include "perfmodels/placement.h"
#include "perfmodels/task.h"

namespace sluice {

/// StarPU on a machine that is only described: no kernel runs, and memory is address space that
/// nothing is behind. For the SimGrid flavour, where a program's main() is an actor of the
/// simulation: its source includes this header, in which StarPU renames it.
class SimulatedRuntime {
 public:
  struct Options {
    bool has_gpu = false;
    /// Lives until after the runtime.
    starpu_sched_policy* scheduler = nullptr;
    std::uint64_t gpu_bytes = 0;  ///< of a GPU's memory, that StarPU may take
    /// With a disk: main memory that is there for what StarPU allocates.
    std::optional<std::uint64_t> passing_bytes = std::nullopt;
  };

  /// Throws Error when StarPU cannot start.
  explicit SimulatedRuntime(const Options& options);
  ~SimulatedRuntime();
  SimulatedRuntime(const SimulatedRuntime&) = delete;
  SimulatedRuntime& operator=(const SimulatedRuntime&) = delete;

  /// The memories beside main memory; no_memory_node where there is none.
  unsigned gpu_node() const { return gpu_node_; }
  unsigned cxl_node() const { return cxl_node_; }
  unsigned disk_node() const { return disk_ ? disk_->node() : no_memory_node; }

 private:
  StarpuVariables variables_;
  std::optional<DiskNode> disk_;  ///< both live longer than StarPU
  unsigned gpu_node_ = no_memory_node;
  unsigned cxl_node_ = no_memory_node;
};

/// One of our tasks that has ended, in seconds of the simulated machine.
struct FinishedTask {
  const TaskTag& tag;
  Device device;
  double start_s = 0;
  double end_s = 0;
};

/// Tells of every task that ends while it lives. One at a time in a process.
class FinishedTasks {
 public:
  using Listener = std::function<void(const FinishedTask&)>;
  explicit FinishedTasks(Listener listener);
  /// Waits for tasks that are still under way.
  ~FinishedTasks();
  FinishedTasks(const FinishedTasks&) = delete;
  FinishedTasks& operator=(const FinishedTasks&) = delete;

 private:
  Listener listener_;
};

}  // namespace sluice
