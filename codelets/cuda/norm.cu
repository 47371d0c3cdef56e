#include <algorithm>

#include "codelets/cuda/block.h"
#include "codelets/cuda/device.h"
#include "codelets/cuda/norm.h"

namespace sluice::cuda {
namespace {

struct NormCall {
  bool normalises;  ///< otherwise rows are only stored as `dtype`
  NormKind kind;
  NormVectors norm;
  float eps;
  const float* x;  ///< rows of `width`
  std::int64_t width;
  DType dtype;
  void* out;
  std::int64_t out_stride;
};

/// A block a row. The row is read up to three times, the later ones from cache.
__global__ void norm_rows(NormCall call) {
  const std::int64_t row = blockIdx.x;
  const float* x = call.x + row * call.width;
  const auto add = [](float a, float b) { return a + b; };
  const auto n = static_cast<float>(call.width);
  float mean = 0;
  float factor = 1;
  if (call.normalises) {
    if (call.kind == NormKind::layer_norm) {
      float sum = 0;
      for (std::int64_t i = threadIdx.x; i < call.width; i += blockDim.x) sum += x[i];
      mean = block_reduce(sum, add) / n;
    }
    float squares = 0;
    for (std::int64_t i = threadIdx.x; i < call.width; i += blockDim.x) {
      squares += (x[i] - mean) * (x[i] - mean);
    }
    factor = 1 / sqrtf(block_reduce(squares, add) / n + call.eps);
  }
  // A thread reads what it writes itself: `out` may be `x`.
  for (std::int64_t i = threadIdx.x; i < call.width; i += blockDim.x) {
    float y = (x[i] - mean) * factor;
    if (call.norm.weight != nullptr) y *= call.norm.weight[i];
    if (call.norm.bias != nullptr) y += call.norm.bias[i];
    const std::int64_t at = row * call.out_stride + i;
    if (call.dtype == DType::f32) {
      static_cast<float*>(call.out)[at] = y;
    } else {
      static_cast<BFloat16*>(call.out)[at] = to_bf16(y);
    }
  }
}

void run(const Context& gpu, const NormCall& call, std::int64_t rows) {
  constexpr std::int64_t most_threads = 512;
  constexpr std::int64_t elements = 8;  // of a thread, in rows that are not wider
  const std::int64_t warps = (call.width + elements * warp_threads - 1) / (elements * warp_threads);
  launch("norm_rows", norm_rows,
         {.blocks = dim3(static_cast<unsigned>(rows)),
          .threads = dim3(static_cast<unsigned>(std::min(most_threads, warps * warp_threads)))},
         gpu.stream, call);
}

/// Without vectors where the norm is not to be taken.
NormCall call_of(const DecoderShape& shape, bool normalises, const NormVectors& norm) {
  return {.normalises = normalises,
          .kind = shape.norm,
          .norm = normalises ? norm : NormVectors{},
          .eps = shape.norm_eps,
          .x = nullptr,
          .width = shape.hidden_size,
          .dtype = shape.dtype,
          .out = nullptr,
          .out_stride = activation_stride(shape.hidden_size, shape.dtype)};
}

}  // namespace

void block_input(const Context& gpu, const DecoderShape& shape, const NormVectors& norm,
                 const float* x, std::int64_t rows, std::byte* out) {
  NormCall call = call_of(shape, shape.norm_place == NormPlace::pre, norm);
  call.x = x;
  call.out = out;
  run(gpu, call, rows);
}

void block_output(const Context& gpu, const DecoderShape& shape, const NormVectors& norm, float* x,
                  std::int64_t rows) {
  if (shape.norm_place != NormPlace::post) return;
  NormCall call = call_of(shape, true, norm);
  call.x = x;
  call.dtype = DType::f32;
  call.out = x;
  call.out_stride = shape.hidden_size;
  run(gpu, call, rows);
}

void head_input(const Context& gpu, const DecoderShape& shape, FinalNorm final_norm,
                const NormVectors& norm, const float* x, std::int64_t rows, std::byte* out) {
  NormCall call = call_of(shape, final_norm == FinalNorm::normalised, norm);
  call.x = x;
  call.out = out;
  run(gpu, call, rows);
}

}  // namespace sluice::cuda
