#include <algorithm>
#include <cmath>

#include "codelets/cuda/linear_finish.h"

namespace sluice::cuda {
namespace {

/// Four columns from `column` on, of an output whose rows are aligned.
__device__ void finish_four(const LinearOutput& to, std::int64_t row, std::int64_t column,
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

__device__ float4 sum_parts_of_four(const float* part, const LinearParts& parts, std::int64_t at) {
  float4 sum = make_float4(0, 0, 0, 0);
  for (std::int64_t i = 0; i < parts.count; ++i) {
    const float4 more = *reinterpret_cast<const float4*>(part + i * parts.elements + at);
    sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
  }
  return sum;
}

/// One thread for four neighbours; all rows are aligned.
__global__ void finish_parts_in_fours(LinearParts parts, LinearOutput to, std::int64_t columns) {
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
__global__ void finish_parts(LinearParts parts, LinearOutput to, std::int64_t columns) {
  let_next_start();
  wait_for_last();
  const std::int64_t column = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const std::int64_t row = blockIdx.y;
  if (column >= columns) return;
  const std::int64_t at = row * parts.stride + column;
  const float y = sum_parts(parts.y, parts, at);
  put_finished(to, row, column, y, to.gated ? sum_parts(parts.gate, parts, at) : 0);
}

}  // namespace

void finish_linear(const Context& gpu, const LinearParts& parts, const LinearOutput& to,
                   std::int64_t rows, std::int64_t columns) {
  const bool in_fours = columns % 4 == 0 && parts.stride % 4 == 0 && parts.elements % 4 == 0 &&
                        to.stride % 4 == 0 && is_aligned(parts.y) && is_aligned(parts.gate) &&
                        is_aligned(to.dst);
  constexpr unsigned threads = 128;
  const std::int64_t of_block = std::int64_t{threads} * (in_fours ? 4 : 1);
  constexpr std::int64_t most_rows = 65535;  // of a grid
  for (std::int64_t first = 0; first < rows; first += most_rows) {
    LinearParts from = parts;
    from.y += first * parts.stride;
    if (to.gated) from.gate += first * parts.stride;
    LinearOutput into = to;
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

}  // namespace sluice::cuda
