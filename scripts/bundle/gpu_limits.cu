// What a GPU can do at best: the rates that Sluice's figures are compared with (gpu_figures.py).
//
//   gpu_limits
//
// Prints one JSON object: bytes a second of reading its memory, of copying within it, and of copies
// of pinned memory to it and back; FLOP a second of a large bf16 matrix product. Medians of many
// runs.

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "gpu_limits: %s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}
void check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  std::fprintf(stderr, "gpu_limits: %s: %s\n", what, cublasGetStatusString(status));
  std::exit(1);
}

/// Sums everything, so that nothing but reading is to be done; `sums` has one for each thread.
__global__ void read_all(const uint4* from, std::size_t count, unsigned* sums) {
  const std::size_t thread = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x;
  const std::size_t threads = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  unsigned sum = 0;
#pragma unroll 4
  for (std::size_t i = thread; i < count; i += threads) {
    const uint4 four = from[i];
    sum += four.x ^ four.y ^ four.z ^ four.w;
  }
  sums[thread] = sum;
}

/// Values that differ, around 0.02: zeros would need less power, and run faster than weights do.
__global__ void fill(__nv_bfloat16* values, std::size_t count) {
  const std::size_t threads = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = blockIdx.x * static_cast<std::size_t>(blockDim.x) + threadIdx.x; i < count;
       i += threads) {
    const unsigned hash = (static_cast<unsigned>(i) * 2654435761U) >> 16U;
    values[i] = __float2bfloat16((static_cast<float>(hash) / 65536.0F - 0.5F) * 0.07F);
  }
}

void* on_device(std::size_t bytes) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes), "taking device memory");
  check(cudaMemset(memory, 0, bytes), "clearing device memory");
  return memory;
}

/// The median of many runs, after a third of a second's that do not count: clocks rise when there
/// is work, and fall when that takes too much power.
template <typename Work>
double seconds(const Work& work) {
  constexpr double warm_up_s = 0.3;
  constexpr int runs = 50;
  cudaEvent_t before = nullptr;
  cudaEvent_t after = nullptr;
  check(cudaEventCreate(&before), "making an event");
  check(cudaEventCreate(&after), "making an event");
  const auto start = std::chrono::steady_clock::now();
  do {
    work();
    check(cudaDeviceSynchronize(), "waiting");
  } while (std::chrono::steady_clock::now() - start < std::chrono::duration<double>(warm_up_s));
  std::vector<float> milliseconds(runs);
  for (float& each : milliseconds) {
    check(cudaEventRecord(before), "noting the time");
    work();
    check(cudaEventRecord(after), "noting the time");
    check(cudaEventSynchronize(after), "waiting");
    check(cudaEventElapsedTime(&each, before, after), "reading the time");
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  check(cudaEventDestroy(before), "ending an event");
  check(cudaEventDestroy(after), "ending an event");
  return 1e-3 * milliseconds[runs / 2];
}

struct MemoryRates {
  double read, copy, to_gpu, from_gpu;
};

MemoryRates memory_rates() {
  constexpr std::size_t bytes = std::size_t{2} << 30;
  constexpr std::size_t pinned_bytes = std::size_t{256} << 20;
  constexpr int threads = 512;
  int multiprocessors = 0;
  check(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0),
        "asking for a device's attributes");
  const int blocks = 4 * multiprocessors;
  void* from = on_device(bytes);
  void* to = on_device(bytes);
  auto* sums = static_cast<unsigned*>(
      on_device(static_cast<std::size_t>(blocks) * threads * sizeof(unsigned)));
  void* host = nullptr;
  check(cudaMallocHost(&host, pinned_bytes), "taking pinned memory");
  const auto rate = [](std::size_t moved, double took_s) {
    return static_cast<double>(moved) / took_s;
  };
  MemoryRates rates{};
  rates.read = rate(bytes, seconds([&] {
                      read_all<<<blocks, threads>>>(static_cast<const uint4*>(from),
                                                    bytes / sizeof(uint4), sums);
                      check(cudaGetLastError(), "reading");
                    }));
  rates.copy =
      rate(2 * bytes, seconds([&] {
             check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, nullptr), "copying");
           }));
  rates.to_gpu = rate(
      pinned_bytes, seconds([&] {
        check(cudaMemcpyAsync(to, host, pinned_bytes, cudaMemcpyHostToDevice, nullptr), "copying");
      }));
  rates.from_gpu = rate(
      pinned_bytes, seconds([&] {
        check(cudaMemcpyAsync(host, to, pinned_bytes, cudaMemcpyDeviceToHost, nullptr), "copying");
      }));
  check(cudaFreeHost(host), "giving memory back");
  for (void* memory : {from, to, static_cast<void*>(sums)})
    check(cudaFree(memory), "giving memory back");
  return rates;
}

double gemm_flop_per_s() {
  constexpr int size = 8192;
  constexpr std::size_t count = static_cast<std::size_t>(size) * size;
  const auto matrix = [&] {
    auto* values = static_cast<__nv_bfloat16*>(on_device(count * sizeof(__nv_bfloat16)));
    fill<<<1024, 256>>>(values, count);
    check(cudaGetLastError(), "filling");
    return values;
  };
  __nv_bfloat16* a = matrix();
  __nv_bfloat16* b = matrix();
  __nv_bfloat16* c = matrix();
  cublasHandle_t blas = nullptr;
  check(cublasCreate(&blas), "starting cuBLAS");
  const float one = 1;
  const float zero = 0;
  const double took_s = seconds([&] {
    check(cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, size, size, size, &one, a, CUDA_R_16BF, size,
                       b, CUDA_R_16BF, size, &zero, c, CUDA_R_16BF, size, CUBLAS_COMPUTE_32F,
                       CUBLAS_GEMM_DEFAULT),
          "multiplying");
  });
  check(cublasDestroy(blas), "ending cuBLAS");
  for (__nv_bfloat16* values : {a, b, c}) check(cudaFree(values), "giving memory back");
  return 2.0 * size * size * size / took_s;
}

}  // namespace

int main(int argc, char** /*argv*/) {
  if (argc > 1) {
    std::fprintf(stderr, "usage: gpu_limits\n");
    return 2;
  }
  const MemoryRates rates = memory_rates();
  std::printf(
      "{\"memory_read_bytes_per_s\": %.4e, \"memory_copy_bytes_per_s\": %.4e, "
      "\"to_gpu_bytes_per_s\": %.4e, \"from_gpu_bytes_per_s\": %.4e, \"gemm_bf16_flop_per_s\": "
      "%.4e}\n",
      rates.read, rates.copy, rates.to_gpu, rates.from_gpu, gemm_flop_per_s());
  return 0;
}
