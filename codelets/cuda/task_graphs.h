#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "codelets/runtime/gpu.h"
#include "codelets/runtime/task_key.h"

namespace sluice::cuda {

struct Context;

/// Kernels of tasks that come again and again, such as a layer's in decode: the second task of a
/// key is captured as a CUDA graph, and the third on is one launch instead of a dozen a layer. Used
/// by the stream's worker.
class TaskGraphs {
 public:
  explicit TaskGraphs(cudaStream_t stream) : stream_(stream) {}
  ~TaskGraphs();
  TaskGraphs(const TaskGraphs&) = delete;
  TaskGraphs& operator=(const TaskGraphs&) = delete;

  /// Puts a task's kernels into the stream. `launch_kernels` does so one by one, the same for all
  /// tasks of `key`; nothing that it calls waits, copies, or takes memory, unless a task of that
  /// key never ran. What cannot be captured is launched as it is, and so is everything after that,
  /// with a line in the log. Throws Error when CUDA refuses a launch, and what `launch_kernels`
  /// throws.
  void run(const TaskKey& key, const std::function<void()>& launch_kernels);

  GraphUse use() const { return use_; }

 private:
  struct Task {
    cudaGraphExec_t graph = nullptr;  ///< null: it ran once
    std::uint64_t last_use = 0;
  };
  /// Null, and why, when that is not possible.
  cudaGraphExec_t capture(const std::function<void()>& launch_kernels, std::string& problem);
  void forget_oldest();

  cudaStream_t stream_;
  std::map<std::string, Task, std::less<>> tasks_;  ///< by key
  std::uint64_t num_runs_ = 0;
  bool refused_ = false;
  GraphUse use_;
};

/// Puts a task's kernels into `gpu`'s stream by its TaskGraphs, one by one if it has none. The key
/// need not name its workspaces.
void run_in_graph(const Context& gpu, TaskKey key, const std::function<void()>& launch_kernels);

}  // namespace sluice::cuda
