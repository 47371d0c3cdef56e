#pragma once

#include <random>
#include <span>

#include "schedulers/schedule.h"

namespace sluice::test {

/// Which pools of KV a random situation has.
enum class Pools : std::uint8_t { both, hbm, ddr };

/// What random situations are drawn from.
struct SituationRange {
  Pools pools = Pools::both;
  std::int64_t most_requests = 60;
  std::int64_t most_context_tokens = 4000;
  /// Some requests were drawn tokens of, and gave their KV up: these are computed in small pieces.
  bool recomputing = true;
  /// Some requests have more skips than are allowed.
  bool left_out_too_long = true;
  /// So that nobody has to make way, and admission fails for nothing.
  bool has_room = false;
};

/// A situation that the engine could come to: what requests hold, and what is free, adds up to the
/// pools; pieces of prompts obey RequestView::rows_within().
Situation random_situation(std::mt19937_64& random, const SituationRange& range = {});

/// In words, for a test that fails.
std::string to_text(const Situation& situation);
std::string to_text(const Schedule& schedule);

/// The schedule with what has no order sorted: requests within a sub-batch, and orders of a kind.
Schedule sorted(Schedule schedule);

/// What of a schedule the pools have no room for, its orders taken one by one, in words; empty:
/// nothing. No page has two holders.
std::string page_problem(const Situation& situation, const Schedule& schedule);

}  // namespace sluice::test
