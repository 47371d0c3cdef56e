// The part of CUDA's runtime library that has to do with streams and events: whatever is put into a
// stream is done when the call returns.
#include <cuda_runtime_api.h>

#include <chrono>

#include "codelets/cuda/emulation/device_settings.h"

/// cudaStream_t and cudaEvent_t point to them.
struct CUstream_st {};
struct CUevent_st {
  std::chrono::steady_clock::time_point recorded;
};

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
cudaError_t cudaStreamSynchronize(cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t /*stream*/) { return cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

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
  event->recorded = std::chrono::steady_clock::now();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t /*event*/) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t /*event*/) { return cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  *ms = std::chrono::duration<float, std::milli>(end->recorded - start->recorded).count();
  return cudaSuccess;
}

}  // extern "C"
// NOLINTEND(readability-inconsistent-declaration-parameter-name)
