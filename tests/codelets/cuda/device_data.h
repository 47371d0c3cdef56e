#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>
#include <vector>

#include "codelets/cuda/context.h"

namespace sluice::test {

/// A copy of host memory on the device.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(std::span<const T> values) : OnDevice(values.size()) {
    if (values.empty()) return;
    cuda::check(cudaMemcpy(memory_, values.data(), values.size_bytes(), cudaMemcpyHostToDevice),
                "copying to the device");
  }
  explicit OnDevice(const std::vector<T>& values) : OnDevice(std::span<const T>(values)) {}
  /// `count` elements that nobody wrote.
  explicit OnDevice(std::size_t count) : count_(count) {
    if (count > 0) cuda::check(cudaMalloc(&memory_, count * sizeof(T)), "taking device memory");
  }
  ~OnDevice() { cudaFree(memory_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* get() { return static_cast<T*>(memory_); }
  const T* get() const { return static_cast<const T*>(memory_); }
  /// After all that was launched.
  std::vector<T> read() const {
    std::vector<T> values(count_);
    cuda::check(cudaDeviceSynchronize(), "waiting for the device");
    cuda::check(cudaMemcpy(values.data(), memory_, count_ * sizeof(T), cudaMemcpyDeviceToHost),
                "copying from the device");
    return values;
  }

 private:
  void* memory_ = nullptr;
  std::size_t count_;
};

/// What the CUDA codelets run with when they are called as plain functions; made once.
const cuda::Context& gpu();
/// What they found wrong since the last call.
cuda::DeviceFailure take_device_failure();

}  // namespace sluice::test
