#include "codelets/cuda/worker.h"

#include <memory>
#include <mutex>
#include <new>
#include <optional>

#include "base/error.h"
#include "codelets/cuda/blas.h"
#include "codelets/cuda/context.h"
#include "codelets/cuda/devices.h"
#include "codelets/cuda/sublayer_events.h"
#include "codelets/cuda/task_graphs.h"
#include "codelets/runtime/cuda_stream.h"
#include "codelets/runtime/node_memory.h"

namespace sluice::cuda {
namespace {

/// Device memory from StarPU, so that it counts against its limit.
void* allocate(std::size_t bytes, void* node) {
  return allocate_on_node(bytes, *static_cast<const unsigned*>(node));
}
void release(void* memory, std::size_t bytes, void* node) {
  release_on_node(memory, bytes, *static_cast<const unsigned*>(node));
}

std::string describe(const DeviceFailure& failure) {
  switch (failure.code) {
    case DeviceFailure::token_outside_vocabulary:
      return fmt::format("token id {} in row {} is outside of the vocabulary", failure.value,
                         failure.row);
    case DeviceFailure::position_beyond_table:
      return fmt::format("position {} in row {} is beyond the model's table of positions",
                         failure.value, failure.row);
    case DeviceFailure::logit_nan:
      return fmt::format("a logit of row {} is NaN", failure.row);
    case DeviceFailure::router_logit_not_finite:
      return fmt::format(
          "the router's logits of row {} in layer {} are NaN or infinite: the weights or what came "
          "before overflow; try --dtype f32",
          failure.row, failure.value);
    case DeviceFailure::expert_outside_mixture:
      return fmt::format("row {} is routed to an expert that layer {} does not have", failure.row,
                         failure.value);
    default:
      return fmt::format("failure {} in row {}", failure.code, failure.row);
  }
}

struct Parts {
  explicit Parts(GpuWorker::Launches launches)
      : node(worker_node()),
        stream(worker_stream()),
        workspace({allocate, release, &node}, stream),
        blas_memory({allocate, release, &node}, stream),
        blas(blas_memory.reserve(bytes_for_blas(node)), bytes_for_blas(node)) {
    if (launches == GpuWorker::Launches::timed) events.emplace(stream);
    if (launches == GpuWorker::Launches::in_graphs) graphs.emplace(stream);
  }

  static std::size_t bytes_for_blas(unsigned of_node) {
    return blas_bytes(node_total_bytes(of_node));
  }

  unsigned node;
  cudaStream_t stream;
  Workspace workspace;
  Workspace blas_memory;
  Blas blas;
  DeviceFailure* failure = nullptr;  ///< in pinned host memory
  unsigned* arrived = nullptr;
  std::optional<SublayerEvents> events;
  std::optional<TaskGraphs> graphs;
  std::unique_ptr<Context> context;
};

class Worker : public GpuWorker {
 public:
  explicit Worker(Launches launches) : parts_(launches) {
    void* host = nullptr;
    check(cudaHostAlloc(&host, sizeof(DeviceFailure), cudaHostAllocMapped), "pinning memory");
    parts_.failure = new (host) DeviceFailure;
    void* device = nullptr;
    check(cudaHostGetDevicePointer(&device, host, 0), "mapping memory");
    int current = 0;
    check(cudaGetDevice(&current), "asking for the device");
    const int num_multiprocessors = attribute(cudaDevAttrMultiProcessorCount, current);
    const std::size_t arrived_bytes =
        2 * sizeof(unsigned) * static_cast<std::size_t>(num_multiprocessors);
    void* arrived = nullptr;
    check(cudaMalloc(&arrived, arrived_bytes), "taking device memory");
    parts_.arrived = static_cast<unsigned*>(arrived);
    check(cudaMemsetAsync(arrived, 0, arrived_bytes, parts_.stream), "clearing device memory");
    check(cudaStreamSynchronize(parts_.stream), "clearing device memory");
    parts_.context = std::make_unique<Context>(
        Context{.stream = parts_.stream,
                .workspace = parts_.workspace,
                .blas = &parts_.blas,
                .failure = static_cast<DeviceFailure*>(device),
                .compute_capability = 10 * attribute(cudaDevAttrComputeCapabilityMajor, current) +
                                      attribute(cudaDevAttrComputeCapabilityMinor, current),
                .num_multiprocessors = num_multiprocessors,
                .arrived = parts_.arrived,
                .events = parts_.events ? &*parts_.events : nullptr,
                .graphs = parts_.graphs ? &*parts_.graphs : nullptr});
  }

  ~Worker() override {
    cudaStreamSynchronize(parts_.stream);
    cudaFree(parts_.arrived);
    cudaFreeHost(parts_.failure);
  }

  const Context& context() const override { return *parts_.context; }

  void reserve(std::uint64_t workspace_bytes, std::uint64_t stage_bytes) override {
    parts_.workspace.reserve(workspace_bytes);
    stage_memory(context(), stage_bytes);
  }

  std::string take_failure() override {
    const volatile std::int32_t& code = parts_.failure->code;
    if (code == DeviceFailure::none) return "";
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    if (code == DeviceFailure::none) return "";
    std::string what = describe(*parts_.failure);
    *parts_.failure = {};
    return what;
  }

  void collect_times(KernelTimes& times) override {
    if (parts_.events) parts_.events->collect(times);
  }

  GraphUse graph_use() const override { return parts_.graphs ? parts_.graphs->use() : GraphUse{}; }

 private:
  Parts parts_;
};

}  // namespace

std::unique_ptr<GpuWorker> make_worker(GpuWorker::Launches launches) {
  return std::make_unique<Worker>(launches);
}

void start_sublayers(const Context& gpu) {
  if (gpu.events != nullptr) gpu.events->start();
}

void end_of_sublayer(const Context& gpu, Phase phase, Sublayer sublayer) {
  if (gpu.events != nullptr) gpu.events->end_of(phase, sublayer);
}

}  // namespace sluice::cuda
