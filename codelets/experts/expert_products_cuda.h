#pragma once

#include <cstddef>
#include <cstdint>

#include "codelets/cuda/device.h"
#include "codelets/cuda/linear_job.h"
#include "codelets/experts/experts_gpu_memory.h"

namespace sluice::cuda {

/// One product of all rows with their experts' weights of a kind: job.rows is not used, and the
/// first expert's weights are job.weight and job.gate, and its biases the output's. Which rows
/// there are stands on the device.
struct ExpertProduct {
  LinearJob job;
  std::int64_t expert_bytes;  ///< from one expert's weights to the next one's; whole cache lines
  const ExpertTile* tiles;    ///< in device memory
  std::int64_t num_tiles;     ///< at most
  std::int64_t tile_rows;     ///< at most
};

/// What of it a tile computes.
struct TileOfExpert {
  const std::byte* weight;
  const std::byte* gate;
  LinearOutput output;
};
__host__ __device__ inline TileOfExpert tile_of_expert(const ExpertTile& tile,
                                                       const std::byte* weight,
                                                       const std::byte* gate,
                                                       std::int64_t expert_bytes,
                                                       LinearOutput output) {
  output.dst = static_cast<std::byte*>(output.dst) +
               static_cast<std::size_t>(tile.first * output.stride) * size_bytes(output.dtype);
  const std::int64_t offset = tile.expert * expert_bytes;
  const auto bias_of_expert = [&](const float* first) {
    return first == nullptr ? nullptr : first + offset / static_cast<std::int64_t>(sizeof(float));
  };
  output.bias = bias_of_expert(output.bias);
  output.gate_bias = bias_of_expert(output.gate_bias);
  return {weight + offset, gate == nullptr ? nullptr : gate + offset, output};
}

/// Strips of bf16 or of codes as they are, by tensor cores, as products of few rows with other
/// weights: a row's bits depend on no other row.
bool expert_strips_serve(const Context& gpu, const LinearJob& job);
/// Tiles of 16 or of 64 rows.
void run_expert_strips(const Context& gpu, const ExpertProduct& product);

/// Any other weights: value by value as f32, added up in the order of the inputs. Tiles of at most
/// 16 rows.
void run_expert_tiles(const Context& gpu, const ExpertProduct& product);

}  // namespace sluice::cuda
