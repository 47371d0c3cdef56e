#pragma once

#include <algorithm>
#include <cstdint>

#include "perfmodels/task.h"

namespace sluice {

/// How the CPU's kernel cuts the attention of new rows into jobs, which threads take one after the
/// other: what it does, and what its measurements are interpolated by.
struct AttentionJobs {
  /// Bytes of one page that one job reads, if there are as many: the hardware foresees what lies
  /// behind one another, and each jump costs what it fetched in vain.
  static constexpr std::int64_t page_bytes = 128 << 10;
  /// A context that is no longer is one chunk: starting on fewer tokens costs much.
  static constexpr std::int64_t whole_tokens = 256;

  /// KV heads of one job, of a model that has `num_kv_heads` and whose pages have `all_page_bytes`.
  static constexpr std::int64_t heads(std::int64_t num_kv_heads, std::int64_t all_page_bytes) {
    return std::clamp<std::int64_t>(page_bytes * num_kv_heads / all_page_bytes, 1, num_kv_heads);
  }
  /// Jobs that a chunk of a row's context is.
  static constexpr std::int64_t of_chunk(std::int64_t num_kv_heads, std::int64_t all_page_bytes) {
    const std::int64_t each = heads(num_kv_heads, all_page_bytes);
    return (num_kv_heads + each - 1) / each;
  }
};

}  // namespace sluice
