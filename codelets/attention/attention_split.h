#pragma once

#include <algorithm>
#include <cstdint>

#include "codelets/runtime/shape.h"

namespace sluice {

// How attention's CUDA kernels cut a batch up. It knows nothing of CUDA: who plans a GPU's memory
// asks it, too.

/// A sequence with as many new rows goes through tiles, or each of its rows through one block: it
/// fills the GPU without splitting its context.
constexpr std::int64_t rows_worth_a_tile = 4;
/// Queries of a tile; a query is one head of one row, and row i, head g of a group is query
/// i * group_size + g.
constexpr std::int64_t tile_queries = 64;
constexpr std::int64_t min_chunk_tokens = 128;

/// Most chunks that a row's context is cut into: enough blocks for a whole GPU when there is but
/// one row.
constexpr std::int64_t max_chunks_of(const DecoderShape& shape) {
  const std::int64_t chunks = 256 / shape.num_kv_heads;
  return chunks < 8 ? 8 : chunks > 64 ? 64 : chunks;
}

/// Chunk c of a row's context is [c, c + 1) times as many tokens (flash-decoding). By the shape and
/// the row's position alone, so that its bits do not depend on what else there is to do.
constexpr std::int64_t chunk_tokens_of(const DecoderShape& shape, std::int64_t position) {
  const std::int64_t step = max_chunks_of(shape) * min_chunk_tokens;
  return (position / step + 1) * min_chunk_tokens;
}

enum class LongRuns : std::uint8_t { as_tiles, row_by_row };

/// Bytes of an entry of the lists below at most.
constexpr std::int64_t most_attention_entry_bytes = 24;

/// Entries of the lists that a batch is cut into.
struct AttentionAmounts {
  std::int64_t parts = 0;
  std::int64_t slots = 0;  ///< for partial results
  std::int64_t split_rows = 0;
  std::int64_t tiles = 0;
};

/// Slots of rows whose contexts are cut into chunks, `split_tokens` in all.
constexpr std::int64_t most_attention_slots(const DecoderShape& shape, std::int64_t split_rows,
                                            std::int64_t split_tokens) {
  return std::min(split_rows * max_chunks_of(shape), split_rows + split_tokens / min_chunk_tokens);
}

/// The same of all batches of up to so many rows, sequences and context tokens.
constexpr std::int64_t most_attention_slots_up_to(const DecoderShape& shape, std::int64_t rows,
                                                  std::int64_t sequences,
                                                  std::int64_t context_tokens) {
  constexpr std::int64_t few = rows_worth_a_tile - 1;
  return most_attention_slots(shape, std::min(rows, few * sequences), few * context_tokens);
}

/// The most that a batch can come to of so many rows and sequences, whose contexts have so many
/// tokens together.
constexpr AttentionAmounts most_attention_amounts(const DecoderShape& shape, std::int64_t rows,
                                                  std::int64_t sequences,
                                                  std::int64_t context_tokens, LongRuns long_runs) {
  constexpr std::int64_t few = rows_worth_a_tile - 1;
  AttentionAmounts most;
  // With more than `few` rows a sequence on average, at least one has no row that is split.
  most.split_rows = rows > few * sequences ? few * (sequences - 1) : rows;
  const std::int64_t split_tokens = (rows == sequences ? 1 : few) * context_tokens;
  most.slots = most_attention_slots(shape, most.split_rows, split_tokens);
  most.parts = most.slots + (long_runs == LongRuns::row_by_row ? rows : 0);
  if (long_runs == LongRuns::as_tiles && rows > sequences) {
    most.tiles =
        rows * shape.group_size() / tile_queries + std::min(sequences, rows / rows_worth_a_tile);
  }
  return most;
}

}  // namespace sluice
