// The part of CUDA's runtime library that has to do with streams, events and graphs: whatever is
// put into a stream is done when the call returns, unless the stream is being captured.
#include <cuda_runtime_api.h>

#include <chrono>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "codelets/cuda/emulation/device_settings.h"
#include "codelets/cuda/emulation/emulation.h"

/// cudaGraph_t, cudaGraphExec_t, cudaStream_t and cudaEvent_t point to them.
struct CUgraph_st {
  std::vector<std::function<void()>> kernels;  ///< in the order of their capture
};
struct CUgraphExec_st : CUgraph_st {};
struct CUstream_st {
  std::unique_ptr<CUgraph_st> captured;  ///< while it is being captured
};
struct CUevent_st {
  std::chrono::steady_clock::time_point recorded;
};

namespace sluice::cuda::emulation {
namespace {

/// The stream that this thread captures.
thread_local cudaStream_t capturing = nullptr;

}  // namespace

bool is_capturing() { return capturing != nullptr; }

void launch(cudaStream_t stream, const Grid& grid, std::function<void()> body) {
  if (stream != nullptr && stream->captured) {
    stream->captured->kernels.emplace_back([grid, body = std::move(body)] { run(grid, body); });
  } else {
    run(grid, body);
  }
}

}  // namespace sluice::cuda::emulation

namespace emulation = sluice::cuda::emulation;

// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): ours say what they are
extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned /*flags*/) {
  if (const cudaError_t status = sluice::cuda::emulation::status_of_context();
      status != cudaSuccess)
    return status;
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) {
  return emulation::status_beside_capture();
}
cudaError_t cudaStreamQuery(cudaStream_t /*stream*/) { return emulation::status_beside_capture(); }
cudaError_t cudaDeviceSynchronize() { return emulation::status_beside_capture(); }

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  if (stream == nullptr || emulation::is_capturing())
    return emulation::fail(cudaErrorStreamCaptureUnsupported);
  stream->captured = std::make_unique<CUgraph_st>();
  emulation::capturing = stream;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (stream != emulation::capturing) return emulation::fail(cudaErrorStreamCaptureUnmatched);
  *graph = stream->captured.release();
  emulation::capturing = nullptr;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  *executable = new CUgraphExec_st{*graph};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t /*stream*/) {
  if (const cudaError_t status = emulation::status_beside_capture(); status != cudaSuccess)
    return status;
  for (const std::function<void()>& kernel : executable->kernels) kernel();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned /*flags*/) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t /*stream*/) {
  if (const cudaError_t status = emulation::status_beside_capture(); status != cudaSuccess)
    return status;  // CUDA would take it, and not stamp it
  event->recorded = std::chrono::steady_clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t /*event*/) { return emulation::status_beside_capture(); }
cudaError_t cudaEventSynchronize(cudaEvent_t /*event*/) {
  return emulation::status_beside_capture();
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  *ms = std::chrono::duration<float, std::milli>(end->recorded - start->recorded).count();
  return cudaSuccess;
}

}  // extern "C"
// NOLINTEND(readability-inconsistent-declaration-parameter-name)
