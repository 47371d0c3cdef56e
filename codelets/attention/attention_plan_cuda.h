#pragma once

#include <algorithm>
#include <cstdint>

#include "codelets/attention/attention.h"
#include "codelets/attention/attention_split.h"
#include "codelets/cuda/device.h"
#include "codelets/cuda/workspace_layout.h"
#include "codelets/kv_store/device_kv.h"

namespace sluice {

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

static_assert(std::max({sizeof(AttentionPart), sizeof(AttentionSplitRow), sizeof(AttentionTile)}) <=
              most_attention_entry_bytes);

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

/// How much work there can be, by the tag alone, and the workspace for it.
class AttentionPlan {
 public:
  AttentionPlan(const AttentionArgs& args, LongRuns long_runs, cuda::WorkspaceLayout& layout);

  AttentionWork start(const cuda::Context& gpu, const BatchView& batch, const DeviceKv& kv,
                      std::byte* memory) const;

  const AttentionAmounts& most() const { return most_; }

 private:
  DecoderShape shape_;
  LongRuns long_runs_;
  AttentionAmounts most_;
  std::size_t parts_at_, split_rows_at_, tiles_at_, counts_at_;
};

}  // namespace sluice
