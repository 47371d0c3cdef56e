#include <algorithm>

#include "codelets/cuda/block.h"
#include "codelets/cuda/device.h"
#include "codelets/cuda/neighbours.h"
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

/// Threads of a block at most.
constexpr int most_threads = 512;

/// A block a row, of any width. The row is read up to three times, the later ones from cache.
__global__ void norm_rows(NormCall call) {
  let_next_start();
  wait_for_last();
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

/// The same for rows of at most `Fours` times four elements a thread, which stay in registers, as
/// do the norm's vectors: they come while the kernel before this one ends.
template <int Fours>
__global__ void __launch_bounds__(most_threads) norm_short_rows(NormCall call) {
  let_next_start();
  const auto count = static_cast<int>(call.width / 4);
  const auto for_mine = [&](auto use) {
#pragma unroll
    for (int four = 0; four < Fours; ++four) {
      const int i = four * static_cast<int>(blockDim.x) + static_cast<int>(threadIdx.x);
      if (i < count) use(four, i);
    }
  };
  float4 weight[Fours] = {};
  float4 bias[Fours] = {};
  for_mine([&](int four, int i) {
    weight[four] = call.norm.weight != nullptr
                       ? reinterpret_cast<const float4*>(call.norm.weight)[i]
                       : make_float4(1, 1, 1, 1);
    bias[four] = call.norm.bias != nullptr ? reinterpret_cast<const float4*>(call.norm.bias)[i]
                                           : make_float4(0, 0, 0, 0);
  });
  wait_for_last();
  const std::int64_t row = blockIdx.x;
  float4 x[Fours] = {};
  for_mine([&](int four, int i) {
    x[four] = reinterpret_cast<const float4*>(call.x + row * call.width)[i];
  });
  const auto add = [](float a, float b) { return a + b; };
  const auto n = static_cast<float>(call.width);
  float mean = 0;
  float factor = 1;
  if (call.normalises) {
    if (call.kind == NormKind::layer_norm) {
      float sum = 0;
      for_mine(
          [&](int four, int /*i*/) { sum += (x[four].x + x[four].y) + (x[four].z + x[four].w); });
      mean = block_reduce(sum, add) / n;
    }
    float squares = 0;
    const auto square = [&](float value) { return (value - mean) * (value - mean); };
    for_mine([&](int four, int /*i*/) {
      squares += (square(x[four].x) + square(x[four].y)) + (square(x[four].z) + square(x[four].w));
    });
    factor = 1 / sqrtf(block_reduce(squares, add) / n + call.eps);
  }
  for_mine([&](int four, int i) {
    const auto y_of = [&](float value, float by, float plus) {
      return (value - mean) * factor * by + plus;
    };
    const float4 y = make_float4(y_of(x[four].x, weight[four].x, bias[four].x),
                                 y_of(x[four].y, weight[four].y, bias[four].y),
                                 y_of(x[four].z, weight[four].z, bias[four].z),
                                 y_of(x[four].w, weight[four].w, bias[four].w));
    put_four(y, call.dtype, call.out, row * (call.out_stride / 4) + i);
  });
}

bool has_fours(const NormCall& call) {
  return call.width % 4 == 0 && call.out_stride % 4 == 0 && is_aligned(call.x) &&
         is_aligned(call.out) && is_aligned(call.norm.weight) && is_aligned(call.norm.bias);
}

void run(const Context& gpu, const NormCall& call, std::int64_t rows) {
  using Kernel = void (*)(NormCall);
  struct Form {
    std::int64_t elements;  ///< of a thread
    Kernel kernel;
  };
  constexpr std::int64_t elements = 8;  // in rows that are not wider
  Form form{.elements = elements, .kernel = norm_rows};
  if (has_fours(call)) {
    for (const Form& shorter : {Form{4, norm_short_rows<1>}, Form{8, norm_short_rows<2>},
                                Form{16, norm_short_rows<4>}, Form{32, norm_short_rows<8>}}) {
      if (call.width > shorter.elements * most_threads) continue;
      form = shorter;
      break;
    }
  }
  const std::int64_t of_warp = form.elements * warp_threads;
  const std::int64_t threads = (call.width + of_warp - 1) / of_warp * warp_threads;
  launch("norm_rows", form.kernel,
         {.blocks = dim3(static_cast<unsigned>(rows)),
          .threads = dim3(static_cast<unsigned>(std::min<std::int64_t>(most_threads, threads))),
          .early = starts_early(gpu)},
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
