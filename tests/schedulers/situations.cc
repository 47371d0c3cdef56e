#include "tests/schedulers/situations.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "perfmodels/task.h"

namespace sluice::test {
namespace {

std::int64_t pages_for(std::int64_t tokens) { return (tokens + page_tokens - 1) / page_tokens; }

class Draw {
 public:
  Draw(std::mt19937_64& random, const SituationRange& range) : random_(random), range_(range) {}

  Situation situation() {
    // Lengths are alike in some situations, so that ties are there.
    same_context_ = chance(0.2) ? from_1_to(range_.most_context_tokens) : 0;
    has_priorities_ = chance(0.3);
    shares_ = chance(0.3);
    Situation now{.now_s = uniform() * 1000,
                  .waiting = {},
                  .running = {},
                  .pools = {},
                  .free_sequences = range_.has_room ? 64 : below(32),
                  .max_batch_tokens = 0,
                  .prefill_chunk_tokens = one_of({16, 64, 512, 2048, 1 << 20}),
                  .max_skips = one_of({3, 16})};
    const std::int64_t count = below(range_.most_requests + 1);
    const double waits = uniform();
    for (std::int64_t id = 0; id < count; ++id) {
      if (chance(waits)) {
        now.waiting.push_back(waiting(id));
      } else {
        now.running.push_back(running(id, now.max_skips));
      }
    }
    std::ranges::stable_sort(now.waiting, {}, &RequestView::priority);
    const std::int64_t least = std::ssize(now.running) + 2 * fewest_prompt_rows;
    now.max_batch_tokens = one_of({least, least + below(200), least + 832, least + 20'480,
                                   std::numeric_limits<std::int64_t>::max()});
    if (!range_.has_room && chance(0.03))  // fewer than an engine has: a policy goes by the number
      now.max_batch_tokens = 1 + below(least);
    for (const Tier tier : {Tier::hbm, Tier::ddr}) {
      if (has(tier)) now.pools.push_back(pool(tier, now));
    }
    return now;
  }

 private:
  double uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }
  bool chance(double probability) { return uniform() < probability; }
  std::int64_t below(std::int64_t limit) {
    return std::uniform_int_distribution<std::int64_t>(0, limit - 1)(random_);
  }
  std::int64_t one_of(std::initializer_list<std::int64_t> values) {
    return values.begin()[below(std::ssize(values))];
  }
  /// As many small numbers as large ones, by their logarithm.
  std::int64_t from_1_to(std::int64_t most) {
    return std::clamp<std::int64_t>(
        std::llround(std::exp(uniform() * std::log(static_cast<double>(most)))), 1, most);
  }
  bool has(Tier tier) const {
    return range_.pools == Pools::both || (range_.pools == Pools::hbm) == (tier == Tier::hbm);
  }

  RequestView request(std::int64_t id) {
    RequestView view{.id = id};
    view.kv = !has(Tier::ddr) || (has(Tier::hbm) && chance(0.5)) ? Tier::hbm : Tier::ddr;
    view.arrival_s = static_cast<double>(id);
    if (has_priorities_) view.priority = static_cast<int>(below(3)) - 1;
    return view;
  }
  std::int64_t tokens() {
    return same_context_ > 0 ? same_context_ : from_1_to(range_.most_context_tokens);
  }

  RequestView waiting(std::int64_t id) {
    RequestView view = request(id);
    view.kv = has(Tier::hbm) ? Tier::hbm : Tier::ddr;
    const std::int64_t prompt = tokens();
    if (range_.recomputing && chance(0.1)) view.drawn_tokens_left = below(100);
    view.prompt_tokens_left = prompt + view.drawn_tokens_left;
    view.pages = pages_for(view.prompt_tokens_left + 1);
    return view;
  }

  RequestView running(std::int64_t id, std::int64_t max_skips) {
    RequestView view = request(id);
    std::int64_t all = tokens();
    if (chance(0.2)) all = pages_for(all) * page_tokens;  // the next token needs a page
    view.context_tokens = all;
    view.pages = pages_for(all + (chance(0.3) ? 1 : 0));
    if (chance(0.3)) view.skips = below(max_skips);
    if (range_.left_out_too_long && chance(0.02)) view.skips = max_skips + below(2);
    if (chance(0.15) && all >= 2 * fewest_prompt_rows) begin_prompt(view);
    if (shares_ && view.context_tokens >= page_tokens)
      view.shared_pages = below(view.context_tokens / page_tokens + 1);
    return view;
  }

  /// Some of its tokens have KV, the others are to come.
  void begin_prompt(RequestView& view) {
    const std::int64_t all = view.context_tokens;
    if (range_.recomputing && chance(0.3)) view.drawn_tokens_left = below(all);
    if (view.drawn_tokens_left > 0 && chance(0.5)) {
      view.prompt_tokens_left = view.drawn_tokens_left;  // the prompt itself is computed
    } else {
      view.drawn_tokens_left = std::min(view.drawn_tokens_left, all / 2);
      const std::int64_t prompt = all - view.drawn_tokens_left;
      const std::int64_t left = fewest_prompt_rows + below(prompt - fewest_prompt_rows + 1);
      view.prompt_tokens_left = left + view.drawn_tokens_left;
    }
    view.context_tokens = all - view.prompt_tokens_left;
    view.pages = pages_for(all + 1);
  }

  PoolView pool(Tier tier, const Situation& now) {
    std::int64_t held = 0;
    for (const RequestView& view : now.running) held += view.kv == tier ? view.pages : 0;
    const std::int64_t enough = range_.most_requests * pages_for(range_.most_context_tokens + 200);
    const std::int64_t free =
        range_.has_room ? 40 * enough : one_of({0, 0, below(8), below(60), below(2000), enough});
    return {.tier = tier, .pages = held + free, .free_pages = free};
  }

  std::mt19937_64& random_;
  const SituationRange& range_;
  std::int64_t same_context_ = 0;
  bool has_priorities_ = false;
  bool shares_ = false;  ///< pages of equal beginnings
};

/// What requests hold and pools have free while orders are followed.
class Ledger {
 public:
  explicit Ledger(const Situation& situation) {
    for (const PoolView& pool : situation.pools) free_[pool.tier] = pool.free_pages;
    for (const RequestView& view : situation.running) requests_[view.id] = view;
    for (const RequestView& view : situation.waiting) requests_[view.id] = view;
  }

  std::string follow(const Schedule& schedule) {
    for (const std::int64_t id : schedule.preemptions)
      free_[requests_.at(id).kv] += requests_.at(id).pages - requests_.at(id).shared_pages;
    for (const Swap& swap : schedule.swaps) {
      RequestView& view = requests_.at(swap.request);
      take(swap.to, view.pages, swap.request, "swap");
      free_[view.kv] += view.pages - view.shared_pages;
      view.kv = swap.to;
    }
    for (const Admission& admission : schedule.admissions) {
      RequestView& view = requests_.at(admission.request);
      view.kv = admission.kv;
      take(view.kv, view.pages, view.id, "admission");
    }
    for (const std::vector<Share>& sub_batch : schedule.sub_batches) {
      for (const Share& share : sub_batch) {
        const RequestView& view = requests_.at(share.request);
        take(view.kv, pages_for(view.context_tokens + share.rows) - view.pages, view.id, "rows");
      }
    }
    return problem_;
  }

 private:
  void take(Tier tier, std::int64_t pages, std::int64_t id, const char* what) {
    if (pages <= 0) return;
    free_[tier] -= pages;
    if (free_[tier] < 0 && problem_.empty())
      problem_ = fmt::format("{} of request {}: {} pages of {} are missing", what, id, -free_[tier],
                             to_string(tier));
  }

  std::map<Tier, std::int64_t> free_;
  std::map<std::int64_t, RequestView> requests_;
  std::string problem_;
};

}  // namespace

Situation random_situation(std::mt19937_64& random, const SituationRange& range) {
  return Draw(random, range).situation();
}

std::string to_text(const Situation& situation) {
  std::string text =
      fmt::format("{} free sequences, {} rows, {} of one, max_skips {}\n", situation.free_sequences,
                  situation.max_batch_tokens, situation.prefill_chunk_tokens, situation.max_skips);
  for (const PoolView& pool : situation.pools)
    text += fmt::format("  {}: {} of {} pages free\n", to_string(pool.tier), pool.free_pages,
                        pool.pages);
  const auto add = [&](const char* what, const std::vector<RequestView>& views) {
    for (const RequestView& view : views)
      text += fmt::format(
          "  {} {}: {} left ({} drawn), context {}, {}, {} pages ({} shared), priority {}, skips "
          "{}\n",
          what, view.id, view.prompt_tokens_left, view.drawn_tokens_left, view.context_tokens,
          to_string(view.kv), view.pages, view.shared_pages, view.priority, view.skips);
  };
  add("waiting", situation.waiting);
  add("running", situation.running);
  return text;
}

std::string to_text(const Schedule& schedule) {
  std::string text = "preempts";
  for (const std::int64_t id : schedule.preemptions) text += fmt::format(" {}", id);
  text += "; swaps";
  for (const Swap& swap : schedule.swaps)
    text += fmt::format(" {}>{}", swap.request, to_string(swap.to));
  text += "; admits";
  for (const Admission& admission : schedule.admissions)
    text += fmt::format(" {}>{}", admission.request, to_string(admission.kv));
  for (const std::vector<Share>& sub_batch : schedule.sub_batches) {
    text += "; runs";
    for (const Share& share : sub_batch)
      text += share.rows == 1 ? fmt::format(" {}", share.request)
                              : fmt::format(" {}({})", share.request, share.rows);
  }
  return text;
}

Schedule sorted(Schedule schedule) {
  std::ranges::sort(schedule.preemptions);
  std::ranges::sort(schedule.swaps, {}, &Swap::request);
  std::ranges::sort(schedule.admissions, {}, &Admission::request);
  for (std::vector<Share>& sub_batch : schedule.sub_batches)
    std::ranges::sort(sub_batch, {}, &Share::request);
  return schedule;
}

std::string page_problem(const Situation& situation, const Schedule& schedule) {
  return Ledger(situation).follow(schedule);
}

}  // namespace sluice::test
