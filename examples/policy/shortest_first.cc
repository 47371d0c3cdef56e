// Who runs next: the request with the shortest prompt. All KV in one memory, no request makes way.
#include <algorithm>

#include "schedulers/plugin.h"

namespace {

std::int64_t pages_of(std::int64_t tokens) {
  return (tokens + sluice::page_tokens - 1) / sluice::page_tokens;
}

class ShortestFirst : public sluice::Policy {
 public:
  std::optional<sluice::Schedule> schedule(const sluice::Situation& now) override {
    if (now.pools.size() != 1) return std::nullopt;  // the engine's own rule
    const sluice::PoolView& pool = now.pools.front();
    std::int64_t free_pages = pool.free_pages;
    std::int64_t rows_left = now.max_batch_tokens;
    std::int64_t sequences = now.free_sequences;
    sluice::Schedule schedule;
    std::vector<sluice::Share> all;
    const auto run = [&](const sluice::RequestView& request) {
      const std::int64_t rows = request.rows_within(std::min(rows_left, now.prefill_chunk_tokens));
      const std::int64_t missing =
          std::max<std::int64_t>(0, pages_of(request.context_tokens + rows) - request.pages);
      if (rows == 0 || missing > free_pages) return;
      free_pages -= missing;
      rows_left -= rows;
      all.push_back({request.id, rows});
    };
    for (const sluice::RequestView& request : now.running) run(request);
    if (all.empty() && !now.running.empty()) return std::nullopt;  // somebody has to make way
    std::vector<sluice::RequestView> waiting = now.waiting;
    std::ranges::stable_sort(waiting, {}, &sluice::RequestView::prompt_tokens_left);
    for (const sluice::RequestView& request : waiting) {
      if (sequences == 0 || request.pages > free_pages || request.rows_within(rows_left) == 0)
        break;
      --sequences;
      free_pages -= request.pages;
      schedule.admissions.push_back({request.id, pool.tier});
      run(request);
    }
    if (!all.empty()) schedule.sub_batches.push_back(std::move(all));
    return schedule;
  }
};

}  // namespace

SLUICE_POLICY(ShortestFirst, "shortest-first", "the shortest prompt runs next");
