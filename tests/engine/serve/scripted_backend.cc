#include "scripted_backend.h"

#include <algorithm>
#include <utility>

namespace sluice::test {

ScriptedBackend::ScriptedBackend(const Tokenizer* tokenizer, Script script)
    : tokenizer_(tokenizer), script_(script), thread_([this] { compute(); }) {}

ScriptedBackend::~ScriptedBackend() {
  {
    const std::scoped_lock lock(mutex_);
    over_ = true;
  }
  condition_.notify_all();
  thread_.join();
}

Refusal ScriptedBackend::submit(Request request, std::shared_ptr<Listener> listener) {
  const std::scoped_lock lock(mutex_);
  if (state_ == EngineSnapshot::State::loading) return Refusal::loading;
  if (state_ == EngineSnapshot::State::draining) return Refusal::draining;
  if (waiting_.size() >= script_.most_waiting) return Refusal::queue_full;
  submitted_.push_back(request);
  waiting_.push_back({.request = std::move(request), .listener = std::move(listener)});
  condition_.notify_all();
  return Refusal::none;
}

void ScriptedBackend::cancel(std::int64_t index) {
  const std::scoped_lock lock(mutex_);
  if (running_.erase(index) > 0) cancelled_.insert(index);
  const auto removed =
      std::erase_if(waiting_, [&](const Task& task) { return task.request.index == index; });
  if (removed > 0) cancelled_.insert(index);
}

void ScriptedBackend::drain() {
  const std::scoped_lock lock(mutex_);
  state_ = EngineSnapshot::State::draining;
  for (const Task& task : waiting_) task.listener->on_refused(Refusal::draining);
  waiting_.clear();
}

void ScriptedBackend::hold(bool held) {
  const std::scoped_lock lock(mutex_);
  held_ = held;
  condition_.notify_all();
}

void ScriptedBackend::break_down(const std::string& message) {
  const std::scoped_lock lock(mutex_);
  state_ = EngineSnapshot::State::failed;
  for (const auto& [index, task] : running_) task.listener->on_error(message);
  for (const Task& task : waiting_) task.listener->on_error(message);
  running_.clear();
  waiting_.clear();
}

void ScriptedBackend::set_state(EngineSnapshot::State state) {
  const std::scoped_lock lock(mutex_);
  state_ = state;
}

std::vector<Request> ScriptedBackend::submitted() const {
  const std::scoped_lock lock(mutex_);
  return submitted_;
}

std::set<std::int64_t> ScriptedBackend::cancelled() const {
  const std::scoped_lock lock(mutex_);
  return cancelled_;
}

std::size_t ScriptedBackend::num_unfinished() const {
  const std::scoped_lock lock(mutex_);
  return running_.size() + waiting_.size();
}

EngineSnapshot ScriptedBackend::snapshot() const {
  const std::scoped_lock lock(mutex_);
  EngineSnapshot snapshot = counters_;
  snapshot.state = state_;
  snapshot.policy = "scripted";
  snapshot.running = std::ssize(running_);
  snapshot.waiting = std::ssize(waiting_);
  snapshot.pools = {{.tier = "hbm", .pages = 100, .used_pages = 40, .page_tokens = 16},
                    {.tier = "ddr", .pages = 1000, .used_pages = 100, .page_tokens = 16}};
  return snapshot;
}

void ScriptedBackend::compute() {
  std::unique_lock lock(mutex_);
  while (!over_) {
    condition_.wait(lock,
                    [&] { return over_ || (!held_ && (!running_.empty() || !waiting_.empty())); });
    if (over_) return;
    while (!waiting_.empty() && running_.size() < script_.most_running) {
      const std::int64_t index = waiting_.front().request.index;
      running_.emplace(index, std::move(waiting_.front()));
      waiting_.pop_front();
    }
    step();
    if (script_.token_delay.count() > 0)
      condition_.wait_for(lock, script_.token_delay, [&] { return over_; });
  }
}

void ScriptedBackend::step() {
  constexpr double decode_s = 0.001;
  EngineSnapshot::Work gpu{.device = "gpu", .what = "decode", .busy_s = decode_s};
  for (auto task = running_.begin(); task != running_.end();) {
    ++gpu.sequences;
    gpu.tokens += task->second.request.num_outputs;
    task = step(task->second) ? running_.erase(task) : std::next(task);
  }
  EngineSnapshot::Work cpu{.device = "cpu",
                           .what = "attention",
                           .sub_batch = 1,
                           .sequences = gpu.sequences,
                           .tokens = gpu.tokens,
                           .busy_s = decode_s / 2};
  constexpr std::size_t most_recent = 32;
  counters_.recent.push_back({.number = ++counters_.iterations_of_two,
                              .duration_s = decode_s,
                              .sub_batches = 2,
                              .work = {gpu, cpu}});
  if (counters_.recent.size() > most_recent) counters_.recent.erase(counters_.recent.begin());
  counters_.devices = {
      {.name = "cpu", .busy_s = static_cast<double>(counters_.iterations_of_two) * cpu.busy_s},
      {.name = "gpu", .busy_s = static_cast<double>(counters_.iterations_of_two) * gpu.busy_s}};
  constexpr std::int64_t moved_bytes = 1000;
  counters_.moved = {
      {.from = "ddr", .to = "hbm", .bytes = counters_.iterations_of_two * moved_bytes}};
}

bool ScriptedBackend::step(Task& task) {
  const Request& request = task.request;
  if (task.drawn == 0) counters_.prompt_tokens += std::ssize(request.prompt_tokens);
  if (task.drawn == 0 && request.prompt_logprobs) {
    std::vector<TokenLogprobs> positions;
    for (std::size_t i = 1; i < request.prompt_tokens.size(); ++i)
      positions.push_back(logprobs_of(request.prompt_tokens[i], static_cast<std::int64_t>(i),
                                      *request.prompt_logprobs));
    task.listener->on_prompt_logprobs(std::move(positions));
  }
  if (task.drawn == 0) task.end = end_of_text(request);
  const bool stops = task.drawn >= script_.stop_after || task.num_bytes >= task.end;
  for (std::int64_t output = 0; output < request.num_outputs; ++output) {
    if (stops) {
      task.listener->on_finished(output, FinishReason::stop, "");
      continue;
    }
    task.listener->on_token(token_of(task, output));
    ++counters_.output_tokens;
    if (task.drawn + 1 == request.max_new_tokens)
      task.listener->on_finished(output, FinishReason::length, "");
  }
  if (tokenizer_ != nullptr)
    task.num_bytes += tokenizer_->token_bytes(token_at(request, task.drawn)).size();
  return stops || ++task.drawn == request.max_new_tokens;
}

std::int32_t ScriptedBackend::token_at(const Request& request, std::int64_t place) const {
  return request.prompt_tokens[static_cast<std::size_t>(place) % request.prompt_tokens.size()];
}

std::size_t ScriptedBackend::end_of_text(const Request& request) const {
  if (request.stop.empty()) return std::string::npos;
  std::string text;
  for (std::int64_t place = 0; place < request.max_new_tokens; ++place)
    text += tokenizer_->token_bytes(token_at(request, place));
  std::size_t end = std::string::npos;
  for (const std::string& stop : request.stop) end = std::min(end, text.find(stop));
  return end;
}

OutputToken ScriptedBackend::token_of(const Task& task, std::int64_t output) const {
  const Request& request = task.request;
  const std::int32_t token = token_at(request, task.drawn);
  OutputToken made{.output = output, .token = token, .text = {}, .logprobs = {}};
  if (tokenizer_ != nullptr)
    made.text = tokenizer_->token_bytes(token).substr(0, task.end - task.num_bytes);
  if (request.logprobs) made.logprobs = logprobs_of(token, task.drawn, *request.logprobs);
  return made;
}

TokenLogprobs ScriptedBackend::logprobs_of(std::int32_t token, std::int64_t place,
                                           int count) const {
  const float logprob = -static_cast<float>(place + 1) / 4;
  TokenLogprobs made{.token = {.token = token, .logprob = logprob}, .likeliest = {}};
  for (int i = 0; i < count; ++i)
    made.likeliest.push_back({.token = token + i, .logprob = logprob - static_cast<float>(i)});
  return made;
}

}  // namespace sluice::test
