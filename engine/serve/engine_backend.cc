#include "engine/serve/engine_backend.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "perfmodels/placement.h"

namespace sluice {
namespace {

constexpr std::size_t most_shown_iterations = 32;

double clock_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// A look at it may take some microseconds: not in each iteration.
constexpr double moved_again_after_s = 0.1;

}  // namespace

Refusal EngineBackend::submit(Request request, std::shared_ptr<Listener> listener) {
  const std::scoped_lock lock(mutex_);
  if (snapshot_.state == EngineSnapshot::State::loading) return Refusal::loading;
  if (snapshot_.state != EngineSnapshot::State::ready) return Refusal::draining;
  if (kv_tokens(request, model_) > limits_.max_kv_tokens) return Refusal::too_long;
  if (num_outputs_ + request.num_outputs > limits_.max_outputs) return Refusal::queue_full;
  num_outputs_ += request.num_outputs;
  known_[request.index] = {std::move(listener), request.num_outputs, false};
  inbox_.put(std::move(request));
  return Refusal::none;
}

void EngineBackend::drain() {
  const std::scoped_lock lock(mutex_);
  if (snapshot_.state == EngineSnapshot::State::failed) return;
  snapshot_.state = EngineSnapshot::State::draining;
  for (auto& [index, request] : known_) {
    if (request.begun || request.listener == nullptr) continue;
    std::exchange(request.listener, nullptr)->on_refused(Refusal::draining);
    inbox_.cancel(index);
  }
}

EngineSnapshot EngineBackend::snapshot() const {
  const std::scoped_lock lock(mutex_);
  return snapshot_;
}

void EngineBackend::open(const Limits& limits, const Shown& shown) {
  const std::scoped_lock lock(mutex_);
  limits_ = limits;
  shown_ = shown;
  snapshot_.policy = shown.policy;
  for (std::size_t i = 0; i < shown.pools.size(); ++i)
    snapshot_.pools.push_back({shown.tiers[i], shown.pools[i].num_pages(), 0, page_tokens});
  snapshot_.devices = {{"cpu", 0}};
  if (!shown.accelerator.empty()) snapshot_.devices.push_back({shown.accelerator, 0});
  if (snapshot_.state == EngineSnapshot::State::loading)
    snapshot_.state = EngineSnapshot::State::ready;
}

void EngineBackend::run(Engine& engine, const std::atomic<bool>& interrupt) {
  engine_ = &engine;
  last_iteration_s_ = clock_s();
  Detokenizer detokenizer(
      tokenizer_, [this](const Request&, std::int64_t, const std::string& text) { text_ += text; },
      [this](Completion completion) { note_finished(std::move(completion)); });
  const EngineEvents detokenizing = detokenizer.events();
  try {
    engine.run(inbox_, events(detokenizing), interrupt);
  } catch (...) {
    const std::scoped_lock lock(mutex_);
    snapshot_.state = EngineSnapshot::State::failed;
    throw;
  }
}

EngineEvents EngineBackend::events(const EngineEvents& detokenizing) {
  EngineEvents events;
  events.on_admitted = [this](const Request& request, std::int64_t) {
    note_admitted(request.index);
  };
  events.on_iteration = [this](const IterationReport& report) { note_iteration(report); };
  events.on_prompt_logprobs = [this](const Request& request, std::vector<TokenLogprobs> positions) {
    if (const auto listener = listener_of(request.index))
      listener->on_prompt_logprobs(std::move(positions));
  };
  events.on_token = [this, take = detokenizing.on_token](const Request& request,
                                                         const DrawnToken& token) {
    text_.clear();
    const Verdict verdict = take(request, token);
    std::string text = std::exchange(text_, {});
    const std::shared_ptr<Listener> listener = listener_of(request.index);
    if (listener != nullptr && !token.ends)
      listener->on_token({token.output, token.id, std::move(text),
                          token.logprobs != nullptr ? *token.logprobs : TokenLogprobs()});
    return verdict;
  };
  events.on_finished = detokenizing.on_finished;
  return events;
}

std::shared_ptr<Listener> EngineBackend::listener_of(std::int64_t index) const {
  const std::scoped_lock lock(mutex_);
  const auto found = known_.find(index);
  return found == known_.end() ? nullptr : found->second.listener;
}

void EngineBackend::note_admitted(std::int64_t index) {
  const std::scoped_lock lock(mutex_);
  ++num_running_;
  if (const auto found = known_.find(index); found != known_.end()) found->second.begun = true;
}

void EngineBackend::note_finished(Completion completion) {
  std::shared_ptr<Listener> listener;
  {
    const std::scoped_lock lock(mutex_);
    --num_outputs_;
    if (completion.admitted_s > 0) --num_running_;
    snapshot_.running = num_running_;
    snapshot_.waiting = num_outputs_ - num_running_;
    snapshot_.swapped = std::min(snapshot_.swapped, num_running_);
    count_used_pages();
    if (num_running_ == 0) look_at_moved(clock_s());
    const auto found = known_.find(completion.request->index);
    listener = found->second.listener;
    if (--found->second.outputs_left == 0) known_.erase(found);
  }
  const std::string rest = std::exchange(text_, {});
  if (listener == nullptr) return;
  if (completion.finish_reason == FinishReason::rejected) {
    listener->on_error(completion.problem);
  } else if (completion.finish_reason == FinishReason::interrupted) {
    listener->on_error("the server shuts down");
  } else {
    listener->on_finished(completion.output, completion.finish_reason, rest);
  }
}

const std::string& EngineBackend::name_of(Device device) const {
  return (device == Device::cpu ? snapshot_.devices.front() : snapshot_.devices.back()).name;
}

void EngineBackend::share_busy_time(double now_s) {
  std::map<std::string, double> busy_s;
  for (EngineSnapshot::Device& device : snapshot_.devices) {
    const double before_s = device.busy_s;
    device.busy_s = shown_.busy_s(device.name == "cpu" ? Device::cpu : Device::gpu);
    busy_s[device.name] = device.busy_s - before_s;
  }
  if (snapshot_.recent.empty()) return;
  EngineSnapshot::Iteration& before = snapshot_.recent.back();
  before.duration_s = now_s - last_iteration_s_;
  std::map<std::string, std::int64_t> tokens;
  for (const EngineSnapshot::Work& work : before.work) tokens[work.device] += work.tokens;
  for (EngineSnapshot::Work& work : before.work) {
    const auto all = static_cast<double>(tokens[work.device]);
    work.busy_s = static_cast<double>(work.tokens) / all * busy_s[work.device];
  }
}

void EngineBackend::look_at_moved(double now_s) {
  if (!shown_.moved) return;
  moved_at_s_ = now_s;
  snapshot_.moved = shown_.moved();
}

void EngineBackend::note_iteration(const IterationReport& report) {
  const double now_s = clock_s();
  const std::scoped_lock lock(mutex_);
  share_busy_time(now_s);
  if (now_s > moved_at_s_ + moved_again_after_s) look_at_moved(now_s);
  last_iteration_s_ = now_s;
  EngineSnapshot::Iteration iteration;
  iteration.number = report.number;
  iteration.sub_batches = static_cast<int>(report.sub_batches.size());
  for (int i = 0; i < iteration.sub_batches; ++i) {
    const IterationReport::SubBatch& one = report.sub_batches[static_cast<std::size_t>(i)];
    if (one.prompts > 0)
      iteration.work.push_back(
          {name_of(one.device), "prefill", i, one.prompts, one.prompt_rows, 0});
    if (one.decodes > 0)
      iteration.work.push_back({name_of(one.device), "decode", i, one.decodes, one.decodes, 0});
    if (one.attention != one.device)
      iteration.work.push_back({name_of(one.attention), "attention", i, one.prompts + one.decodes,
                                one.prompt_rows + one.decodes, 0});
  }
  snapshot_.recent.push_back(std::move(iteration));
  if (snapshot_.recent.size() > most_shown_iterations)
    snapshot_.recent.erase(snapshot_.recent.begin());
  const EngineStats& stats = engine_->stats();
  (report.sub_batches.size() > 1 ? snapshot_.iterations_of_two : snapshot_.iterations_of_one) += 1;
  snapshot_.running = report.running;
  snapshot_.waiting = report.waiting;
  snapshot_.swapped = report.swapped;
  snapshot_.prompt_tokens = stats.prompt_tokens - stats.prefix_hit_tokens;
  snapshot_.output_tokens = stats.generated_tokens;
  snapshot_.prefix_hit_tokens = stats.prefix_hit_tokens;
  snapshot_.preemptions_by_recompute = stats.preemptions;
  snapshot_.moved_in_bytes = stats.swapped_in_pages * shown_.page_bytes;
  snapshot_.moved_out_bytes = stats.swapped_out_pages * shown_.page_bytes;
  count_used_pages();
}

void EngineBackend::count_used_pages() {
  for (std::size_t i = 0; i < snapshot_.pools.size(); ++i)
    snapshot_.pools[i].used_pages = shown_.pools[i].num_pages() - shown_.pools[i].num_available();
}

}  // namespace sluice
