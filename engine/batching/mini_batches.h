#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "perfmodels/task.h"

namespace sluice {

/// So many sequences at once, each with so many rows at most.
struct IterationSize {
  Phase phase = Phase::decode;
  std::int64_t sequences = 1;
  std::int64_t rows = 1;
};

/// Items in so many equal parts, in order; no part is empty.
template <typename Item>
std::vector<std::vector<Item>> cut_evenly(const std::vector<Item>& items, std::int64_t num_parts) {
  const auto count = static_cast<std::int64_t>(items.size());
  num_parts = std::min(num_parts, count);
  std::vector<std::vector<Item>> parts;
  parts.reserve(static_cast<std::size_t>(num_parts));
  for (std::int64_t i = 0; i < num_parts; ++i)
    parts.emplace_back(items.begin() + count * i / num_parts,
                       items.begin() + count * (i + 1) / num_parts);
  return parts;
}

/// How an iteration's sequences are cut into chains of tasks.
struct MiniBatches {
  std::int64_t asked = 1;  ///< by the policy, or to fit an accelerator
  /// A chain of several sequences has no more: no kernel gets faster by them, and all need memory
  /// for them.
  std::int64_t enough_rows = std::numeric_limits<std::int64_t>::max();

  /// Of prompts, on the CPU alone or beside an accelerator, which has to be kept from waiting for
  /// the next task.
  static constexpr std::int64_t enough_rows_of_prompts(bool accelerated) {
    return accelerated ? 16384 : 2048;
  }

  static MiniBatches of(Phase phase, std::int64_t asked, bool accelerated) {
    MiniBatches result{.asked = asked};
    if (phase == Phase::prefill) result.enough_rows = enough_rows_of_prompts(accelerated);
    return result;
  }

  /// The sequences of each chain, in order; `rows_of` one of them, at least 1.
  template <typename Item, typename RowsOf>
  std::vector<std::vector<Item>> cut(const std::vector<Item>& sequences,
                                     const RowsOf& rows_of) const {
    std::vector<std::vector<Item>> chains;
    for (const std::vector<Item>& part : cut_evenly(sequences, asked)) {
      std::int64_t free_rows = 0;
      for (const Item& sequence : part) {
        const std::int64_t rows = rows_of(sequence);
        if (free_rows < rows) {
          chains.emplace_back();
          free_rows = enough_rows;
        }
        chains.back().push_back(sequence);
        free_rows -= rows;
      }
    }
    return chains;
  }

  /// How many chains, of so many sequences with so many rows each.
  std::int64_t count(std::int64_t sequences, std::int64_t rows) const {
    const std::int64_t parts = std::min(asked, sequences);
    const std::int64_t of_chain = std::max<std::int64_t>(1, enough_rows / rows);
    std::int64_t chains = 0;
    for (std::int64_t i = 0; i < parts; ++i) {
      const std::int64_t in_part = sequences * (i + 1) / parts - sequences * i / parts;
      chains += (in_part - 1) / of_chain + 1;
    }
    return chains;
  }

  /// Rows of a chain at most, of so many sequences with so many rows each, or fewer.
  std::int64_t most_rows(std::int64_t sequences, std::int64_t rows) const {
    const std::int64_t parts = std::min(asked, sequences);
    return std::min((sequences + parts - 1) / parts * rows, std::max(rows, enough_rows));
  }
};

}  // namespace sluice
