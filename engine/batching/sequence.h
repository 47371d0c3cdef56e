#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/batching/kv_pool.h"
#include "engine/requests/request.h"
#include "schedulers/schedule.h"

namespace sluice {

/// Rows that a sequence brings to an iteration, and whether it draws a token behind them.
struct Piece {
  std::int64_t rows = 0;
  bool draws = false;
  bool of_known_tokens = false;  ///< not of the one that was drawn last
};

/// One output of a request, from its arrival to its end.
///
/// Its known tokens are the prompt's, and those drawn tokens that have been looked at. Where KV was
/// given up, known tokens pass through the model again.
struct Sequence {
  std::shared_ptr<const Request> request;
  std::int64_t output = 0;  ///< which of the request's
  std::int64_t id = 0;      ///< by arrival; for the policy, too
  double arrival_s = 0;
  double admitted_s = 0;
  bool was_admitted = false;
  double first_token_s = 0;
  double last_token_s = 0;
  std::int64_t overtakes = 0;        ///< requests that came later and were admitted before it
  std::int64_t taking_part_in = -1;  ///< the last iteration that it was planned for
  std::int64_t skips = 0;            ///< iterations in a row without it, with one that came later

  bool admitted = false;
  // While it is:
  std::int32_t slot = 0;
  std::size_t cohort = 0;
  std::vector<std::int32_t> pages;
  std::int64_t promised_pages = 0;  ///< `pages` may become as many
  KvPool::Beginning beginning = KvPool::nothing;
  std::int64_t kept_pages = 0;  ///< of the prompt, that the pool knows
  bool fresh = true;            ///< nothing was submitted since it was admitted

  // What has been submitted so far:
  std::int64_t cached_tokens = 0;  ///< KV written by submitted iterations
  std::int64_t drawn_tokens = 0;   ///< tokens that submitted iterations draw
  std::int64_t num_in_flight = 0;  ///< submitted iterations whose tokens were not looked at
  // What is known:
  std::vector<TokenLogprobs> prompt_logprobs;  ///< where they are asked for, until the first token
  std::vector<std::int32_t> token_ids;
  std::int64_t num_received = 0;    ///< token_ids, and the token that ended it
  std::int64_t max_new_tokens = 0;  ///< the request's, limited by the context
  /// Known tokens when it was admitted: those without KV are computed before it draws.
  std::int64_t known_at_admission = 0;
  bool finished = false;

  std::int64_t prompt_size() const { return std::ssize(request->prompt_tokens); }
  std::int64_t known_tokens() const { return prompt_size() + std::ssize(token_ids); }
  /// It computes known tokens, and not yet the one that was drawn last.
  bool in_prefill() const { return cached_tokens < known_at_admission; }
  std::int64_t tokens_left() const {
    return std::max<std::int64_t>(0, known_at_admission - cached_tokens);
  }
  /// One of a request's outputs tells them, once.
  bool wants_prompt_logprobs() const {
    return request->prompt_logprobs && output == 0 && num_received == 0;
  }
  bool wants_iteration() const {
    return !finished && (in_prefill() || drawn_tokens < max_new_tokens);
  }
  /// What it is to a policy that knows the present iteration alone.
  RequestView view(Tier kv) const {
    return {.id = id,
            .prompt_tokens_left = tokens_left(),
            .context_tokens = cached_tokens,
            .kv = kv,
            .drawn_tokens_left = std::min(
                tokens_left(), std::max<std::int64_t>(0, known_at_admission - prompt_size())),
            .arrival_s = arrival_s,
            .priority = request->priority,
            .skips = skips};
  }
  /// What the next iteration may compute within so many rows; no rows: they are too few.
  Piece next_piece(std::int64_t most_rows) const {
    const std::int64_t rows = view(Tier::ddr).rows_within(most_rows);
    return {.rows = rows,
            .draws = rows == std::max<std::int64_t>(1, tokens_left()),
            .of_known_tokens = in_prefill()};
  }
  /// Pages that it may still take of those that were promised.
  std::int64_t owed_pages() const {
    return std::max<std::int64_t>(0, promised_pages - std::ssize(pages));
  }
  /// It may be admitted again.
  void leave_batch() {
    admitted = false;
    promised_pages = kept_pages = cached_tokens = 0;
    beginning = KvPool::nothing;
    fresh = true;
  }
};

}  // namespace sluice
