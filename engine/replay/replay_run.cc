#include "engine/replay/replay_run.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace sluice {
namespace {

/// Requests as they are scheduled; where so many are in flight, each that ends lets one come.
class ReplaySource : public RequestSource {
 public:
  ReplaySource(ReplayRequests requests, double start_s)
      : requests_(std::move(requests)), start_s_(start_s) {}

  void note_finished(double now_s) {
    ++num_finished_;
    last_end_s_ = now_s;
  }

  /// The next scheduled arrival by `now_s`, each once; of a closed loop none, which the engine
  /// looks at when they come.
  std::optional<double> take_arrival(double now_s) {
    if (requests_.arrivals.kind == ArrivalKind::closed || next_told_ == requests_.requests.size())
      return std::nullopt;
    const double arrival_s = start_s_ + requests_.requests[next_told_].arrival_s;
    if (arrival_s > now_s) return std::nullopt;
    ++next_told_;
    return arrival_s;
  }

  std::optional<Request> take(double now_s) override {
    if (ended() || is_held_back()) return std::nullopt;
    const TracedRequest& traced = requests_.requests[next_];
    const bool closed = requests_.arrivals.kind == ArrivalKind::closed;
    const double arrival_s = closed ? last_end_s_.value_or(start_s_) : start_s_ + traced.arrival_s;
    if (arrival_s > now_s) return std::nullopt;
    Request request;
    request.index = static_cast<std::int64_t>(next_++);
    request.id = std::to_string(request.index);
    request.prompt_tokens = traced_prompt(traced, request.index, requests_.tokens, requests_.seed);
    request.max_new_tokens = traced.output_tokens;
    request.ignore_eos = true;
    request.arrival_s = arrival_s;
    return request;
  }
  std::optional<double> next_arrival_s() const override {
    if (ended() || is_held_back()) return std::nullopt;
    return start_s_ + requests_.requests[next_].arrival_s;
  }
  bool ended() const override { return next_ == requests_.requests.size(); }
  void wait(RunClock& clock) override {
    if (const std::optional<double> arrival_s = next_arrival_s()) clock.sleep_until(*arrival_s);
  }

 private:
  bool is_held_back() const {
    return requests_.arrivals.kind == ArrivalKind::closed &&
           static_cast<std::int64_t>(next_) - num_finished_ >= requests_.arrivals.in_flight;
  }

  ReplayRequests requests_;
  double start_s_;
  std::size_t next_ = 0;
  std::size_t next_told_ = 0;
  std::int64_t num_finished_ = 0;
  std::optional<double> last_end_s_;
};

bool has(const CostModel& costs, std::string_view part) {
  if (part == "cpu") return costs.has(Device::cpu);
  if (part == "disk") return costs.capacity_bytes(Tier::disk) > 0;
  return costs.has(Device::gpu);
}

FinishedRequest finished_request(const Completion& completion) {
  return {.arrival_s = completion.arrival_s,
          .admitted_s = completion.admitted_s,
          .first_token_s = completion.first_token_s,
          .last_token_s = completion.last_token_s,
          .output_tokens = completion.num_drawn,
          .rejected = completion.finish_reason == FinishReason::rejected};
}

}  // namespace

std::vector<std::string> resources_of(const CostModel& costs) {
  std::vector<std::string> names;
  for (const auto& [name, seconds] : BusyTimes{}.parts()) {
    if (has(costs, name)) names.emplace_back(name);
  }
  return names;
}

std::vector<double> busy_seconds(const CostModel& costs, const BusyTimes& busy) {
  std::vector<double> all;
  for (const auto& [name, seconds] : busy.parts()) {
    if (has(costs, name)) all.push_back(seconds);
  }
  return all;
}

ReplayOutcome replay(const ReplayEngine& with, ReplayRequests requests,
                     const std::atomic<bool>& interrupt) {
  ReplayOutcome outcome;
  for (std::size_t i = 0; i < with.pools.size(); ++i)
    outcome.timeline.pools.push_back({with.tiers[i], with.pools[i].num_pages() * page_tokens});
  outcome.timeline.resources = with.resources;
  const std::vector<double> busy_before_s = with.busy_s();
  ReplaySource source(std::move(requests), with.executor.now_s());
  std::vector<ReplaySample>& samples = outcome.timeline.samples;
  const auto sample = [&] {
    const double now_s = with.executor.now_s();
    // The engine looks at them later than they come.
    while (const std::optional<double> arrival_s = source.take_arrival(now_s)) {
      ReplaySample arrived = samples.empty() ? ReplaySample() : samples.back();
      arrived.time_s = std::max(*arrival_s, arrived.time_s);
      arrived.pool_tokens.resize(with.pools.size());
      arrived.busy_s.resize(with.resources.size());
      ++arrived.waiting;
      samples.push_back(std::move(arrived));
    }
    ReplaySample& now = samples.emplace_back();
    now.time_s = now_s;
    now.waiting = with.engine.num_waiting();
    now.running = with.engine.num_running();
    now.swapped = with.engine.num_swapped();
    for (const KvPool& pool : with.pools)
      now.pool_tokens.push_back((pool.num_pages() - pool.num_available()) * page_tokens);
    now.busy_s = with.busy_s();
    for (std::size_t i = 0; i < now.busy_s.size(); ++i) now.busy_s[i] -= busy_before_s[i];
  };
  EngineEvents events;
  events.on_iteration = [&](const IterationReport& report) {
    (report.sub_batches.size() > 1 ? outcome.two_sub_batch_iterations
                                   : outcome.one_sub_batch_iterations) += 1;
    sample();
  };
  events.on_finished = [&](const Completion& completion) {
    if (completion.finish_reason == FinishReason::interrupted) return;
    outcome.finished.push_back(finished_request(completion));
    source.note_finished(with.executor.now_s());
    sample();
    if (with.progress) with.progress(std::ssize(outcome.finished));
  };
  outcome.stats = with.engine.run(source, events, interrupt);
  sample();
  outcome.timeline.end_s = with.executor.now_s();
  return outcome;
}

void add_outcome(ReplayPoint& point, const ReplayOutcome& outcome, const std::optional<Slo>& slo) {
  point.statistics = replay_statistics(outcome.finished, slo);
  point.one_sub_batch_iterations = outcome.one_sub_batch_iterations;
  point.two_sub_batch_iterations = outcome.two_sub_batch_iterations;
  point.swapped_in_tokens = outcome.stats.swapped_in_pages * page_tokens;
  point.swapped_out_tokens = outcome.stats.swapped_out_pages * page_tokens;
  point.preemptions = outcome.stats.preemptions;
  point.prefix_hit_tokens = outcome.stats.prefix_hit_tokens;
  point.littles_law = littles_law(outcome.finished, system_counts(outcome.timeline));
  const ReplayTimeline& timeline = outcome.timeline;
  if (timeline.samples.empty() || timeline.end_s <= timeline.samples.front().time_s) return;
  const double seconds = timeline.end_s - timeline.samples.front().time_s;
  double most_s = 0;
  for (std::size_t i = 0; i < timeline.resources.size(); ++i) {
    const double busy_s = timeline.samples.back().busy_s[i];
    point.busy_share.emplace_back(timeline.resources[i], busy_s / seconds);
    if (busy_s <= most_s) continue;
    most_s = busy_s;
    point.binding_resource = timeline.resources[i];
    point.lower_bound_requests_per_s = static_cast<double>(point.statistics.completed) / busy_s;
  }
}

}  // namespace sluice
