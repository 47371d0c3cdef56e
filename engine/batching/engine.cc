#include "engine/batching/engine.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "codelets/runtime/trace_recorder.h"
#include "graphs/kv_cache.h"

namespace sluice {

namespace {

SamplingRow sampling_row(const Sequence& sequence) {
  const SamplingParams& params = sequence.request->sampling;
  const std::uint64_t seed = params.seed + static_cast<std::uint64_t>(sequence.output);
  return {.temperature = params.temperature,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .repetition_penalty = params.repetition_penalty,
          .presence_penalty = params.presence_penalty,
          .frequency_penalty = params.frequency_penalty,
          .top_k = params.top_k,
          .seed_low = static_cast<std::uint32_t>(seed),
          .seed_high = static_cast<std::uint32_t>(seed >> 32),
          .step = static_cast<std::int32_t>(sequence.drawn_tokens)};
}

}  // namespace

Engine::Engine(const ModelConfig& model, std::span<KvPool> pools, Executor& executor,
               const EngineOptions& options)
    : model_(model),
      pools_(pools),
      executor_(executor),
      options_(options),
      owed_pages_(pools.size()),
      free_slots_(static_cast<std::size_t>(options.max_sequences)) {
  std::iota(free_slots_.rbegin(), free_slots_.rend(), 0);
  const std::int64_t least = EngineOptions::least_batch_tokens(options.max_sequences);
  if (options.max_batch_tokens.value_or(least) < least) {
    throw Error("{} tokens an iteration are too few for {} sequences; expected at least {}",
                *options.max_batch_tokens, options.max_sequences, least);
  }
  options_.prefill_chunk_tokens = std::max(options.prefill_chunk_tokens, 2 * fewest_prompt_rows);
}

Engine::~Engine() = default;

EngineStats Engine::run(RequestSource& source, const EngineEvents& events,
                        const std::atomic<bool>& interrupt) {
  const double start_s = executor_.now_s();
  stats_ = {};
  source_ = &source;
  events_ = &events;
  std::optional<InFlight> before;
  while (true) {
    std::optional<InFlight> current;
    if (!interrupt) {
      take_requests();
      current = begin_iteration(before.has_value());
    }
    if (before) handle_results(*before);
    before = std::move(current);
    if (before) continue;
    if (interrupt) break;
    if (!running_.empty() || !waiting_.empty()) continue;  // a cancelled one made way
    if (source.ended()) break;
    executor_.rest([&] { source.wait(executor_); });
  }
  finish_all(FinishReason::interrupted);
  stats_.wall_s = executor_.now_s() - start_s;
  return stats_;
}

// Requests that come and go.

void Engine::take_requests() {
  while (std::optional<Request> request = source_->take(executor_.now_s()))
    enqueue(std::move(*request));
  for (const std::int64_t index : source_->take_cancelled()) cancel(index);
}

void Engine::enqueue(Request request) {
  const double arrival_s = request.arrival_s.value_or(executor_.now_s());
  const auto shared = std::make_shared<const Request>(std::move(request));
  const std::int64_t pages = KvCache::pages_for(kv_tokens(*shared, model_));
  std::int64_t most = 0;
  for (const KvPool& pool : pools_) most = std::max(most, pool.num_pages());
  for (std::int64_t output = 0; output < shared->num_outputs; ++output) {
    auto sequence = std::make_shared<Sequence>();
    sequence->request = shared;
    sequence->output = output;
    sequence->id = num_arrived_++;
    sequence->arrival_s = arrival_s;
    sequence->max_new_tokens = new_tokens_limit(*shared, model_);
    if (pages <= most) {
      wait_for_admission(sequence);
      continue;
    }
    Completion completion;
    completion.request = shared;
    completion.output = output;
    completion.arrival_s = arrival_s;
    completion.finish_reason = FinishReason::rejected;
    completion.problem =
        fmt::format("request {} needs {} KV pages, the cache has {}; use a smaller --max-tokens",
                    shared->id, pages, most);
    if (events_->on_finished) events_->on_finished(std::move(completion));
  }
}

void Engine::cancel(std::int64_t index) {
  Sequences cancelled;
  const auto collect = [&](const auto& sequences) {
    for (const auto& [key, sequence] : sequences) {
      if (sequence->request->index == index) cancelled.push_back(sequence);
    }
  };
  collect(waiting_);
  collect(running_);
  for (const Shared& sequence : cancelled) finish(sequence, FinishReason::cancelled);
}

// What an iteration computes.

std::vector<std::vector<Engine::Scheduled>> Engine::cut_into_mini_batches(
    const std::vector<Scheduled>& sequences) const {
  if (options_.policy == nullptr) return {sequences};
  const bool prompts = std::ranges::any_of(
      sequences, [](const Scheduled& one) { return one.sequence->in_prefill(); });
  return options_.policy->mini_batches(prompts ? Phase::prefill : Phase::decode)
      .cut(sequences, [](const Scheduled& one) { return one.piece.rows; });
}

SubBatch Engine::make_sub_batch(std::vector<Scheduled>& sequences) const {
  const auto kind = [](const Scheduled& one) {
    return std::pair(one.sequence->cohort, !one.sequence->in_prefill());
  };
  std::ranges::stable_sort(sequences, {}, kind);
  SubBatch sub_batch;
  std::optional<std::pair<std::size_t, bool>> last;
  for (const Scheduled& one : sequences) {
    if (last != kind(one)) {
      last = kind(one);
      sub_batch.parts.emplace_back().cohort = one.sequence->cohort;
    }
    add_to(sub_batch.parts.back(), one);
  }
  if (options_.policy != nullptr) {
    options_.policy->place(sub_batch);
  } else {
    sub_batch.join_alike();
  }
  return sub_batch;
}

void Engine::add_to(BatchPart& part, const Scheduled& scheduled) const {
  Sequence& sequence = *scheduled.sequence;
  const std::int32_t last_drawn = -(sequence.slot + 1);
  std::span<const std::int32_t> tokens(&last_drawn, 1);
  if (sequence.in_prefill()) {
    const bool of_prompt = sequence.cached_tokens < sequence.prompt_size();
    tokens = of_prompt ? std::span(sequence.request->prompt_tokens)
                       : std::span<const std::int32_t>(sequence.token_ids);
    const std::int64_t first = sequence.cached_tokens - (of_prompt ? 0 : sequence.prompt_size());
    tokens = tokens.subspan(static_cast<std::size_t>(first),
                            static_cast<std::size_t>(scheduled.piece.rows));
    part.phase = Phase::prefill;
  }
  const std::int64_t end = sequence.cached_tokens + std::ssize(tokens);
  const bool scores =
      sequence.wants_prompt_logprobs() && sequence.cached_tokens < sequence.prompt_size();
  const std::int32_t next_token =
      scores && end < sequence.prompt_size()
          ? sequence.request->prompt_tokens[static_cast<std::size_t>(end)]
          : -1;
  const std::vector<std::int32_t> suppressed =
      scheduled.piece.draws ? suppressed_for(sequence) : std::vector<std::int32_t>();
  part.batch.add(
      {.slot = sequence.slot,
       .context = static_cast<std::int32_t>(sequence.cached_tokens),
       .fresh = sequence.fresh,
       .tokens = tokens,
       .pages = sequence.pages,
       .sampling = sampling_row(sequence),
       .suppressed = suppressed,
       .prompt_tokens = static_cast<std::int32_t>(sequence.prompt_size()),
       .history = std::span(sequence.request->prompt_tokens)
                      .first(static_cast<std::size_t>(sequence.fresh ? sequence.cached_tokens : 0)),
       .logprobs =
           scheduled.piece.draws ? sequence.request->logprobs.value_or(no_logprobs) : no_logprobs,
       .prompt_logprobs = scores ? *sequence.request->prompt_logprobs : no_logprobs,
       .next_token = next_token},
      scheduled.piece.draws ? BatchBuilder::LogitRows::last : BatchBuilder::LogitRows::none);
  sequence.fresh = false;
  sequence.cached_tokens += std::ssize(tokens);
  if (scheduled.piece.draws) ++sequence.drawn_tokens;
  ++sequence.num_in_flight;
  keep_prompt_pages(sequence);
}

void Engine::keep_prompt_pages(Sequence& sequence) const {
  // Only what was computed as a prompt: a drawn token's KV may differ from that in its last bits.
  const std::int64_t tokens = std::min(sequence.cached_tokens, sequence.prompt_size());
  for (std::int64_t& page = sequence.kept_pages; (page + 1) * page_tokens <= tokens; ++page) {
    sequence.beginning = pools_[sequence.cohort].keep(
        sequence.beginning,
        std::span(sequence.request->prompt_tokens)
            .subspan(static_cast<std::size_t>(page * page_tokens), page_tokens),
        sequence.pages[static_cast<std::size_t>(page)]);
  }
}

std::vector<std::int32_t> Engine::suppressed_for(const Sequence& sequence) const {
  std::vector<std::int32_t> ids = options_.suppress_tokens;
  const auto add = [&ids](const std::vector<std::int32_t>& more) {
    ids.insert(ids.end(), more.begin(), more.end());
  };
  const Request& request = *sequence.request;
  if (sequence.drawn_tokens == 0) add(options_.begin_suppress_tokens);
  if (sequence.drawn_tokens < request.min_new_tokens) {
    if (!request.ignore_eos) add(options_.eos_token_ids);
    add(request.stop_tokens);
  }
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// What came out.

void Engine::handle_results(const InFlight& done) {
  std::vector<SubBatchResults> results = executor_.wait();
  for (std::size_t part = 0; part < results.size(); ++part) {
    SubBatchResults& result = results[part];
    for (std::size_t i = 0; i < result.tokens.size(); ++i) {
      const auto& [sequence, piece] = done.sub_batches[part][i];
      --sequence->num_in_flight;
      if (sequence->finished) continue;
      if (!result.prompt_logprobs.empty() && sequence->wants_prompt_logprobs())
        std::ranges::move(result.prompt_logprobs[i], std::back_inserter(sequence->prompt_logprobs));
      if (!piece.draws) continue;
      const bool named = !result.logprobs.empty() && result.logprobs[i];
      take_token(sequence, result.tokens[i], named ? &*result.logprobs[i] : nullptr);
    }
  }
}

bool Engine::ends_output(const Request& request, std::int32_t token) const {
  const auto has = [token](const std::vector<std::int32_t>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  return has(request.stop_tokens) || (!request.ignore_eos && has(options_.eos_token_ids));
}

void Engine::take_token(const Shared& of, std::int32_t token, const TokenLogprobs* logprobs) {
  Sequence& sequence = *of;
  const Request& request = *sequence.request;
  if (sequence.wants_prompt_logprobs() && events_->on_prompt_logprobs)
    events_->on_prompt_logprobs(request, std::exchange(sequence.prompt_logprobs, {}));
  if (sequence.max_new_tokens == 0) return finish(of, FinishReason::length);
  sequence.last_token_s = executor_.now_s();
  ++stats_.generated_tokens;
  ++sequence.num_received;
  if (sequence.num_received == 1) {
    sequence.first_token_s = sequence.last_token_s;
    mark_request("first-token", request.index, request.id);
  }
  const DrawnToken drawn = {.output = sequence.output,
                            .index = sequence.num_received - 1,
                            .id = token,
                            .logprobs = logprobs,
                            .ends = ends_output(request, token)};
  if (!drawn.ends) sequence.token_ids.push_back(token);
  const Verdict verdict = events_->on_token ? events_->on_token(request, drawn) : Verdict::goes_on;
  if (drawn.ends || verdict == Verdict::ends) {
    finish(of, FinishReason::stop);
  } else if (std::ssize(sequence.token_ids) == sequence.max_new_tokens) {
    finish(of, FinishReason::length);
  }
}

void Engine::leave_batch(Sequence& sequence) {
  owed_pages_[sequence.cohort] -= sequence.owed_pages();
  pools_[sequence.cohort].give_back(sequence.pages);
  free_slots_.push_back(sequence.slot);
  sequence.leave_batch();
}

void Engine::finish(const Shared& of, FinishReason reason) {
  Sequence& sequence = *of;
  sequence.finished = true;
  mark_request("finished", sequence.request->index, sequence.request->id);
  if (sequence.admitted) {
    leave_batch(sequence);
    running_.erase(sequence.id);
  } else {
    waiting_.erase({sequence.request->priority, sequence.id});
    waiting_.erase({std::numeric_limits<int>::min(), sequence.id});
  }
  Completion completion;
  completion.request = sequence.request;
  completion.output = sequence.output;
  completion.token_ids = std::move(sequence.token_ids);
  completion.finish_reason = reason;
  completion.arrival_s = sequence.arrival_s;
  completion.admitted_s = sequence.admitted_s;
  completion.first_token_s = sequence.first_token_s;
  completion.last_token_s = sequence.last_token_s;
  completion.num_drawn = sequence.num_received;
  if (events_->on_finished) events_->on_finished(std::move(completion));
}

void Engine::finish_all(FinishReason reason) {
  while (!running_.empty()) finish(Shared(running_.begin()->second), reason);
  std::erase_if(waiting_, [](const auto& entry) { return !entry.second->was_admitted; });
  while (!waiting_.empty()) finish(Shared(waiting_.begin()->second), reason);
}

}  // namespace sluice
