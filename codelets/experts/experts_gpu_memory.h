#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "codelets/cuda/workspace_layout.h"
#include "codelets/runtime/shape.h"

namespace sluice {

/// Rows of one expert that a GPU's block multiplies: neighbours in the order by expert.
struct ExpertTile {
  std::int32_t expert = 0;  ///< counted from the task's first one
  std::int32_t first = 0;   ///< entry
  std::int32_t rows = 0;    ///< 0: there is nothing to do
};

/// What a GPU's task has in its workspace for some rows, which go through `num_experts` of the
/// layer's. Knows nothing of CUDA: who plans a GPU's memory asks it, too. An entry is a row at one
/// of its experts, as the CPU has it.
struct ExpertsGpuMemory {
  /// Rows that are computed together: of Qwen3-30B 230 MB.
  static constexpr std::int64_t most_rows = 2048;
  static constexpr std::int64_t fewest_tile_rows = 16;
  static constexpr std::int64_t most_tile_rows = 64;

  std::int64_t num_choices;  ///< entries at most
  std::int64_t num_tiles;    ///< at most, of as few rows as there are
  cuda::WorkspaceLayout layout;
  std::size_t tiles;     ///< ExpertTile [num_tiles]
  std::size_t row_of;    ///< int32 [num_choices], of an entry; -1 behind the last one
  std::size_t entry_of;  ///< int32 [num_choices], of a row's choice; -1: another task's expert
  std::size_t x;         ///< [num_choices, hidden_size], as the normed rows
  std::size_t h;         ///< [num_choices, ffn_size]
  std::size_t y;         ///< [num_choices, hidden_size] f32

  ExpertsGpuMemory(const DecoderShape& shape, const MixtureShape& mixture, std::int32_t num_experts,
                   std::int64_t rows)
      : num_choices(std::min(rows, most_rows) * mixture.experts_per_token),
        num_tiles(most_tiles(num_choices, num_experts, fewest_tile_rows)) {
    const auto matrix = [&](std::int64_t width) {
      return layout.place<std::byte>(num_choices * activation_stride(width, shape.dtype) *
                                     static_cast<std::int64_t>(size_bytes(shape.dtype)));
    };
    tiles = layout.place<ExpertTile>(num_tiles);
    row_of = layout.place<std::int32_t>(num_choices);
    entry_of = layout.place<std::int32_t>(num_choices);
    x = matrix(shape.hidden_size);
    h = matrix(shape.ffn_size);
    y = layout.place<float>(num_choices * shape.hidden_size);
  }

  /// Each expert's last tile may have a row alone.
  static constexpr std::int64_t most_tiles(std::int64_t num_choices, std::int32_t num_experts,
                                           std::int64_t tile_rows) {
    const std::int64_t not_full = std::min<std::int64_t>(num_choices, num_experts);
    return (num_choices + not_full * (tile_rows - 1)) / tile_rows;
  }
};

}  // namespace sluice
