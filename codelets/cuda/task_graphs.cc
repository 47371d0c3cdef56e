#include "codelets/cuda/task_graphs.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "codelets/cuda/context.h"

namespace sluice::cuda {
namespace {

/// A stage comes again at a few addresses, for some dozen stages of an iteration.
constexpr std::size_t most_tasks = 256;

}  // namespace

TaskGraphs::~TaskGraphs() {
  cudaStreamSynchronize(stream_);
  for (const auto& [key, task] : tasks_) {
    if (task.graph != nullptr) cudaGraphExecDestroy(task.graph);
  }
}

void TaskGraphs::run(const TaskKey& key, const std::function<void()>& launch_kernels) {
  if (refused_) return launch_kernels();
  const auto found = tasks_.find(key.bytes());
  if (found == tasks_.end()) {
    launch_kernels();
    if (tasks_.size() == most_tasks) forget_oldest();
    tasks_.emplace(key.bytes(), Task{.last_use = ++num_runs_});
    return;
  }
  Task& task = found->second;
  task.last_use = ++num_runs_;
  if (task.graph == nullptr) {
    std::string problem;
    task.graph = capture(launch_kernels, problem);
    if (task.graph == nullptr) {
      launch_kernels();  // which throws if it was its own fault
      refused_ = true;
      logger().warn("no CUDA graphs from now on, kernels are launched one by one: {}", problem);
      return;
    }
    ++use_.captured;
  }
  check(cudaGraphLaunch(task.graph, stream_), "launching a graph");
  ++use_.launched;
}

cudaGraphExec_t TaskGraphs::capture(const std::function<void()>& launch_kernels,
                                    std::string& problem) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  try {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capturing a stream");
    try {
      launch_kernels();
    } catch (const std::exception&) {
      cudaStreamEndCapture(stream_, &graph);
      throw;
    }
    check(cudaStreamEndCapture(stream_, &graph), "capturing a stream");
    check(cudaGraphInstantiate(&made, graph, 0), "making a graph");
  } catch (const std::exception& error) {
    problem = error.what();
    made = nullptr;
    static_cast<void>(cudaGetLastError());
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  return made;
}

void TaskGraphs::forget_oldest() {
  const auto oldest = std::min_element(
      tasks_.begin(), tasks_.end(),
      [](const auto& a, const auto& b) { return a.second.last_use < b.second.last_use; });
  if (oldest->second.graph != nullptr) {
    check(cudaStreamSynchronize(stream_), "waiting for kernels");  // it may still run
    cudaGraphExecDestroy(oldest->second.graph);
  }
  tasks_.erase(oldest);
}

void run_in_graph(const Context& gpu, TaskKey key, const std::function<void()>& launch_kernels) {
  if (gpu.graphs == nullptr) return launch_kernels();
  key.add(gpu.workspace.moves());
  gpu.graphs->run(key, launch_kernels);
}

}  // namespace sluice::cuda
