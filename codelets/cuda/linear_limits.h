#pragma once

#include <algorithm>
#include <cstdint>

namespace sluice::cuda {

// How much of a linear map the CUDA kernels have in scratch memory at once. It knows nothing of
// CUDA: who plans a GPU's memory asks it, too.

/// Columns of a packed weight's strip.
constexpr std::int64_t weight_strip_columns = 64;

/// Up to so many rows are multiplied by strips as they are packed: by blocks of two strips each, as
/// many as run at once, which are up to two a multiprocessor.
constexpr std::int64_t most_strip_rows = 64;
constexpr int strips_per_block = 2;
constexpr std::int64_t strip_blocks_at_once = 2;

/// More rows, by pieces of the weight's columns, each unpacked: pieces of so many bytes, or of so
/// many columns where that is more, and no more than the most; and with a product of so many bytes.
constexpr std::int64_t piece_weight_bytes = std::int64_t{32} << 20;
constexpr std::int64_t most_piece_weight_bytes = std::int64_t{128} << 20;
constexpr std::int64_t enough_piece_columns = 2048;
constexpr std::int64_t piece_product_bytes = std::int64_t{64} << 20;

/// No less than linear_scratch_bytes() of any call with up to `rows` rows of [out, in] weights:
/// `matrices` is 2 of a gated pair, else 1.
constexpr std::int64_t most_linear_scratch_bytes(std::int64_t rows, std::int64_t in,
                                                 std::int64_t out, std::int64_t matrices,
                                                 std::int64_t element_bytes,
                                                 std::int64_t num_multiprocessors) {
  constexpr std::int64_t float_bytes = 4;
  constexpr std::int64_t alignments = 8 * 256;  // of arrays in a workspace
  const std::int64_t padded_in = in + weight_strip_columns;
  const std::int64_t padded_out = out + weight_strip_columns;
  const std::int64_t piece = std::clamp(enough_piece_columns * padded_in * element_bytes,
                                        piece_weight_bytes, most_piece_weight_bytes);
  // A piece has a strip at least, however many rows there are.
  const std::int64_t product =
      std::max(piece_product_bytes, rows * weight_strip_columns * float_bytes);
  const std::int64_t pieces =
      std::min(std::max(piece, weight_strip_columns * padded_in * element_bytes),
               padded_in * padded_out * element_bytes) +
      matrices * std::min(product, rows * padded_out * float_bytes);
  const std::int64_t strip_columns_at_once =
      strip_blocks_at_once * num_multiprocessors * strips_per_block * weight_strip_columns;
  const std::int64_t strips = matrices * std::min(rows, most_strip_rows) * float_bytes *
                              (strip_columns_at_once + padded_out);
  return rows * padded_in * element_bytes + std::max(pieces, strips) + alignments;
}

}  // namespace sluice::cuda
