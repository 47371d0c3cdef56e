#include "schedulers/neo/iteration.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "perfmodels/task.h"

namespace sluice {
namespace {

using Requests = std::vector<const RequestView*>;

std::int64_t pages_for(std::int64_t tokens) { return (tokens + page_tokens - 1) / page_tokens; }

/// Pages that it needs for one token more.
std::int64_t next_pages(const RequestView& request) {
  return std::max(request.pages, pages_for(request.context_tokens + 1));
}
std::int64_t missing_pages(const RequestView& request) {
  return next_pages(request) - request.pages;
}

/// That come free when it leaves.
std::int64_t released_pages(const RequestView& request) {
  return request.pages - request.shared_pages;
}

/// The last one makes way first.
auto precedence(const RequestView* request) { return std::pair(request->priority, request->id); }

/// A prompt's part in the first sub-batch.
struct Prompt {
  const RequestView* request = nullptr;
  std::int64_t rows = 0;
  std::optional<Tier> admitted_to;  ///< nothing: it runs already
};

/// What the two sub-batches have, as their times see it.
struct Load {
  std::int64_t prompts = 0;
  std::int64_t prompt_rows = 0;
  double prompt_attention_s = 0;
  std::int64_t gpu_decodes = 0;
  std::int64_t gpu_tokens = 0;  ///< that they see together
  std::array<std::int64_t, 2> cpu_decodes{};
  std::array<std::int64_t, 2> cpu_tokens{};

  std::int64_t rows(std::size_t sub_batch) const {
    return cpu_decodes[sub_batch] + (sub_batch == 0 ? prompt_rows + gpu_decodes : 0);
  }
  std::int64_t requests() const { return prompts + gpu_decodes + cpu_decodes[0] + cpu_decodes[1]; }
};

class Iteration {
 public:
  Iteration(LayerTimes& times, const Situation& now, Hiding hiding)
      : times_(times),
        now_(now),
        hiding_(hiding),
        rows_left_(now.max_batch_tokens),
        free_sequences_(now.free_sequences) {
    for (const PoolView& pool : now.pools) (pool.tier == Tier::hbm ? gpu_ : cpu_) = pool;
  }

  Schedule decide() {
    sort_running();
    give_up_cpu_requests();
    schedule_gpu_requests();  // step 2
    schedule_prompts();       // step 3
    if (load_.prompts + load_.gpu_decodes == 0) {
      split_cpu_requests();
    } else {
      schedule_cpu_requests();  // step 4
      choose();                 // steps 5 and 6
    }
    write_down();
    return std::move(schedule_);
  }

 private:
  void sort_running() {
    for (const RequestView& request : now_.running) {
      if (request.prompt_tokens_left > 0) {
        started_.push_back(&request);
      } else {
        (request.kv == Tier::hbm ? gpu_requests_ : cpu_requests_).push_back(&request);
      }
    }
    std::ranges::sort(started_, {}, precedence);
    std::ranges::sort(gpu_requests_, {}, precedence);
    sort_cpu_requests();
  }
  void sort_cpu_requests() {
    std::ranges::sort(cpu_requests_, {}, [](const RequestView* request) {
      return std::tuple(-request->skips, precedence(request));
    });
  }

  void give_up(const RequestView& request) {
    schedule_.preemptions.push_back(request.id);
    ++free_sequences_;
  }

  /// As long as the CPU's pool has too few pages for their next tokens.
  void give_up_cpu_requests() {
    std::int64_t missing = 0;
    for (const RequestView* request : cpu_requests_) missing += missing_pages(*request);
    while (missing > cpu_.free_pages) {
      const auto last = std::ranges::max_element(cpu_requests_, {}, precedence);
      missing -= missing_pages(**last);
      cpu_.free_pages += released_pages(**last);
      give_up(**last);
      cpu_requests_.erase(last);
    }
  }

  // Step 2.

  void schedule_gpu_requests() {
    std::int64_t missing = 0;
    for (const RequestView* request : gpu_requests_) missing += missing_pages(*request);
    bool some_made_way = false;
    while (missing > gpu_.free_pages || std::ssize(gpu_requests_) > rows_left_) {
      const RequestView& last = *gpu_requests_.back();
      gpu_requests_.pop_back();
      missing -= missing_pages(last);
      gpu_.free_pages += released_pages(last);
      make_way(last);
      some_made_way = true;
    }
    gpu_.free_pages -= missing;
    if (some_made_way) {
      sort_cpu_requests();
    } else {
      swap_in();
    }
    rows_left_ -= std::ssize(gpu_requests_);
    load_.gpu_decodes = std::ssize(gpu_requests_);
    for (const RequestView* request : gpu_requests_)
      load_.gpu_tokens += request->context_tokens + 1;
  }

  void make_way(const RequestView& request) {
    if (cpu_.free_pages < request.pages) return give_up(request);
    cpu_.free_pages -= request.pages;
    schedule_.swaps.push_back({request.id, cpu_.tier});
    cpu_requests_.push_back(&request);
  }

  void swap_in() {
    std::size_t count = 0;
    for (; count < cpu_requests_.size(); ++count) {
      const RequestView& next = *cpu_requests_[count];
      const std::int64_t used = gpu_.pages - gpu_.free_pages;
      if (used + next_pages(next) > most_used_pages() || std::ssize(gpu_requests_) == rows_left_)
        break;
      gpu_.free_pages -= next_pages(next);
      cpu_.free_pages += released_pages(next);
      schedule_.swaps.push_back({next.id, Tier::hbm});
      gpu_requests_.push_back(&next);
    }
    cpu_requests_.erase(cpu_requests_.begin(),
                        cpu_requests_.begin() + static_cast<std::ptrdiff_t>(count));
  }

  // Step 3.

  std::int64_t rows_within(const RequestView& request) const {
    return request.rows_within(std::min(rows_left_, now_.prefill_chunk_tokens));
  }

  void add_prompt(const RequestView& request, std::int64_t rows, std::optional<Tier> admitted_to) {
    prompts_.push_back({&request, rows, admitted_to});
    rows_left_ -= rows;
    add(prompts_.back(), 1, load_);
  }
  void add(const Prompt& prompt, int sign, Load& load) const {
    load.prompts += sign;
    load.prompt_rows += sign * prompt.rows;
    load.prompt_attention_s +=
        sign * times_.prompt_attention_s(prompt.rows, prompt.request->context_tokens);
  }

  void schedule_prompts() {
    for (const RequestView* request : started_) {
      if (const std::int64_t rows = rows_within(*request); rows > 0)
        add_prompt(*request, rows, std::nullopt);
    }
    bool to_cpu = gpu_.pages == 0;
    for (const RequestView& request : now_.waiting) {
      const std::int64_t rows = rows_within(request);
      if (free_sequences_ == 0 || rows == 0) return;
      to_cpu = to_cpu || !finds_room_in_hbm(request);
      const std::int64_t all =
          to_cpu ? std::numeric_limits<std::int64_t>::max() : now_.prefill_chunk_tokens;
      const bool whole = rows == request.rows_within(all);
      PoolView& pool = to_cpu ? cpu_ : gpu_;
      if (to_cpu && !may_go_to_cpu(request, rows, whole)) return;
      pool.free_pages -= request.pages;
      --free_sequences_;
      add_prompt(request, rows, pool.tier);
      if (!whole) return;
    }
  }

  /// Where some attend on the CPU, HBM keeps room for what runs to grow.
  bool finds_room_in_hbm(const RequestView& request) const {
    const std::int64_t used = gpu_.pages - gpu_.free_pages + request.pages;
    return used <= (cpu_requests_.empty() ? gpu_.pages : most_used_pages());
  }
  std::int64_t most_used_pages() const { return gpu_.pages * 95 / 100; }

  bool may_go_to_cpu(const RequestView& request, std::int64_t rows, bool whole) {
    if (!whole && !prompts_.empty()) return false;
    const std::int64_t in_hbm = gpu_.pages - gpu_.free_pages;
    if (cpu_.free_pages - request.pages < in_hbm) return false;
    if (hiding_ == Hiding::not_asked || request.pages > gpu_.pages) return true;
    const auto waits_long = [&](const RequestView* other) {
      return other->skips >= now_.max_skips / 2;
    };
    if (std::ranges::any_of(cpu_requests_, waits_long)) return false;
    return times_.cpu_attention_s(1, request.prompt_tokens_left + 1) <=
           times_.linear_s(load_.rows(0) + rows);
  }

  // Steps 4 to 6.

  /// What remains of the time that hides the CPU's work for a sub-batch: r0 and r1.
  std::array<double, 2> remaining_s(const Load& load) {
    const auto cpu_s = [&](std::size_t sub_batch) {
      return times_.cpu_attention_s(load.cpu_decodes[sub_batch], load.cpu_tokens[sub_batch]);
    };
    return {times_.linear_s(load.rows(1)) + gpu_attention_s(load) - cpu_s(0),
            times_.linear_s(load.rows(0)) - cpu_s(1)};
  }
  bool is_hidden(const Load& load) {
    const std::array<double, 2> remaining = remaining_s(load);
    return remaining[0] >= 0 && remaining[1] >= 0;
  }
  double gpu_attention_s(const Load& load) {
    return times_.gpu_attention_s(load.gpu_decodes, load.gpu_tokens) + load.prompt_attention_s;
  }
  /// T, of one layer.
  double seconds(const Load& load) {
    const double linear_s = times_.linear_s(load.rows(0));
    const double behind_s = times_.linear_s(load.rows(1)) + gpu_attention_s(load);
    const std::array<double, 2> remaining = remaining_s(load);
    return linear_s + std::max(0.0, -remaining[1]) + behind_s + std::max(0.0, -remaining[0]);
  }

  static Load with(Load load, const RequestView& request, std::size_t sub_batch) {
    ++load.cpu_decodes[sub_batch];
    load.cpu_tokens[sub_batch] += request.context_tokens + 1;
    return load;
  }
  void add_cpu_request(const RequestView& request, const Load& load, std::size_t sub_batch) {
    load_ = load;
    cpu_.free_pages -= missing_pages(request);
    --rows_left_;
    sub_batches_[sub_batch].push_back(&request);
  }
  std::size_t where_more_remains(const std::array<double, 2>& remaining) const {
    const bool first = load_.cpu_decodes[0] + load_.cpu_decodes[1] == 0;
    return first || remaining[1] > remaining[0] ? 1 : 0;
  }
  bool finds_room(const RequestView& request) const {
    return rows_left_ > 0 && missing_pages(request) <= cpu_.free_pages;
  }

  void schedule_cpu_requests() {
    std::int64_t too_many_tokens = std::numeric_limits<std::int64_t>::max();
    std::array<double, 2> remaining = remaining_s(load_);
    for (const RequestView* request : cpu_requests_) {
      const bool was_left_out = request->skips >= now_.max_skips;
      const bool asked = hiding_ == Hiding::required && !was_left_out;
      if (!finds_room(*request) || (asked && request->context_tokens >= too_many_tokens)) continue;
      std::size_t sub_batch = where_more_remains(remaining);
      Load load = with(load_, *request, sub_batch);
      std::array<double, 2> then = remaining_s(load);
      const auto shows = [&] { return asked && std::min(then[0], then[1]) < 0; };
      if (shows()) {
        sub_batch = 1 - sub_batch;
        load = with(load_, *request, sub_batch);
        then = remaining_s(load);
      }
      if (shows()) {
        too_many_tokens = request->context_tokens;
        continue;
      }
      add_cpu_request(*request, load, sub_batch);
      remaining = then;
      some_waited_long_ = some_waited_long_ || was_left_out;
    }
  }

  /// How many of the last prompts to leave out: those that were to go to the CPU's pool, as long as
  /// `may_go` of the load without each. `load` is then without them.
  template <typename MayGo>
  std::size_t leave_out_prompts(Load& load, const MayGo& may_go) {
    std::size_t count = 0;
    for (; count < prompts_.size(); ++count) {
      const Prompt& last = prompts_[prompts_.size() - 1 - count];
      if (!last.admitted_to || last.admitted_to == Tier::hbm) break;
      Load without = load;
      add(last, -1, without);
      if (times_.are_idle(without.rows(0)) || !may_go(without)) break;
      load = without;
    }
    return count;
  }

  void choose() {
    if (hiding_ == Hiding::not_asked) return;
    Load gpu_only = load_;
    gpu_only.cpu_decodes = gpu_only.cpu_tokens = {};
    const std::size_t gpu_leaves_out =
        leave_out_prompts(gpu_only, [](const Load&) { return true; });
    Load both = load_;
    const std::size_t both_leave_out =
        leave_out_prompts(both, [&](const Load& without) { return is_hidden(without); });
    const bool has_cpu_requests = both.cpu_decodes[0] + both.cpu_decodes[1] > 0;
    const auto rate = [&](const Load& load) {
      return static_cast<double>(load.requests()) / seconds(load);
    };
    if (has_cpu_requests && (some_waited_long_ || rate(both) > rate(gpu_only))) {
      prompts_.resize(prompts_.size() - both_leave_out);
      return;
    }
    prompts_.resize(prompts_.size() - gpu_leaves_out);
    sub_batches_ = {};
  }

  /// The GPU has nothing of its own: in two parts that hide each other, or all together.
  void split_cpu_requests() {
    for (const RequestView* request : cpu_requests_) {
      if (!finds_room(*request)) continue;
      const std::size_t sub_batch = where_more_remains(remaining_s(load_));
      add_cpu_request(*request, with(load_, *request, sub_batch), sub_batch);
    }
    Load together = load_;
    together.cpu_decodes = {load_.cpu_decodes[0] + load_.cpu_decodes[1], 0};
    together.cpu_tokens = {load_.cpu_tokens[0] + load_.cpu_tokens[1], 0};
    if (seconds(load_) < seconds(together)) return;
    sub_batches_[0].insert(sub_batches_[0].end(), sub_batches_[1].begin(), sub_batches_[1].end());
    sub_batches_[1].clear();
  }

  void write_down() {
    std::array<std::vector<Share>, 2> shares;
    for (const Prompt& prompt : prompts_) {
      if (prompt.admitted_to)
        schedule_.admissions.push_back({prompt.request->id, *prompt.admitted_to});
      shares[0].push_back({prompt.request->id, prompt.rows});
    }
    for (const RequestView* request : gpu_requests_) shares[0].push_back({request->id, 1});
    for (std::size_t i = 0; i < 2; ++i) {
      for (const RequestView* request : sub_batches_[i]) shares[i].push_back({request->id, 1});
      if (!shares[i].empty()) schedule_.sub_batches.push_back(std::move(shares[i]));
    }
  }

  LayerTimes& times_;
  const Situation& now_;
  Hiding hiding_;
  PoolView gpu_{.tier = Tier::hbm, .pages = 0, .free_pages = 0};
  PoolView cpu_{.tier = Tier::ddr, .pages = 0, .free_pages = 0};
  std::int64_t rows_left_;
  std::int64_t free_sequences_;
  Requests started_;       ///< prompts that have begun
  Requests gpu_requests_;  ///< the GPU's run queue
  Requests cpu_requests_;  ///< the CPU's run queue
  std::vector<Prompt> prompts_;
  std::array<Requests, 2> sub_batches_;  ///< CPU requests
  Load load_;
  bool some_waited_long_ = false;
  Schedule schedule_;
};

}  // namespace

Schedule neo_schedule(LayerTimes& times, const Situation& situation, Hiding hiding) {
  return Iteration(times, situation, hiding).decide();
}

}  // namespace sluice
