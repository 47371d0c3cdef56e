#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "perfmodels/placement.h"

namespace sluice {

/// Attention computes a request's rows in another way from so many on, so that a token's KV has
/// different last bits. A prompt therefore comes in pieces of at least so many rows, and drawn
/// tokens whose KV was given up in pieces of fewer.
inline constexpr std::int64_t fewest_prompt_rows = 8;

/// A request that runs or waits, as a policy sees it. Of a request with several outputs each is one
/// of its own.
struct RequestView {
  std::int64_t id = 0;                  ///< by arrival
  std::int64_t prompt_tokens_left = 0;  ///< known tokens without KV; 0: it decodes
  std::int64_t context_tokens = 0;      ///< tokens in its KV cache
  Tier kv = Tier::ddr;                  ///< where its KV lives: that of the first layer
  // Only in a Situation:
  /// Of prompt_tokens_left those at its end that were drawn before the KV was given up.
  std::int64_t drawn_tokens_left = 0;
  /// Running: those that its KV may fill without asking for more. Waiting: those that it has to
  /// get.
  std::int64_t pages = 0;
  /// Running: of these pages those that others hold, too; they do not come free where it leaves.
  std::int64_t shared_pages = 0;
  double arrival_s = 0;  ///< as Situation::now_s counts
  int priority = 0;      ///< lower ones come first
  /// Running: iterations in a row without it, in which one that came later took part.
  std::int64_t skips = 0;

  /// How many rows it can bring to an iteration, at most `most`: no bit of its tokens depends on
  /// how they were cut. 0: so few are not possible.
  std::int64_t rows_within(std::int64_t most) const;
};

/// Where KV lives, in pages of page_tokens tokens, all layers together.
struct PoolView {
  Tier tier = Tier::ddr;
  std::int64_t pages = 0;       ///< in all
  std::int64_t free_pages = 0;  ///< that nobody holds or was promised
};

/// What Policy::schedule() decides by.
struct Situation {
  /// Whether one iteration is under way. Only then the answer may be without sub-batches: it is
  /// asked again when that one has ended.
  bool under_way = false;
  double now_s = 0;  ///< of a clock that starts anywhere; in simulations the simulated machine's
  /// In the order in which the engine would admit them: by priority, then by arrival. While one was
  /// passed by max_overtakes later ones, those alone.
  std::vector<RequestView> waiting = {};
  std::vector<RequestView> running = {};  ///< that can compute rows, by id
  /// As memory was planned, HBM before others.
  std::vector<PoolView> pools = {};
  std::int64_t free_sequences = 0;        ///< so many more requests can run
  std::int64_t max_batch_tokens = 0;      ///< rows of an iteration
  std::int64_t prefill_chunk_tokens = 0;  ///< rows of one request, at most
  std::int64_t max_skips = 0;  ///< a request with so many is put into the iteration by the engine
};

/// A request whose KV goes to another tier's pool, before the iteration; there it goes on.
struct Swap {
  std::int64_t request = 0;
  Tier to = Tier::ddr;
  bool operator==(const Swap&) const = default;
};

/// A request that runs from now on, its KV in this tier's pool.
struct Admission {
  std::int64_t request = 0;
  Tier kv = Tier::ddr;
  bool operator==(const Admission&) const = default;
};

/// A request's part in an iteration.
struct Share {
  std::int64_t request = 0;
  std::int64_t rows = 1;  ///< see RequestView::rows_within()
  bool operator==(const Share&) const = default;
};

/// What happens next, in this order: preemptions, swaps and admissions as they stand here, then one
/// iteration of the sub-batches. Each needs its pages when its turn comes.
struct Schedule {
  /// Running requests that give up their KV and wait again: their tokens are computed anew.
  std::vector<std::int64_t> preemptions = {};
  std::vector<Swap> swaps = {};
  std::vector<Admission> admissions = {};
  /// Requests that share a chain of tasks.
  std::vector<std::vector<Share>> sub_batches = {};
  bool operator==(const Schedule&) const = default;
};

inline std::int64_t RequestView::rows_within(std::int64_t most) const {
  if (prompt_tokens_left == 0) return std::min<std::int64_t>(1, most);
  const std::int64_t of_prompt = prompt_tokens_left - drawn_tokens_left;
  if (of_prompt == 0) return std::min({prompt_tokens_left, fewest_prompt_rows - 1, most});
  if (most >= of_prompt) return of_prompt;
  const std::int64_t rows = std::min(most, of_prompt - fewest_prompt_rows);
  return rows < fewest_prompt_rows ? 0 : rows;
}

}  // namespace sluice
