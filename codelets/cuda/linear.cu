#include <cuda_fp16.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "codelets/cuda/blas.h"
#include "codelets/cuda/device.h"
#include "codelets/cuda/linear.h"
#include "codelets/cuda/linear_limits.h"
#include "codelets/cuda/mma.h"
#include "codelets/cuda/neighbours.h"
#include "codelets/cuda/workspace_layout.h"
#include "codelets/kernels/quantized/strip.h"
#include "codelets/weights/plain.h"

namespace sluice::cuda {
namespace {

constexpr std::int64_t strip_columns = weight_strip_columns;
/// Depth that a warp multiplies at once: 16 bytes of a row of x for each lane.
constexpr std::int64_t step_depth = 32;

constexpr std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
constexpr std::int64_t round_up(std::int64_t a, std::int64_t b) { return divide_up(a, b) * b; }

/// What becomes of the product y of one call: dst = epilogue(y + bias), or
/// activation(gate + gate_bias) * (y + bias).
struct Output {
  const float* bias;
  const float* gate_bias;
  Epilogue epilogue;  ///< of a gated pair: the activation
  bool gated;
  void* dst;
  DType dtype;
  std::int64_t stride;

  /// The same for columns from `first` on.
  Output from_column(std::int64_t first) const {
    Output part = *this;
    if (bias != nullptr) part.bias += first;
    if (gate_bias != nullptr) part.gate_bias += first;
    part.dst = static_cast<std::byte*>(dst) + static_cast<std::size_t>(first) * size_bytes(dtype);
    return part;
  }
};

/// A call of either kind.
struct Job {
  PackedBlocks blocks;  ///< of a plain weight; of codes only its sizes and the type of the product
  WeightFormat format;
  PackedBlocks gate_blocks;  ///< of the gate's, in the same way
  WeightFormat gate_format;
  const std::byte* weight;
  const std::byte* gate;  ///< null unless gated
  const void* x;
  std::int64_t rows;
  std::int64_t x_stride;
  Output output;
};

PackedBlocks blocks_of(const WeightType& type, DType dtype) {
  if (type.format.is_plain()) return PlainLayout::get(type).blocks();
  PackedBlocks sizes;
  sizes.in = type.in;
  sizes.out = type.out;
  sizes.dtype = dtype;
  return sizes;
}

Job job_of(const LinearCall& call) {
  const WeightType& type = call.weight.type;
  return {.blocks = blocks_of(type, call.dtype),
          .format = type.format,
          .gate_blocks = {},
          .gate_format = {},
          .weight = call.weight.data,
          .gate = nullptr,
          .x = call.x,
          .rows = call.rows,
          .x_stride = call.x_stride != 0 ? call.x_stride : type.in,
          .output = {.bias = call.bias,
                     .gate_bias = nullptr,
                     .epilogue = call.epilogue,
                     .gated = false,
                     .dst = call.dst,
                     .dtype = call.dst_dtype,
                     .stride = call.dst_stride != 0 ? call.dst_stride : type.out}};
}

Job job_of(const GatedLinearCall& call) {
  const WeightType& type = call.up.type;
  return {.blocks = blocks_of(type, call.dtype),
          .format = type.format,
          .gate_blocks = blocks_of(call.gate.type, call.dtype),
          .gate_format = call.gate.type.format,
          .weight = call.up.data,
          .gate = call.gate.data,
          .x = call.x,
          .rows = call.rows,
          .x_stride = call.x_stride != 0 ? call.x_stride : type.in,
          .output = {.bias = call.up_bias,
                     .gate_bias = call.gate_bias,
                     .epilogue = call.activation,
                     .gated = true,
                     .dst = call.dst,
                     .dtype = call.dtype,
                     .stride = call.dst_stride != 0 ? call.dst_stride : type.out}};
}

__device__ float activate(Epilogue epilogue, float y) {
  switch (epilogue) {
    case Epilogue::relu:
      return y > 0 ? y : 0;
    case Epilogue::gelu:
      return y / 2 * (1 + erff(y * 0.70710678F));
    case Epilogue::gelu_tanh:
      return y / 2 * (1 + tanhf(0.79788456F * (y + 0.044715F * y * y * y)));
    case Epilogue::silu:
      return y / (1 + expf(-y));
    default:
      return y;
  }
}

/// What `to` has of a product's element, before it is rounded; `there` is what an accumulating one
/// adds to.
__device__ float finished(const Output& to, std::int64_t column, float y, float gate, float there) {
  if (to.bias != nullptr) y += to.bias[column];
  if (to.gated) {
    if (to.gate_bias != nullptr) gate += to.gate_bias[column];
    return y * activate(to.epilogue, gate);
  }
  return to.epilogue == Epilogue::accumulate ? y + there : activate(to.epilogue, y);
}

__device__ bool adds_up(const Output& to) {
  return !to.gated && to.epilogue == Epilogue::accumulate;
}

__device__ void put(const Output& to, std::int64_t row, std::int64_t column, float y, float gate) {
  const std::int64_t at = row * to.stride + column;
  y = finished(to, column, y, gate, adds_up(to) ? static_cast<const float*>(to.dst)[at] : 0);
  if (to.dtype == DType::f32) {
    static_cast<float*>(to.dst)[at] = y;
  } else {
    static_cast<BFloat16*>(to.dst)[at] = to_bf16(y);
  }
}

/// Four columns from `column` on, of an output whose rows are aligned.
__device__ void finish_four(const Output& to, std::int64_t row, std::int64_t column,
                            const float4& y, const float4& gate) {
  const std::int64_t at = (row * to.stride + column) / 4;
  float4 there = make_float4(0, 0, 0, 0);
  if (adds_up(to)) there = static_cast<const float4*>(to.dst)[at];
  const float4 sums = make_float4(finished(to, column, y.x, gate.x, there.x),
                                  finished(to, column + 1, y.y, gate.y, there.y),
                                  finished(to, column + 2, y.z, gate.z, there.z),
                                  finished(to, column + 3, y.w, gate.w, there.w));
  put_four(sums, to.dtype, to.dst, at);
}

/// Products whose depth was split: `count` parts of [rows, stride], to be added in order.
struct Parts {
  const float* y;
  const float* gate;  ///< null unless gated
  std::int64_t count;
  std::int64_t elements;  ///< from one part to the next
  std::int64_t stride;
};

__device__ float sum_parts(const float* part, const Parts& parts, std::int64_t at) {
  float sum = 0;
#pragma unroll 8  // that many are on their way at once
  for (std::int64_t i = 0; i < parts.count; ++i) sum += part[i * parts.elements + at];
  return sum;
}

__device__ float4 sum_parts_of_four(const float* part, const Parts& parts, std::int64_t at) {
  float4 sum = make_float4(0, 0, 0, 0);
  for (std::int64_t i = 0; i < parts.count; ++i) {
    const float4 more = *reinterpret_cast<const float4*>(part + i * parts.elements + at);
    sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
  }
  return sum;
}

/// One thread for four neighbours; all rows are aligned.
__global__ void finish_parts_in_fours(Parts parts, Output to, std::int64_t columns) {
  let_next_start();
  wait_for_last();
  const std::int64_t column = 4 * (std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x);
  const std::int64_t row = blockIdx.y;
  if (column >= columns) return;
  const std::int64_t at = row * parts.stride + column;
  const float4 y = sum_parts_of_four(parts.y, parts, at);
  finish_four(to, row, column, y,
              to.gated ? sum_parts_of_four(parts.gate, parts, at) : make_float4(0, 0, 0, 0));
}

/// One thread an element.
__global__ void finish_parts(Parts parts, Output to, std::int64_t columns) {
  let_next_start();
  wait_for_last();
  const std::int64_t column = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t row = blockIdx.y;
  if (column >= columns) return;
  const std::int64_t at = row * parts.stride + column;
  const float y = sum_parts(parts.y, parts, at);
  put(to, row, column, y, to.gated ? sum_parts(parts.gate, parts, at) : 0);
}

void finish(const Context& gpu, const Parts& parts, const Output& to, std::int64_t rows,
            std::int64_t columns) {
  const bool in_fours = columns % 4 == 0 && parts.stride % 4 == 0 && parts.elements % 4 == 0 &&
                        to.stride % 4 == 0 && is_aligned(parts.y) && is_aligned(parts.gate) &&
                        is_aligned(to.dst);
  constexpr unsigned threads = 128;
  const std::int64_t of_block = std::int64_t{threads} * (in_fours ? 4 : 1);
  constexpr std::int64_t most_rows = 65535;  // of a grid
  for (std::int64_t first = 0; first < rows; first += most_rows) {
    Parts from = parts;
    from.y += first * parts.stride;
    if (to.gated) from.gate += first * parts.stride;
    Output into = to;
    into.dst = static_cast<std::byte*>(to.dst) +
               static_cast<std::size_t>(first * to.stride) * size_bytes(to.dtype);
    launch("finish_parts", in_fours ? finish_parts_in_fours : finish_parts,
           {.blocks = dim3(static_cast<unsigned>(divide_up(columns, of_block)),
                           static_cast<unsigned>(std::min(most_rows, rows - first))),
            .threads = dim3(threads),
            .early = starts_early(gpu)},
           gpu.stream, from, into, columns);
  }
}

// Few rows: strips as they are.

/// 16 bytes: eight k of one row of x, or one k-pair of four neighbouring columns of W.
struct alignas(16) Words {
  std::uint32_t word[4];
};

/// Of a weight that passes by once: it should not push x out of the first-level cache.
__device__ Words load_streamed(const Words* from) {
#if defined(SLUICE_CUDA_EMULATION) || __CUDA_ARCH__ < 800
  return *from;
#else
  Words to;
  asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(to.word[0]), "=r"(to.word[1]), "=r"(to.word[2]), "=r"(to.word[3])
               : "l"(from));
  return to;
#endif
}

struct StripCall {
  const std::byte* weight;
  const std::byte* gate;   ///< null unless gated
  const std::uint16_t* x;  ///< [rows, in] bf16
  std::int64_t x_stride;
  bool x_aligned;  ///< every row starts at a multiple of 16 bytes
  std::int32_t rows;
  std::int64_t in;
  std::int64_t out;
  std::int32_t num_strips;
  std::int32_t num_steps;        ///< of depth
  std::int32_t steps_per_split;  ///< of a block
  float* parts;                  ///< [splits][1 or 2][rows][num_strips * 64]; null: blocks finish
  unsigned* arrived;  ///< by blocks of the same columns, see Context; null: finish_parts() follows
  Output output;

  __host__ __device__ Parts all_parts(std::int64_t splits) const {
    const std::int64_t stride = std::int64_t{num_strips} * strip_columns;
    const std::int64_t elements = rows * stride;
    return {.y = parts,
            .gate = output.gated ? parts + elements : nullptr,
            .count = splits,
            .elements = (output.gated ? 2 : 1) * elements,
            .stride = stride};
  }
};

/// Eight k of a row of x from `k` on; zero beyond its ends.
__device__ Words load_x(const StripCall& call, std::int32_t row, std::int64_t k) {
  Words words = {};
  if (row >= call.rows || k >= call.in) return words;
  const std::uint16_t* from = call.x + row * call.x_stride + k;
  if (call.x_aligned && k + 8 <= call.in) return *reinterpret_cast<const Words*>(from);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (k + i < call.in) words.word[i / 2] |= std::uint32_t{from[i]} << (16 * (i % 2));
  }
  return words;
}

constexpr int block_threads = 256;
constexpr int slices = block_threads / warp_threads / strips_per_block;
/// Floats between the rows of a tile in shared memory: rows four apart share no bank.
constexpr int tile_stride = strip_columns + 4;
constexpr int tile_rows = 16;

/// The last block to come here of those with the same columns, from `first_column` on, adds up what
/// all of them have left; in the same order whichever it is. The whole block.
__device__ void finish_columns(const StripCall& call, std::int64_t first_column, int columns) {
  __shared__ bool is_last;
  __syncthreads();  // what the block has left
  if (threadIdx.x == 0) {
    __threadfence();
    unsigned* arrived = call.arrived + blockIdx.x;
    is_last = atomicAdd(arrived, 1U) + 1 == gridDim.y;
    if (is_last) *arrived = 0;  // for the next call
    __threadfence();
  }
  __syncthreads();
  if (!is_last) return;
  const Parts parts = call.all_parts(gridDim.y);
  for (int i = static_cast<int>(threadIdx.x); i < call.rows * columns; i += block_threads) {
    const int row = i / columns;
    const std::int64_t column = first_column + i % columns;
    if (column >= call.out) continue;
    const std::int64_t at = row * parts.stride + column;
    put(call.output, row, column, sum_parts(parts.y, parts, at),
        call.output.gated ? sum_parts(parts.gate, parts, at) : 0);
  }
}

/// Up to 16 * Tiles rows of x by two strips: neighbours, or the same one of a gated pair. Four
/// warps share a strip, each takes every fourth step of depth. In a step lane 4 g + p takes k
/// 8 p .. 8 p + 7, of x from rows g and g + 8 of a tile, of W from columns 4 g .. 4 g + 3 of either
/// half of the strip: all loads are 16 bytes, and of W whole lines. So column 4 g + j of half h is
/// column g of the product's block (h, j), and k 8 p + 4 s .. + 3 are its step s's k 2 p, 2 p + 1,
/// 2 p + 8, 2 p + 9.
template <int Tiles>
__global__ void __launch_bounds__(block_threads, Tiles == 1 ? 2 : 1)
    multiply_strips(StripCall call) {
  __shared__ float4 tiles[strips_per_block][slices][tile_rows][tile_stride / 4];
  let_next_start();
  const int warp = static_cast<int>(threadIdx.x) / warp_threads;
  const int lane = static_cast<int>(threadIdx.x) % warp_threads;
  const int group = lane / 4;
  const int place = lane % 4;
  const int side = warp / slices;
  const int slice = warp % slices;
  const bool gated = call.output.gated;
  const int first_strip = static_cast<int>(blockIdx.x) * (gated ? 1 : strips_per_block);
  const int strip = gated ? first_strip : first_strip + side;
  const std::int64_t line_words = strip_columns / 4;  // Words of one k-pair
  const Words* b = reinterpret_cast<const Words*>(gated && side == 1 ? call.gate : call.weight) +
                   strip * (call.num_steps * (step_depth / 2) * line_words) +
                   4 * place * line_words + group;

  MmaD sum[Tiles][2][4] = {};
  const int first_step = static_cast<int>(blockIdx.y) * call.steps_per_split;
  const int end_step = strip < call.num_strips
                           ? std::min(first_step + call.steps_per_split, call.num_steps)
                           : 0;  // an odd number of strips
  Words next[2][4];              // [h][pair]
  const auto load_weight = [&](int step) {
    const Words* from = b + step * (step_depth / 2 * line_words);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) {
        next[h][pair] = load_streamed(from + pair * line_words + h * (line_words / 2));
      }
    }
  };
  int step = first_step + slice;
  if (step < end_step) load_weight(step);  // while the kernel before this one ends
  wait_for_last();
  for (; step < end_step; step += slices) {
    Words now[2][4];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int pair = 0; pair < 4; ++pair) now[h][pair] = next[h][pair];
    }
    if (step + slices < end_step) load_weight(step + slices);
#pragma unroll
    for (int tile = 0; tile < Tiles; ++tile) {
      const std::int64_t k = step * step_depth + 8 * place;
      const Words upper = load_x(call, tile * tile_rows + group, k);
      const Words lower = load_x(call, tile * tile_rows + group + 8, k);
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        const MmaA a = {
            {upper.word[2 * s], lower.word[2 * s], upper.word[2 * s + 1], lower.word[2 * s + 1]}};
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const MmaB of_w = {{now[h][2 * s].word[j], now[h][2 * s + 1].word[j]}};
            mma_16x8x16<DType::bf16>(sum[tile][h][j], a, of_w);
          }
        }
      }
    }
  }

  const std::int64_t part_stride = call.num_strips * strip_columns;
  const std::int64_t part_elements = call.rows * part_stride;
  float* part = call.parts;
  if (part != nullptr) part += std::int64_t{blockIdx.y} * (gated ? 2 : 1) * part_elements;
#pragma unroll
  for (int tile = 0; tile < Tiles; ++tile) {
    if (tile > 0) __syncthreads();  // the last tile was read
#pragma unroll
    for (int v = 0; v < 4; ++v) {  // of rows group and group + 8, columns 8 place + 4 (v % 2) + j
      float4* row = tiles[side][slice][group + v / 2 * 8];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        row[8 * h + 2 * place + v % 2] =
            make_float4(sum[tile][h][0].value[v], sum[tile][h][1].value[v],
                        sum[tile][h][2].value[v], sum[tile][h][3].value[v]);
      }
    }
    __syncthreads();
    const int count = tile_rows * static_cast<int>(strip_columns) * (gated ? 1 : strips_per_block);
    for (int i = static_cast<int>(threadIdx.x); i < count; i += block_threads) {
      const int column = i % static_cast<int>(strip_columns);
      const int row = i / static_cast<int>(strip_columns) % tile_rows;
      const int of_side = i / static_cast<int>(strip_columns * tile_rows);
      const std::int64_t to_row = tile * tile_rows + row;
      const std::int64_t to_column = (first_strip + of_side) * strip_columns + column;
      if (to_row >= call.rows || to_column >= call.out) continue;
      const auto add_slices = [&](int from) {
        float total = 0;
#pragma unroll
        for (int of_slice = 0; of_slice < slices; ++of_slice) {
          total += reinterpret_cast<const float*>(tiles[from][of_slice][row])[column];
        }
        return total;
      };
      const float y = add_slices(of_side);
      const float gate = gated ? add_slices(1) : 0;
      if (part == nullptr) {
        put(call.output, to_row, to_column, y, gate);
      } else {
        part[to_row * part_stride + to_column] = y;
        if (gated) part[part_elements + to_row * part_stride + to_column] = gate;
      }
    }
  }
  if (call.arrived != nullptr) {
    finish_columns(call, first_strip * strip_columns,
                   static_cast<int>(strip_columns) * (gated ? 1 : strips_per_block));
  }
}

/// How few rows are computed, and in how much scratch memory.
struct StripPlan {
  std::int64_t tiles, num_strips, num_steps, blocks, splits, steps_per_split;
  std::size_t scratch_bytes;

  StripPlan(const Context& gpu, const Job& job)
      : tiles(divide_up(job.rows, tile_rows)),
        num_strips(divide_up(job.blocks.out, strip_columns)),
        num_steps(divide_up(job.blocks.in, step_depth)),
        blocks(job.output.gated ? num_strips : divide_up(num_strips, strips_per_block)) {
    // One wave of blocks, each with some steps for every warp.
    constexpr std::int64_t least_steps = std::int64_t{2} * slices;
    const std::int64_t at_once =
        std::int64_t{gpu.num_multiprocessors} * (tiles == 1 ? strip_blocks_at_once : 1);
    const std::int64_t wanted = std::clamp<std::int64_t>(
        at_once / blocks, 1, std::max<std::int64_t>(1, num_steps / least_steps));
    steps_per_split = divide_up(num_steps, wanted);
    splits = divide_up(num_steps, steps_per_split);
    const std::int64_t matrices = job.output.gated ? 2 : 1;
    scratch_bytes =
        splits == 1
            ? 0
            : static_cast<std::size_t>(splits * matrices * job.rows * num_strips * strip_columns) *
                  sizeof(float);
  }

  static bool serves(const Context& gpu, const Job& job) {
    return gpu.compute_capability >= 80 && job.rows <= most_strip_rows && job.format.is_plain() &&
           job.blocks.is_strips() && (!job.output.gated || job.gate_format == job.format);
  }
};

void run_strips(const Context& gpu, const Job& job, std::byte* scratch) {
  const StripPlan plan(gpu, job);
  // More rows are finished sooner by all multiprocessors.
  constexpr std::int64_t rows_of_last_block = 4;
  const bool last_block_finishes = plan.splits > 1 && job.rows <= rows_of_last_block;
  const StripCall call{.weight = job.weight,
                       .gate = job.gate,
                       .x = static_cast<const std::uint16_t*>(job.x),
                       .x_stride = job.x_stride,
                       .x_aligned = is_aligned(job.x) && job.x_stride % 8 == 0,
                       .rows = static_cast<std::int32_t>(job.rows),
                       .in = job.blocks.in,
                       .out = job.blocks.out,
                       .num_strips = static_cast<std::int32_t>(plan.num_strips),
                       .num_steps = static_cast<std::int32_t>(plan.num_steps),
                       .steps_per_split = static_cast<std::int32_t>(plan.steps_per_split),
                       .parts = plan.splits == 1 ? nullptr : reinterpret_cast<float*>(scratch),
                       .arrived = last_block_finishes ? gpu.arrived : nullptr,
                       .output = job.output};
  void (*const kernels[])(StripCall) = {multiply_strips<1>, multiply_strips<2>, multiply_strips<3>,
                                        multiply_strips<4>};
  launch("multiply_strips", kernels[plan.tiles - 1],
         {.blocks = dim3(static_cast<unsigned>(plan.blocks), static_cast<unsigned>(plan.splits)),
          .threads = dim3(block_threads),
          .early = starts_early(gpu)},
         gpu.stream, call);
  if (plan.splits == 1 || call.arrived != nullptr) return;
  finish(gpu, call.all_parts(plan.splits), job.output, job.rows, job.blocks.out);
}

// More rows, and all other layouts: unpacked, then multiplied by Blas.

/// Rounded to nearest even; what is too large becomes the largest half.
__device__ std::uint16_t to_half(float value) {
  constexpr float largest = 65504.0F;
  if (value > largest) value = largest;
  if (value < -largest) value = -largest;
  return __half_as_ushort(__float2half_rn(value));
}
__device__ std::uint16_t half_of_bf16(std::uint16_t bits) {
  return to_half(to_float(BFloat16{bits}));
}

/// An element as it lies in memory, or bf16 on its way to f16.
template <typename T>
__device__ T convert(T bits, bool to_f16) {
  if constexpr (sizeof(T) == 2) {
    if (to_f16) return half_of_bf16(bits);
  }
  return bits;
}

constexpr int square = 32;
constexpr int square_rows = 8;  ///< of threads

/// W [columns, stride] row-major from `first_column` on, zero beyond `in` and `out`, through
/// squares in shared memory: the packed side has neighbouring columns together, the plain side
/// neighbouring inputs. `stride` is at least `in`.
template <typename T>
__global__ void unpack_blocks(PackedBlocks blocks, const T* packed, std::int64_t first_column,
                              std::int64_t columns, T* plain, std::int64_t stride, bool to_f16) {
  __shared__ T values[square][square + 1];
  const std::int64_t k = std::int64_t{blockIdx.x} * square;
  const std::int64_t column = std::int64_t{blockIdx.y} * square;
  for (int i = static_cast<int>(threadIdx.y); i < square; i += square_rows) {
    const std::int64_t from = first_column + column + threadIdx.x;
    values[i][threadIdx.x] = k + i < blocks.in && from < blocks.out
                                 ? convert(packed[blocks.offset(k + i, from)], to_f16)
                                 : T{0};
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.y); i < square; i += square_rows) {
    if (column + i < columns && k + threadIdx.x < stride) {
      plain[(column + i) * stride + k + threadIdx.x] = values[threadIdx.x][i];
    }
  }
}

constexpr int piece_pairs = 64;  ///< of depth

/// The same for strips: one block takes 64 columns and 128 deep, in 16-byte loads, and writes lines
/// of 128 bytes. `stride` is at most the strips' depth.
__global__ void unpack_strips(const std::byte* packed, std::int64_t depth, std::int64_t first_strip,
                              std::uint32_t* plain, std::int64_t stride, bool to_f16) {
  __shared__ std::uint32_t words[strip_columns][piece_pairs + 1];
  constexpr int line_words = static_cast<int>(strip_columns) / 4;
  const std::int64_t pairs = depth / 2;
  const std::int64_t first_pair = std::int64_t{blockIdx.x} * piece_pairs;
  const std::int64_t strip = blockIdx.y;
  const Words* from = reinterpret_cast<const Words*>(packed) +
                      ((first_strip + strip) * pairs + first_pair) * line_words;
  for (int i = static_cast<int>(threadIdx.x); i < piece_pairs * line_words; i += block_threads) {
    const int pair = i / line_words;
    if (first_pair + pair >= pairs) break;
    const Words of_columns = load_streamed(from + i);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      std::uint32_t word = of_columns.word[j];
      if (to_f16) {
        word = half_of_bf16(static_cast<std::uint16_t>(word)) |
               std::uint32_t{half_of_bf16(static_cast<std::uint16_t>(word >> 16))} << 16;
      }
      words[i % line_words * 4 + j][pair] = word;
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < strip_columns * piece_pairs; i += block_threads) {
    const int pair = i % piece_pairs;
    const int column = i / piece_pairs;
    if (2 * (first_pair + pair) < stride) {
      plain[(strip * strip_columns + column) * (stride / 2) + first_pair + pair] =
          words[column][pair];
    }
  }
}

/// A number as the product's type has it.
__device__ void put_number(float value, bool /*to_f16*/, float* to) { *to = value; }
__device__ void put_number(float value, bool to_f16, std::uint16_t* to) {
  const std::uint16_t bits = to_bf16(value).bits;
  *to = to_f16 ? half_of_bf16(bits) : bits;
}

constexpr int unpacked_words = 4;  ///< of depth, eight inputs each, that a block takes

/// Strips of codes from `first_strip` on into rows of `stride` <= the strips' depth, zero from `in`
/// on. One thread for eight inputs of a column.
template <typename T>
__global__ void unpack_codes(quantized::StripLayout layout, WeightFormat format,
                             const std::byte* packed, std::int64_t in, std::int64_t first_strip,
                             T* plain, std::int64_t stride, bool to_f16) {
  const std::int64_t first = 8 * (std::int64_t{blockIdx.x} * unpacked_words + threadIdx.y);
  if (first >= stride) return;
  const std::int64_t column = threadIdx.x;
  const std::int64_t strip = blockIdx.y;
  const std::byte* from = packed + (first_strip + strip) * layout.size_bytes();
  const std::int64_t group = first / layout.group();
  const std::byte* codes =
      from + group * layout.group_bytes() + layout.code_bytes(first - group * layout.group());
  const auto scale_size = static_cast<std::int64_t>(size_bytes(format.scales));
  const std::byte* scale_at = from + layout.scales_offset(group) + column * scale_size;
  std::uint32_t bits = 0;
  for (std::int64_t i = 0; i < scale_size; ++i)
    bits |= static_cast<std::uint32_t>(scale_at[i]) << (8 * i);
  const float scale = scale_to_float(format.scales, bits);
  const std::int32_t zero_point =
      format.has_zero_points
          ? static_cast<std::int32_t>(from[layout.zero_points_offset(group) + column])
          : default_zero_point(format.codes);
  const bool narrow = format.bits_per_code() == 4;
  T* to = plain + (strip * strip_columns + column) * stride + first;
  for (int i = 0; i < 8; ++i) {
    // Inputs 0 to 3 are low nibbles, or a word of bytes; 4 to 7 high ones, or the next word.
    const std::int64_t word = narrow ? 0 : i / 4 * strip_columns * 4;
    const auto byte = static_cast<std::uint8_t>(codes[word + column * 4 + i % 4]);
    const auto code = static_cast<std::uint8_t>(narrow ? (byte >> (i / 4 * 4)) & 15 : byte);
    const float value =
        first + i < in ? quantized::dequantize(format, code, zero_point, scale) : 0.0F;
    put_number(value, to_f16, to + i);
  }
}

/// x [rows, in] into rows `stride` apart, zero behind them; bf16 may become f16.
template <typename T>
__global__ void copy_rows(const T* x, std::int64_t x_stride, std::int64_t rows, std::int64_t in,
                          T* copy, std::int64_t stride, bool to_f16) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= rows * stride) return;
  const std::int64_t k = i % stride;
  copy[i] = k < in ? convert(x[i / stride * x_stride + k], to_f16) : T{0};
}

/// How many rows are computed: piece by piece of the weight's columns, each unpacked, multiplied
/// and finished. Blas gets aligned rows and depths.
struct ProductPlan {
  DType dtype;         ///< of the product's operands
  std::int64_t depth;  ///< `in`, padded
  std::int64_t piece_columns;
  bool copies_x;
  bool straight;  ///< Blas writes dst
  WorkspaceLayout layout;
  std::size_t x = 0, y = 0, gate_y = 0;
  std::size_t weight = 0;  ///< of a gated pair, of one after the other

  ProductPlan(const Context& gpu, const Job& job)
      : dtype(job.blocks.dtype == DType::bf16 && gpu.compute_capability < 80 ? DType::f16
                                                                             : job.blocks.dtype),
        depth(round_up(job.blocks.in, alignment)),
        piece_columns(choose_piece(job)),
        copies_x(dtype != job.blocks.dtype || depth != job.blocks.in || !is_aligned(job.x) ||
                 job.x_stride % alignment != 0),
        straight(is_straight(job)) {
    const auto elements = [](std::int64_t count, DType type) {
      return count * static_cast<std::int64_t>(size_bytes(type));
    };
    if (copies_x) x = layout.place<std::byte>(elements(job.rows * depth, dtype));
    weight = layout.place<std::byte>(elements(piece_columns * depth, dtype));
    if (!straight) y = layout.place<float>(job.rows * piece_columns);
    if (job.output.gated) gate_y = layout.place<float>(job.rows * piece_columns);
  }

  GemmEpilogue epilogue(const Job& job) const {
    if (!straight) return GemmEpilogue::store;
    switch (job.output.epilogue) {
      case Epilogue::accumulate:
        return GemmEpilogue::accumulate;
      case Epilogue::relu:
        return GemmEpilogue::relu;
      default:
        return GemmEpilogue::store;
    }
  }
  /// Blas may add the bias; otherwise a kernel of ours does, after it.
  bool may_add_bias(const Job& job) const {
    return job.output.bias != nullptr && dtype != DType::f32 && job.output.dtype == DType::f32 &&
           is_aligned(job.output.bias);
  }

 private:
  static constexpr std::int64_t alignment = 8;  ///< elements, 16 bytes at least

  /// Columns whose weight, and whose product, stay within some tens of megabytes: whole strips. As
  /// many as Blas needs to give every multiprocessor some, even where these make more of a weight
  /// that is deep, and no remainder of a few beyond.
  static std::int64_t choose_piece(const Job& job) {
    const std::int64_t column_bytes =
        job.blocks.in * static_cast<std::int64_t>(size_bytes(job.blocks.dtype));
    const std::int64_t of_weight =
        std::max(piece_weight_bytes / column_bytes,
                 std::min(enough_piece_columns, most_piece_weight_bytes / column_bytes));
    const std::int64_t most = std::min(of_weight, piece_product_bytes / (4 * job.rows));
    const std::int64_t whole = most > enough_piece_columns ? enough_piece_columns : strip_columns;
    return std::clamp(most / whole * whole, strip_columns, round_up(job.blocks.out, strip_columns));
  }

  bool is_straight(const Job& job) const {
    const Output& to = job.output;
    if (to.gated || job.blocks.out % alignment != 0 || to.stride % alignment != 0 ||
        !is_aligned(to.dst)) {
      return false;
    }
    if (to.dtype == DType::f32) {
      return to.epilogue == Epilogue::store || to.epilogue == Epilogue::accumulate;
    }
    // cuBLASLt's GELU may be of a fast tanh, some bf16 places off.
    return to.dtype == dtype && to.bias == nullptr &&
           (to.epilogue == Epilogue::store || to.epilogue == Epilogue::relu);
  }
};

class Product {
 public:
  Product(const Context& gpu, const Job& job, std::byte* scratch)
      : gpu_(gpu), job_(job), plan_(gpu, job), scratch_(scratch) {}

  void run() const {
    if (plan_.copies_x) {
      if (plan_.dtype == DType::f32) {
        copy<float>();
      } else {
        copy<std::uint16_t>();
      }
    }
    const std::int64_t out = job_.blocks.out;
    for (std::int64_t first = 0; first < out; first += plan_.piece_columns) {
      run_piece(first, std::min(plan_.piece_columns, out - first));
    }
  }

 private:
  bool to_f16() const { return plan_.dtype == DType::f16 && job_.blocks.dtype == DType::bf16; }

  template <typename T>
  void copy() const {
    constexpr unsigned threads = 256;
    launch("copy_rows", copy_rows<T>,
           {.blocks = dim3(static_cast<unsigned>(divide_up(job_.rows * plan_.depth, threads))),
            .threads = dim3(threads)},
           gpu_.stream, static_cast<const T*>(job_.x), job_.x_stride, job_.rows, job_.blocks.in,
           reinterpret_cast<T*>(scratch_ + plan_.x), plan_.depth, to_f16());
  }

  void run_piece(std::int64_t first, std::int64_t columns) const {
    const Output to = job_.output.from_column(first);
    unpack(job_.weight, job_.format, job_.blocks, first, columns);
    // What is padded beyond the last column is computed too, in scratch memory only.
    const std::int64_t computed = plan_.straight ? columns : round_up(columns, 8);
    Gemm gemm{.rows = job_.rows,
              .in = plan_.depth,
              .out = computed,
              .dtype = plan_.dtype,
              .x = plan_.copies_x ? scratch_ + plan_.x : job_.x,
              .x_stride = plan_.copies_x ? plan_.depth : job_.x_stride,
              .weight = scratch_ + plan_.weight,
              .weight_stride = plan_.depth,
              .epilogue = plan_.epilogue(job_)};
    if (plan_.straight) {
      gemm.y = to.dst;
      gemm.y_dtype = to.dtype;
      gemm.y_stride = to.stride;
      if (plan_.may_add_bias(job_)) gemm.bias = to.bias;
      if (gpu_.blas->multiply(gemm, gpu_.stream) || to.bias == nullptr) return;
      Output add_bias = to;
      add_bias.epilogue = Epilogue::store;
      finish(gpu_, {static_cast<const float*>(to.dst), nullptr, 1, 0, to.stride}, add_bias,
             job_.rows, columns);
      return;
    }
    auto* y = reinterpret_cast<float*>(scratch_ + plan_.y);
    auto* gate_y = reinterpret_cast<float*>(scratch_ + plan_.gate_y);
    gemm.y = y;
    gemm.y_stride = plan_.piece_columns;
    gpu_.blas->multiply(gemm, gpu_.stream);
    if (job_.output.gated) {
      unpack(job_.gate, job_.gate_format, job_.gate_blocks, first, columns);
      gemm.y = gate_y;
      gpu_.blas->multiply(gemm, gpu_.stream);
    }
    finish(gpu_, {y, gate_y, 1, 0, plan_.piece_columns}, to, job_.rows, columns);
  }

  /// `columns` columns of a packed weight from `first` on, a multiple of 64, into rows of
  /// plan_.depth; up to a multiple of 64 of them.
  void unpack(const std::byte* packed, const WeightFormat& format, const PackedBlocks& blocks,
              std::int64_t first, std::int64_t columns) const {
    const std::int64_t strips = divide_up(columns, strip_columns);
    std::byte* plain = scratch_ + plan_.weight;
    if (!format.is_plain()) {
      if (plan_.dtype == DType::f32) {
        unpack_codes_of<float>(packed, format, first, strips, plain);
      } else {
        unpack_codes_of<std::uint16_t>(packed, format, first, strips, plain);
      }
    } else if (blocks.is_strips()) {
      const std::int64_t depth = round_up(blocks.in, step_depth);
      launch("unpack_strips", unpack_strips,
             {.blocks = dim3(static_cast<unsigned>(divide_up(depth, 2 * piece_pairs)),
                             static_cast<unsigned>(strips)),
              .threads = dim3(block_threads)},
             gpu_.stream, packed, depth, first / strip_columns,
             reinterpret_cast<std::uint32_t*>(plain), plan_.depth, to_f16());
    } else if (plan_.dtype == DType::f32) {
      unpack_any<float>(packed, blocks, first, strips, plain);
    } else {
      unpack_any<std::uint16_t>(packed, blocks, first, strips, plain);
    }
  }

  template <typename T>
  void unpack_codes_of(const std::byte* packed, const WeightFormat& format, std::int64_t first,
                       std::int64_t strips, std::byte* plain) const {
    const quantized::StripLayout layout(format, job_.blocks.in);
    launch("unpack_codes", unpack_codes<T>,
           {.blocks = dim3(static_cast<unsigned>(divide_up(plan_.depth, 8 * unpacked_words)),
                           static_cast<unsigned>(strips)),
            .threads = dim3(static_cast<unsigned>(strip_columns), unpacked_words)},
           gpu_.stream, layout, format, packed, job_.blocks.in, first / strip_columns,
           reinterpret_cast<T*>(plain), plan_.depth, to_f16());
  }

  template <typename T>
  void unpack_any(const std::byte* packed, const PackedBlocks& blocks, std::int64_t first,
                  std::int64_t strips, std::byte* plain) const {
    const std::int64_t columns = strips * strip_columns;
    launch("unpack_blocks", unpack_blocks<T>,
           {.blocks = dim3(static_cast<unsigned>(divide_up(plan_.depth, square)),
                           static_cast<unsigned>(divide_up(columns, square))),
            .threads = dim3(square, square_rows)},
           gpu_.stream, blocks, reinterpret_cast<const T*>(packed), first, columns,
           reinterpret_cast<T*>(plain), plan_.depth, to_f16());
  }

  const Context& gpu_;
  const Job& job_;
  ProductPlan plan_;
  std::byte* scratch_;
};

/// A call without rows has nothing to compute, nor need its weights be any.
template <typename Call>
void run(const Context& gpu, const Call& call, std::byte* scratch) {
  if (call.rows == 0) return;
  const Job job = job_of(call);
  if (StripPlan::serves(gpu, job)) {
    run_strips(gpu, job, scratch);
  } else {
    Product(gpu, job, scratch).run();
  }
}

template <typename Call>
std::size_t scratch_bytes(const Context& gpu, const Call& call) {
  if (call.rows == 0) return 0;
  const Job job = job_of(call);
  return StripPlan::serves(gpu, job) ? StripPlan(gpu, job).scratch_bytes
                                     : ProductPlan(gpu, job).layout.bytes();
}

}  // namespace

void linear(const Context& gpu, const LinearCall& call, std::byte* scratch) {
  run(gpu, call, scratch);
}
std::size_t linear_scratch_bytes(const Context& gpu, const LinearCall& call) {
  return scratch_bytes(gpu, call);
}

void gated_linear(const Context& gpu, const GatedLinearCall& call, std::byte* scratch) {
  run(gpu, call, scratch);
}
std::size_t linear_scratch_bytes(const Context& gpu, const GatedLinearCall& call) {
  return scratch_bytes(gpu, call);
}

}  // namespace sluice::cuda
