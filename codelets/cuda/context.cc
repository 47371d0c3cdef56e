#include "codelets/cuda/context.h"

#include "base/error.h"

namespace sluice::cuda {

void check(cudaError_t status, const char* what) {
  if (status != cudaSuccess) throw Error("CUDA: {} failed: {}", what, cudaGetErrorString(status));
}

std::uint64_t library_bytes() {
#ifdef SLUICE_CUDA_EMULATION
  return std::uint64_t{1} << 20;
#else
  return std::uint64_t{1} << 30;
#endif
}

Workspace::~Workspace() { release(); }

void Workspace::release() noexcept {
  if (memory_ == nullptr) return;
  cudaStreamSynchronize(stream_);  // an earlier kernel may still use it
  source_.release(memory_, bytes_, source_.state);
  ++moves_;
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

std::byte* stage_memory(const Context& gpu, std::size_t bytes) {
  return gpu.workspace.inner().reserve(bytes);
}

Workspace& Workspace::inner() {
  if (!inner_) inner_ = std::make_unique<Workspace>(source_, stream_);
  return *inner_;
}

}  // namespace sluice::cuda
