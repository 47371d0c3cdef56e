// How the engine decides who runs, who makes way, and who takes part in an iteration.
#include <algorithm>
#include <limits>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "codelets/runtime/trace_recorder.h"
#include "engine/batching/engine.h"
#include "graphs/kv_cache.h"

namespace sluice {
namespace {

/// What the first of several that want the same is told by.
std::pair<int, std::int64_t> precedence(const std::shared_ptr<Sequence>& sequence) {
  return {sequence->request->priority, sequence->id};
}

}  // namespace

// Admission.

void Engine::wait_for_admission(const Shared& sequence) {
  const bool overtaken = sequence->overtakes >= options_.max_overtakes;
  const int priority = overtaken ? std::numeric_limits<int>::min() : sequence->request->priority;
  waiting_.emplace(std::pair(priority, sequence->id), sequence);
}

void Engine::begin_running(const Shared& sequence) {
  waiting_.erase({sequence->request->priority, sequence->id});
  waiting_.erase({std::numeric_limits<int>::min(), sequence->id});
  running_.emplace(sequence->id, sequence);
  Sequences overtaken;
  for (const auto& [key, other] : waiting_) {
    if (other->id < sequence->id && ++other->overtakes == options_.max_overtakes)
      overtaken.push_back(other);
  }
  for (const Shared& other : overtaken) {
    waiting_.erase({other->request->priority, other->id});
    wait_for_admission(other);
  }
}

void Engine::admit() {
  while (!free_slots_.empty() && !waiting_.empty()) {
    const Shared sequence = waiting_.begin()->second;
    if (!admit(sequence)) return;  // a running one will make room
    begin_running(sequence);
  }
}

bool Engine::admit(const Shared& sequence) {
  for (std::size_t cohort = 0; cohort < pools_.size(); ++cohort) {
    if (admit_to(cohort, sequence)) return true;
  }
  return false;
}

template <typename Change>
auto Engine::changing_pages(Sequence& sequence, const Change& change) {
  owed_pages_[sequence.cohort] -= sequence.owed_pages();
  const auto result = change();
  owed_pages_[sequence.cohort] += sequence.owed_pages();
  return result;
}

std::int64_t Engine::promised_to(const Sequence& sequence) const {
  const bool whole = options_.admit_by == AdmitBy::whole_output;
  return KvCache::pages_for(whole ? sequence.prompt_size() + sequence.max_new_tokens
                                  : sequence.known_tokens() + 1);
}

bool Engine::admit_to(std::size_t cohort, const Shared& sequence) {
  if (sequence->num_in_flight > 0) return false;  // it has a token more than is known
  const std::int64_t promised = promised_to(*sequence);
  KvPool& pool = pools_[cohort];
  std::int64_t room = room_in(cohort);
  if (promised > pool.num_pages()) return false;
  std::vector<std::int32_t> there;
  if (!sequence->request->prompt_logprobs) {  // which need every row
    there = pool.find(sequence->request->prompt_tokens,
                      (sequence->prompt_size() - fewest_prompt_rows) / page_tokens);
  }
  const std::int64_t before = pool.num_available();
  pool.hold(there);
  room -= before - pool.num_available();
  if (room < promised - std::ssize(there)) {
    pool.give_back(there);
    return false;
  }
  sequence->cohort = cohort;
  sequence->cached_tokens = std::ssize(there) * page_tokens;
  stats_.prefix_hit_tokens += sequence->cached_tokens;
  sequence->pages = std::move(there);
  sequence->promised_pages = promised;
  owed_pages_[cohort] += sequence->owed_pages();
  sequence->slot = free_slots_.back();
  free_slots_.pop_back();
  sequence->known_at_admission = sequence->known_tokens();
  sequence->drawn_tokens = std::ssize(sequence->token_ids);
  sequence->skips = 0;
  sequence->admitted = true;
  sequence->prompt_logprobs.clear();
  keep_prompt_pages(*sequence);
  if (!sequence->was_admitted) {
    sequence->was_admitted = true;
    sequence->admitted_s = executor_.now_s();
    stats_.prompt_tokens += sequence->prompt_size();
    mark_request("admitted", sequence->request->index, sequence->request->id);
    if (events_->on_admitted) events_->on_admitted(*sequence->request, sequence->output);
  }
  return true;
}

// Who takes part in the next iteration.

void Engine::preempt(const Shared& sequence) {
  ++stats_.preemptions;
  leave_batch(*sequence);
  running_.erase(sequence->id);
  wait_for_admission(sequence);
}

bool Engine::moves(std::size_t cohort) const {
  if (options_.policy == nullptr) return true;
  return std::ranges::count(options_.policy->kv_cohorts()[cohort].homes, Tier::disk) == 0;
}

bool Engine::swap(Sequence& sequence, std::size_t cohort) {
  if (!moves(sequence.cohort) || !moves(cohort)) return false;
  KvMove move{.from = sequence.cohort, .to = cohort, .from_pages = sequence.pages, .to_pages = {}};
  move.from_pages.resize(static_cast<std::size_t>(KvCache::pages_for(sequence.cached_tokens)));
  const std::int64_t promised = std::max(sequence.promised_pages, std::ssize(sequence.pages));
  if (room_in(cohort) < promised || !pools_[cohort].take(std::ssize(sequence.pages), move.to_pages))
    return false;
  changing_pages(sequence, [&] {
    pools_[sequence.cohort].give_back(sequence.pages);
    sequence.pages = move.to_pages;
    return std::exchange(sequence.cohort, cohort);
  });
  sequence.kept_pages = 0;
  sequence.beginning = KvPool::nothing;
  move.to_pages.resize(move.from_pages.size());
  (cohort == 0 ? stats_.swapped_in_pages : stats_.swapped_out_pages) += std::ssize(move.to_pages);
  if (!move.to_pages.empty()) moves_.push_back(std::move(move));
  keep_prompt_pages(sequence);
  return true;
}

void Engine::make_way(const Shared& sequence) {
  for (std::size_t cohort = 0; cohort < pools_.size(); ++cohort) {
    if (cohort != sequence->cohort && swap(*sequence, cohort)) return;
  }
  preempt(sequence);
}

// By the policy's schedule.

Situation Engine::situation(bool under_way) const {
  const std::vector<KvCohort>& cohorts = options_.policy->kv_cohorts();
  Situation now{.under_way = under_way,
                .now_s = executor_.now_s(),
                .waiting = {},
                .running = {},
                .pools = {},
                .free_sequences = std::ssize(free_slots_),
                .max_batch_tokens =
                    options_.max_batch_tokens.value_or(std::numeric_limits<std::int64_t>::max()),
                .prefill_chunk_tokens = options_.prefill_chunk_tokens,
                .max_skips = options_.max_skips};
  for (std::size_t cohort = 0; cohort < pools_.size(); ++cohort) {
    now.pools.push_back({.tier = cohorts[cohort].homes.front(),
                         .pages = pools_[cohort].num_pages(),
                         .free_pages = room_in(cohort)});
  }
  const bool some_were_overtaken =
      !waiting_.empty() && waiting_.begin()->second->overtakes >= options_.max_overtakes;
  for (const auto& [key, sequence] : waiting_) {
    if (some_were_overtaken && sequence->overtakes < options_.max_overtakes) break;
    if (sequence->num_in_flight > 0) continue;  // it has a token more than is known
    RequestView& view = now.waiting.emplace_back(sequence->view(now.pools.front().tier));
    view.prompt_tokens_left = sequence->known_tokens();
    view.context_tokens = 0;
    view.drawn_tokens_left = std::ssize(sequence->token_ids);
    view.pages = promised_to(*sequence);
  }
  for (const auto& [id, sequence] : running_) {
    if (!sequence->wants_iteration()) continue;
    RequestView& view = now.running.emplace_back(sequence->view(now.pools[sequence->cohort].tier));
    view.pages = std::max(sequence->promised_pages, std::ssize(sequence->pages));
    view.shared_pages = pools_[sequence->cohort].num_shared(sequence->pages);
  }
  return now;
}

std::optional<Engine::Planned> Engine::by_the_policy(bool under_way) {
  // With room for whole outputs, requests run as they were planned.
  if (options_.policy == nullptr || options_.admit_by == AdmitBy::whole_output) return std::nullopt;
  const Situation now = situation(under_way);
  if (now.waiting.empty() && now.running.empty()) return std::nullopt;
  const std::optional<Schedule> schedule = options_.policy->schedule(now);
  if (!schedule) return std::nullopt;
  return follow(*schedule);
}

std::size_t Engine::cohort_of(Tier tier) const {
  const std::vector<KvCohort>& cohorts = options_.policy->kv_cohorts();
  const auto found =
      std::ranges::find(cohorts, tier, [](const KvCohort& cohort) { return cohort.homes.front(); });
  return static_cast<std::size_t>(found - cohorts.begin());
}

void Engine::refuse_pages(const Sequence& sequence, std::size_t cohort, std::int64_t pages) const {
  throw Error(
      "policy {}: schedule: request {} needs {} pages in {}, and {} are free; correct the policy, "
      "or take another with --policy",
      options_.policy->name(), sequence.id, pages,
      to_string(options_.policy->kv_cohorts()[cohort].homes.front()), room_in(cohort));
}

void Engine::follow_moves(const Schedule& schedule) {
  for (const std::int64_t id : schedule.preemptions) preempt(Shared(running_.at(id)));
  for (const auto& [id, tier] : schedule.swaps) {
    const Shared& sequence = running_.at(id);
    const std::size_t cohort = cohort_of(tier);
    if (swap(*sequence, cohort)) continue;
    if (!moves(cohort) || !moves(sequence->cohort))
      throw Error("policy {}: schedule: it swaps request {}, whose KV lives on a disk; leave it",
                  options_.policy->name(), id);
    refuse_pages(*sequence, cohort, std::ssize(sequence->pages));
  }
  for (const auto& [id, tier] : schedule.admissions) {
    const auto sequence =
        std::ranges::find(waiting_, id, [](const auto& entry) { return entry.second->id; });
    const Shared admitted = sequence->second;
    // One that came earlier was passed too often: before this schedule, or by those before it here.
    const Sequence& before = *waiting_.begin()->second;
    if (before.overtakes >= options_.max_overtakes && before.id < id) continue;
    const std::size_t cohort = cohort_of(tier);
    if (!admit_to(cohort, admitted)) refuse_pages(*admitted, cohort, promised_to(*admitted));
    begin_running(admitted);
  }
}

Engine::Planned Engine::follow(const Schedule& schedule) {
  follow_moves(schedule);
  Planned next;
  std::int64_t rows_left =
      options_.max_batch_tokens.value_or(std::numeric_limits<std::int64_t>::max());
  Taken taken;
  Sequences first;
  for (const auto& [id, sequence] : running_) {
    if (sequence->wants_iteration() && is_left_out_too_long(*sequence)) first.push_back(sequence);
  }
  for (const Shared& sequence : first) {
    if (sequence->admitted) this->schedule(sequence, rows_left, taken, next.scheduled);
  }
  const bool as_ordered = taken.empty();
  for (const std::vector<Share>& shares : schedule.sub_batches) {
    SubBatchPlan sub_batch;
    for (const auto& [id, rows] : shares) {
      const auto found = running_.find(id);
      // It had to wait, or made way, for one that was left out or passed too often.
      if (found == running_.end()) continue;
      const Shared& sequence = found->second;
      if (!taken.contains(sequence.get())) {
        const Piece piece = sequence->next_piece(std::min(rows, rows_left));
        if (piece.rows == 0) continue;
        if (!take_pages_for(sequence, piece.rows)) {
          if (!as_ordered) continue;
          refuse_pages(*sequence, sequence->cohort,
                       KvCache::pages_for(sequence->cached_tokens + piece.rows) -
                           std::ssize(sequence->pages));
        }
        rows_left -= piece.rows;
        taken.insert(sequence.get());
        next.scheduled.push_back({sequence, piece});
      }
      sub_batch.requests.push_back(id);
    }
    if (!sub_batch.requests.empty()) next.plan.sub_batches.push_back(std::move(sub_batch));
  }
  add_left_out(next);
  return next;
}

void Engine::add_left_out(Planned& next) {
  std::unordered_set<std::int64_t> planned;
  for (const SubBatchPlan& sub_batch : next.plan.sub_batches)
    planned.insert(sub_batch.requests.begin(), sub_batch.requests.end());
  for (const Scheduled& one : next.scheduled) {
    if (planned.contains(one.sequence->id)) continue;
    if (next.plan.sub_batches.empty()) next.plan.sub_batches.emplace_back();
    next.plan.sub_batches.front().requests.push_back(one.sequence->id);
  }
}

// By the engine's own rule.

Engine::Shared Engine::who_makes_way_for(const Shared& sequence, const Taken& taken) const {
  Shared last;
  for (const auto& [id, other] : running_) {
    if (other == sequence || other->cohort != sequence->cohort || other->pages.empty()) continue;
    if (taken.contains(other.get())) continue;
    const bool comes_later =
        is_left_out_too_long(*sequence) || precedence(sequence) < precedence(other);
    if (comes_later && (last == nullptr || precedence(last) < precedence(other))) last = other;
  }
  return last;
}

bool Engine::take_pages_for(const Shared& sequence, std::int64_t rows) {
  const std::int64_t missing =
      KvCache::pages_for(sequence->cached_tokens + rows) - std::ssize(sequence->pages);
  if (missing <= 0) return true;
  return changing_pages(*sequence,
                        [&] { return pools_[sequence->cohort].take(missing, sequence->pages); });
}

bool Engine::make_way_for(const Shared& sequence, std::int64_t rows, const Taken& taken) {
  const std::int64_t pages = KvCache::pages_for(sequence->cached_tokens + rows);
  // Others would make way in vain. It goes on in a larger pool.
  if (pages > pools_[sequence->cohort].num_pages()) make_way(sequence);
  if (!sequence->admitted) return false;
  while (!take_pages_for(sequence, rows)) {
    const Shared other = who_makes_way_for(sequence, taken);
    if (other == nullptr) return false;
    make_way(other);
  }
  return true;
}

void Engine::schedule(const Shared& sequence, std::int64_t& rows_left, Taken& taken,
                      std::vector<Scheduled>& scheduled) {
  const std::int64_t chunk = sequence->in_prefill() ? options_.prefill_chunk_tokens : 1;
  const Piece piece = sequence->next_piece(std::min(rows_left, chunk));
  if (piece.rows == 0 || !make_way_for(sequence, piece.rows, taken)) return;
  rows_left -= piece.rows;
  taken.insert(sequence.get());
  scheduled.push_back({sequence, piece});
}

std::vector<Engine::Scheduled> Engine::schedule() {
  Sequences order;
  for (const auto& [id, sequence] : running_) {
    if (sequence->wants_iteration()) order.push_back(sequence);
  }
  const auto turn = [&](const Shared& sequence) {
    return std::tuple(!is_left_out_too_long(*sequence), sequence->in_prefill(),
                      precedence(sequence));
  };
  std::ranges::sort(order, {}, turn);
  std::int64_t rows_left =
      options_.max_batch_tokens.value_or(std::numeric_limits<std::int64_t>::max());
  std::vector<Scheduled> scheduled;
  Taken taken;
  for (const Shared& sequence : order) {
    if (sequence->admitted)  // else it had to make way
      schedule(sequence, rows_left, taken, scheduled);
  }
  std::ranges::sort(scheduled, {}, [](const Scheduled& one) { return one.sequence->id; });
  return scheduled;
}

Engine::Planned Engine::by_own_rule(bool under_way) {
  admit();
  Planned next{.scheduled = schedule(), .plan = {}};
  if (!next.scheduled.empty()) next.plan = plan_iteration(next.scheduled, under_way);
  return next;
}

IterationPlan Engine::plan_iteration(const std::vector<Scheduled>& scheduled, bool under_way) {
  if (options_.policy == nullptr) {
    SubBatchPlan all;
    for (const Scheduled& one : scheduled) all.requests.push_back(one.sequence->id);
    return {.sub_batches = {std::move(all)}};
  }
  std::vector<RequestView> views;
  views.reserve(scheduled.size());
  for (const auto& [sequence, piece] : scheduled) {
    views.push_back(sequence->view(options_.policy->kv_cohorts()[sequence->cohort].homes.front()));
  }
  return options_.policy->plan_iteration(views,
                                         under_way ? Awaited::an_iteration : Awaited::nothing);
}

bool Engine::is_left_out_too_long(const Sequence& sequence) const {
  return sequence.skips >= options_.max_skips;
}

void Engine::note_plan(const IterationPlan& plan) {
  for (const SubBatchPlan& sub_batch : plan.sub_batches) {
    for (const std::int64_t id : sub_batch.requests)
      running_.at(id)->taking_part_in = stats_.iterations;
  }
}

void Engine::bound_skips(const std::vector<Scheduled>& scheduled, IterationPlan& plan) {
  note_plan(plan);
  for (const auto& [id, sequence] : running_) {
    if (!is_left_out_too_long(*sequence) || !sequence->wants_iteration() ||
        sequence->taking_part_in == stats_.iterations)
      continue;
    const bool has_rows = std::ranges::any_of(
        scheduled, [&, one = sequence](const Scheduled& other) { return other.sequence == one; });
    if (has_rows && !sequence->in_prefill() && !plan.sub_batches.empty()) {
      plan.sub_batches.back().requests.push_back(id);
      sequence->taking_part_in = stats_.iterations;
      continue;
    }
    // A policy may bound how many prompts run together; so the later ones wait.
    for (SubBatchPlan& sub_batch : plan.sub_batches) {
      std::erase_if(sub_batch.requests, [&, mine = id](std::int64_t other) {
        if (other > mine) running_.at(other)->taking_part_in = -1;
        return other > mine;
      });
    }
    std::erase_if(plan.sub_batches, [](const SubBatchPlan& sub) { return sub.requests.empty(); });
    if (!plan.sub_batches.empty() || !has_rows) return;  // nor do others that are left out
    plan.sub_batches.push_back({{id}});
    sequence->taking_part_in = stats_.iterations;
  }
}

void Engine::count_skips() {
  std::int64_t latest = -1;
  for (const auto& [id, sequence] : running_) {
    if (sequence->taking_part_in == stats_.iterations) latest = id;
  }
  for (const auto& [id, sequence] : running_) {
    if (sequence->taking_part_in == stats_.iterations) {
      sequence->skips = 0;
    } else if (id < latest && sequence->wants_iteration()) {
      ++sequence->skips;
    }
  }
}

std::optional<Engine::InFlight> Engine::begin_iteration(bool under_way) {
  std::optional<Planned> next = by_the_policy(under_way);
  // What the policy ordered may all have had to wait for others.
  if (!next || (next->scheduled.empty() && !under_way)) next = by_own_rule(under_way);
  auto& [scheduled, plan] = *next;
  if (scheduled.empty()) return std::nullopt;
  bound_skips(scheduled, plan);
  count_skips();
  std::unordered_map<std::int64_t, const Scheduled*> by_id;
  for (const Scheduled& one : scheduled) by_id.emplace(one.sequence->id, &one);
  InFlight flight;
  std::vector<SubBatch> sub_batches;
  for (const SubBatchPlan& planned : plan.sub_batches) {
    std::vector<Scheduled> together;
    together.reserve(planned.requests.size());
    for (const std::int64_t id : planned.requests) together.push_back(*by_id.at(id));
    for (std::vector<Scheduled>& part : cut_into_mini_batches(together)) {
      sub_batches.push_back(make_sub_batch(part));
      flight.sub_batches.push_back(std::move(part));
    }
  }
  if (sub_batches.empty()) return std::nullopt;
  executor_.submit(sub_batches, moves_);
  moves_.clear();
  if (events_->on_iteration) events_->on_iteration(report(sub_batches, flight));
  ++stats_.iterations;
  return flight;
}

std::int64_t Engine::num_swapped() const {
  return std::ranges::count_if(running_, [](const auto& one) { return one.second->cohort != 0; });
}

IterationReport Engine::report(const std::vector<SubBatch>& sub_batches,
                               const InFlight& flight) const {
  IterationReport report{.number = stats_.iterations,
                         .sub_batches = {},
                         .running = std::ssize(running_),
                         .waiting = std::ssize(waiting_)};
  report.swapped = num_swapped();
  for (std::size_t i = 0; i < sub_batches.size(); ++i) {
    IterationReport::SubBatch& one = report.sub_batches.emplace_back();
    if (const BatchPart& part = sub_batches[i].parts.front(); !part.placements.empty())
      one.device = part.placements.front()[Sublayer::fc1];
    if (const BatchPart& part = sub_batches[i].parts.back(); !part.placements.empty())
      one.attention = part.placements.front()[Sublayer::qk];
    for (const auto& [sequence, piece] : flight.sub_batches[i]) {
      if (piece.of_known_tokens) {
        ++one.prompts;
        one.prompt_rows += piece.rows;
      } else {
        ++one.decodes;
      }
    }
  }
  return report;
}

}  // namespace sluice
