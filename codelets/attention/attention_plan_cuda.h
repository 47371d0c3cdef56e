#pragma once

#include <cstdint>

#include "codelets/attention/attention.h"
#include "codelets/cuda/device.h"
#include "codelets/cuda/workspace_layout.h"
#include "codelets/kv_store/device_kv.h"

namespace sluice {

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

/// A part of a row's context, for one block a KV head.
struct AttentionPart {
  const std::int32_t* pages;  ///< of the sequence, for DeviceKv::at()
  std::int32_t row;
  std::int32_t first_token;
  std::int32_t end_token;
  std::int32_t slot;  ///< of the partial results; -1: this is all that the row sees
};

/// A row whose parts are put together.
struct AttentionSplitRow {
  std::int32_t row;
  std::int32_t first_slot;
  std::int32_t num_slots;
};

/// Neighbouring queries of one sequence, for one block a KV head.
struct AttentionTile {
  const std::int32_t* pages;
  std::int32_t first_row;       ///< of the sequence in the batch
  std::int32_t first_position;  ///< of that row
  std::int32_t first_query;     ///< counted from that row
  std::int32_t end_query;
};

/// What there is to do, found on the device: the host knows the tag only.
struct AttentionWork {
  AttentionPart* parts;
  AttentionSplitRow* split_rows;
  AttentionTile* tiles;
  /// Of the three.
  struct Counts {
    std::int32_t parts, split_rows, tiles;
  };
  Counts* counts;
};

enum class LongRuns : std::uint8_t { as_tiles, row_by_row };

/// How much work there can be, by the tag alone, and the workspace for it.
class AttentionPlan {
 public:
  AttentionPlan(const AttentionArgs& args, LongRuns long_runs, cuda::WorkspaceLayout& layout);

  AttentionWork start(const cuda::Context& gpu, const BatchView& batch, const DeviceKv& kv,
                      std::byte* memory) const;

  std::int64_t max_parts() const { return max_parts_; }
  std::int64_t max_slots() const { return max_slots_; }
  std::int64_t max_split_rows() const { return max_split_rows_; }
  std::int64_t max_tiles() const { return max_tiles_; }

 private:
  DecoderShape shape_;
  LongRuns long_runs_;
  std::int64_t max_split_rows_, max_slots_, max_parts_, max_tiles_ = 0;
  std::size_t parts_at_, split_rows_at_, tiles_at_, counts_at_;
};

}  // namespace sluice
