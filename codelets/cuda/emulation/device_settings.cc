// The part of CUDA's runtime library that has to do with devices and errors: there is one device,
// or none.
#include "codelets/cuda/emulation/device_settings.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

namespace sluice::cuda::emulation {
namespace {

constexpr int capability_major = 9;
constexpr int capability_minor = 0;
constexpr int num_multiprocessors = 4;
constexpr int clock_khz = 1'000'000;

thread_local cudaError_t last_error = cudaSuccess;

DeviceSettings read_settings() {
  DeviceSettings read{.memory_bytes = std::size_t{2048} << 20, .missing = false, .busy = false};
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody sets it
  const char* value = std::getenv("SLUICE_EMULATED_GPU");
  if (value == nullptr) return read;
  const std::string text = value;
  read.missing = text == "none";
  read.busy = text == "busy";
  if (!read.missing && !read.busy) read.memory_bytes = std::stoul(text) << 20;
  return read;
}

}  // namespace

const DeviceSettings& settings() {
  static const DeviceSettings read = read_settings();
  return read;
}

cudaError_t fail(cudaError_t error) { return last_error = error; }

cudaError_t status_of_context() {
  if (settings().missing) return fail(cudaErrorNoDevice);
  return settings().busy ? fail(cudaErrorDevicesUnavailable) : cudaSuccess;
}

cudaError_t status_beside_capture() {
  return is_capturing() ? fail(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

}  // namespace sluice::cuda::emulation

namespace emulation = sluice::cuda::emulation;

// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): ours say what they are
extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = emulation::settings().missing ? 0 : 1;
  return *count == 0 ? emulation::fail(cudaErrorNoDevice) : cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  return device == 0 ? cudaSuccess : emulation::fail(cudaErrorInvalidDevice);
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceReset() { return cudaSuccess; }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int /*device*/) {
  *properties = {};
  std::strncpy(properties->name, "emulated CUDA device", sizeof(properties->name) - 1);
  properties->totalGlobalMem = emulation::settings().memory_bytes;
  properties->major = emulation::capability_major;
  properties->minor = emulation::capability_minor;
  properties->multiProcessorCount = emulation::num_multiprocessors;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int /*device*/) {
  switch (which) {
    case cudaDevAttrComputeCapabilityMajor:
      *value = emulation::capability_major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = emulation::capability_minor;
      return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
      *value = emulation::num_multiprocessors;
      return cudaSuccess;
    case cudaDevAttrComputeMode:
      *value = cudaComputeModeDefault;
      return cudaSuccess;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate:
      *value = emulation::clock_khz;
      return cudaSuccess;
    case cudaDevAttrGlobalMemoryBusWidth:
      *value = 64;
      return cudaSuccess;
    default:
      return emulation::fail(cudaErrorInvalidValue);
  }
}

cudaError_t cudaGetLastError() { return std::exchange(emulation::last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorDevicesUnavailable:
      return "CUDA-capable device(s) is/are busy or unavailable";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    default:
      return "an error of the emulated device";
  }
}

}  // extern "C"
// NOLINTEND(readability-inconsistent-declaration-parameter-name)
