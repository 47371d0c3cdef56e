#include "codelets/cuda/context.h"

#include "base/error.h"

namespace sluice::cuda {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw Error("CUDA: {} failed: {}", what, cudaGetErrorString(status));
}

Workspace::~Workspace() { release(); }

void Workspace::release() noexcept {
  if (memory_ == nullptr) return;
  cudaStreamSynchronize(stream_);  // an earlier kernel may still use it
  source_.release(memory_, bytes_, source_.state);
  memory_ = nullptr;
  bytes_ = 0;
}

std::byte* Workspace::reserve(std::size_t bytes) {
  if (bytes > bytes_) {
    release();
    memory_ = source_.allocate(bytes, source_.state);
    if (memory_ == nullptr) throw Error("the GPU has no room for a workspace of {} bytes", bytes);
    bytes_ = bytes;
  }
  return static_cast<std::byte*>(memory_);
}

Workspace& Workspace::inner() {
  if (!inner_) inner_ = std::make_unique<Workspace>(source_, stream_);
  return *inner_;
}

}  // namespace sluice::cuda
