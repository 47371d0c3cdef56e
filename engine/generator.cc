#include "engine/generator.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "codelets/runtime/trace_recorder.h"
#include "engine/text_output.h"

namespace sluice {

/// A request that has a place in the batch.
struct Generator::Sequence {
  Request request;
  std::int32_t slot = 0;
  std::size_t cohort = 0;
  std::vector<std::int32_t> pages;
  std::unique_ptr<TextOutput> text;
  double admitted_s = 0;  ///< run_clock_s()
  double first_token_s = 0;
  double last_token_s = 0;

  std::int64_t id = 0;  ///< for the policy: how many were admitted before

  // What has been submitted so far:
  std::int64_t cached_tokens = 0;  ///< KV written by submitted iterations
  std::int64_t drawn_tokens = 0;   ///< tokens that submitted iterations draw
  // What is known:
  std::vector<std::int32_t> token_ids;
  std::int64_t num_received = 0;    ///< token_ids and the end-of-sequence token
  std::int64_t max_new_tokens = 0;  ///< the request's, limited by the context
  bool finished = false;

  bool in_prefill() const {
    return cached_tokens < static_cast<std::int64_t>(request.prompt_tokens.size());
  }
  /// Tokens that the next iteration computes, of a prompt at most a chunk.
  std::int64_t next_rows(std::int64_t chunk_tokens) const {
    const auto prompt = static_cast<std::int64_t>(request.prompt_tokens.size());
    return in_prefill() ? std::min(prompt - cached_tokens, chunk_tokens) : 1;
  }
  RequestView view(std::span<const KvCache> cohorts) const {
    const auto prompt = static_cast<std::int64_t>(request.prompt_tokens.size());
    return {.id = id,
            .prompt_tokens_left = std::max<std::int64_t>(0, prompt - cached_tokens),
            .context_tokens = cached_tokens,
            .kv = cohorts[cohort].home(0)};
  }
  bool wants_iteration() const {
    return !finished && (in_prefill() || drawn_tokens < max_new_tokens);
  }
};

/// An iteration whose results were not looked at yet.
struct Generator::InFlight {
  struct Part {
    PendingIteration pending;
    std::vector<std::shared_ptr<Sequence>> sequences;  ///< in the order of the batch
    std::vector<bool> draws;  ///< whether each draws a token: all but pieces of prompts do
  };
  std::vector<Part> sub_batches;
};

const char* to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::stop:
      return "stop";
    case FinishReason::length:
      return "length";
    case FinishReason::interrupted:
      return "interrupted";
  }
  return "?";
}

std::int64_t most_new_tokens(const ModelConfig& config, std::int64_t prompt_tokens) {
  return config.max_positions - prompt_tokens + 1;
}

void check_length(const ModelConfig& config, const Workload& workload) {
  const std::int64_t positions = config.max_positions;
  if (workload.input_tokens > positions)
    throw Error("{} tokens in, expected at most the model's {} positions", workload.input_tokens,
                positions);
  const std::int64_t most = most_new_tokens(config, workload.input_tokens);
  if (workload.output_tokens > most)
    throw Error("{} tokens out after {} in, expected at most {}: the model has {} positions",
                workload.output_tokens, workload.input_tokens, most, positions);
}

namespace {

std::int64_t new_tokens_limit(const Request& request, const ModelConfig& config) {
  const auto prompt = static_cast<std::int64_t>(request.prompt_tokens.size());
  return std::min(request.max_new_tokens, most_new_tokens(config, prompt));
}

SamplingRow sampling_row(const SamplingParams& params, std::int64_t step) {
  return {.temperature = params.temperature,
          .top_p = params.top_p,
          .min_p = params.min_p,
          .repetition_penalty = params.repetition_penalty,
          .top_k = params.top_k,
          .seed_low = static_cast<std::uint32_t>(params.seed),
          .seed_high = static_cast<std::uint32_t>(params.seed >> 32),
          .step = static_cast<std::int32_t>(step)};
}

DecoderGraph::Options graph_options(const Generator::Options& options) {
  const DecoderGraph::Options chosen{
      .num_slots = options.max_batch, .attention = options.attention, .fusion = options.fusion};
  return options.policy != nullptr ? options.policy->graph_options(chosen) : chosen;
}

}  // namespace

std::int64_t kv_tokens(const Request& request, const ModelConfig& config) {
  return static_cast<std::int64_t>(request.prompt_tokens.size()) +
         new_tokens_limit(request, config);
}

Generator::Generator(const ModelWeights& model, std::span<KvCache> cohorts,
                     const Tokenizer* tokenizer, const Options& options)
    : model_(model),
      cohorts_(cohorts),
      tokenizer_(tokenizer),
      options_(options),
      graph_(model, cohorts, graph_options(options)),
      free_slots_(static_cast<std::size_t>(options.max_batch)) {
  std::iota(free_slots_.rbegin(), free_slots_.rend(), 0);
}

Generator::~Generator() = default;

GenerationStats Generator::run(const std::function<std::optional<Request>()>& next,
                               const GenerationEvents& events, const std::atomic<bool>& interrupt) {
  const double start_s = run_clock_s();
  stats_ = {};
  waiting_.reset();
  input_ended_ = false;
  std::optional<InFlight> before;
  while (true) {
    std::optional<InFlight> current;
    if (!interrupt) {
      admit(next);
      current = submit_iteration(before.has_value());
    }
    if (before) handle_results(*before, events);
    before = std::move(current);
    if (!before && (interrupt || (running_.empty() && input_ended_ && !waiting_))) break;
  }
  while (!running_.empty()) finish(*running_.front(), FinishReason::interrupted, events);
  stats_.wall_s = run_clock_s() - start_s;
  return stats_;
}

void Generator::admit(const std::function<std::optional<Request>()>& next) {
  while (!free_slots_.empty()) {
    if (!waiting_ && !input_ended_) waiting_ = next();
    if (!waiting_) {
      input_ended_ = true;
      return;
    }
    std::optional<TakenPages> taken = take_pages(*waiting_);
    if (!taken) return;  // a running sequence will give some back
    auto sequence = std::make_shared<Sequence>();
    sequence->request = std::move(*waiting_);
    waiting_.reset();
    sequence->cohort = taken->cohort;
    sequence->pages = std::move(taken->pages);
    sequence->slot = free_slots_.back();
    free_slots_.pop_back();
    sequence->id = num_admitted_++;
    sequence->max_new_tokens = new_tokens_limit(sequence->request, model_.config());
    sequence->admitted_s = run_clock_s();
    if (tokenizer_ != nullptr) {
      sequence->text = std::make_unique<TextOutput>(*tokenizer_, sequence->request.stop);
    }
    stats_.prompt_tokens += static_cast<std::int64_t>(sequence->request.prompt_tokens.size());
    mark_request("admitted", sequence->request.index, sequence->request.id);
    running_.push_back(std::move(sequence));
  }
}

std::optional<Generator::TakenPages> Generator::take_pages(const Request& request) {
  const std::int64_t count = KvCache::pages_for(kv_tokens(request, model_.config()));
  std::int64_t most = 0;
  for (std::size_t cohort = 0; cohort < cohorts_.size(); ++cohort) {
    if (auto pages = cohorts_[cohort].take_pages(count))
      return TakenPages{cohort, std::move(*pages)};
    most = std::max(most, cohorts_[cohort].num_pages());
  }
  if (running_.empty()) {
    throw Error("request {} needs {} KV pages, the cache has {}; use a smaller --max-tokens",
                request.id, count, most);
  }
  return std::nullopt;
}

SubBatch Generator::make_sub_batch(Sequences& sequences, std::vector<bool>& draws) const {
  const auto kind = [](const std::shared_ptr<Sequence>& sequence) {
    return std::pair(sequence->cohort, !sequence->in_prefill());
  };
  std::stable_sort(sequences.begin(), sequences.end(),
                   [&](const auto& a, const auto& b) { return kind(a) < kind(b); });
  SubBatch sub_batch;
  draws.reserve(sequences.size());
  std::optional<std::pair<std::size_t, bool>> last;
  for (const std::shared_ptr<Sequence>& sequence : sequences) {
    if (last != kind(sequence)) {
      last = kind(sequence);
      sub_batch.parts.emplace_back().cohort = sequence->cohort;
    }
    draws.push_back(add_to(sub_batch.parts.back(), *sequence));
  }
  if (options_.policy != nullptr) {
    options_.policy->place(sub_batch);
  } else {
    sub_batch.join_alike();
  }
  return sub_batch;
}

bool Generator::add_to(BatchPart& part, Sequence& sequence) const {
  const std::vector<std::int32_t>& prompt = sequence.request.prompt_tokens;
  const std::int32_t last_drawn = -(sequence.slot + 1);
  std::span<const std::int32_t> tokens(&last_drawn, 1);
  bool draws = true;
  if (sequence.in_prefill()) {
    const auto rest = std::span(prompt).subspan(static_cast<std::size_t>(sequence.cached_tokens));
    tokens =
        rest.first(static_cast<std::size_t>(sequence.next_rows(options_.prefill_chunk_tokens)));
    draws = tokens.size() == rest.size();
    part.phase = Phase::prefill;
  }
  const std::vector<std::int32_t> suppressed =
      draws ? suppressed_for(sequence) : std::vector<std::int32_t>();
  part.batch.add({.slot = sequence.slot,
                  .context = static_cast<std::int32_t>(sequence.cached_tokens),
                  .fresh = sequence.cached_tokens == 0,
                  .tokens = tokens,
                  .pages = sequence.pages,
                  .sampling = sampling_row(sequence.request.sampling, sequence.drawn_tokens),
                  .suppressed = suppressed},
                 draws ? BatchBuilder::LogitRows::last : BatchBuilder::LogitRows::none);
  sequence.cached_tokens += static_cast<std::int64_t>(tokens.size());
  if (draws) ++sequence.drawn_tokens;
  return draws;
}

std::vector<std::int32_t> Generator::suppressed_for(const Sequence& sequence) const {
  std::vector<std::int32_t> ids = options_.suppress_tokens;
  const auto add = [&ids](const std::vector<std::int32_t>& more) {
    ids.insert(ids.end(), more.begin(), more.end());
  };
  const Request& request = sequence.request;
  if (sequence.drawn_tokens == 0) add(options_.begin_suppress_tokens);
  if (!request.ignore_eos && sequence.drawn_tokens < request.min_new_tokens)
    add(options_.eos_token_ids);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

IterationPlan Generator::plan_iteration(const std::vector<RequestView>& requests, bool under_way) {
  if (options_.policy == nullptr) {
    SubBatchPlan all;
    for (const RequestView& request : requests) all.requests.push_back(request.id);
    return {.sub_batches = {std::move(all)}};
  }
  return options_.policy->plan_iteration(requests,
                                         under_way ? Awaited::an_iteration : Awaited::nothing);
}

std::vector<Generator::Sequences> Generator::cut_into_mini_batches(
    const Sequences& sequences) const {
  if (options_.policy == nullptr) return {sequences};
  const bool prompts = std::any_of(sequences.begin(), sequences.end(),
                                   [](const auto& sequence) { return sequence->in_prefill(); });
  return options_.policy->mini_batches(prompts ? Phase::prefill : Phase::decode)
      .cut(sequences, [&](const std::shared_ptr<Sequence>& sequence) {
        return sequence->next_rows(options_.prefill_chunk_tokens);
      });
}

std::optional<Generator::InFlight> Generator::submit_iteration(bool under_way) {
  std::vector<RequestView> views;
  Sequences wanting;  // by id, as they were admitted
  for (const std::shared_ptr<Sequence>& sequence : running_) {
    if (!sequence->wants_iteration()) continue;
    views.push_back(sequence->view(cohorts_));
    wanting.push_back(sequence);
  }
  if (views.empty()) return std::nullopt;
  InFlight flight;
  std::vector<SubBatch> sub_batches;
  for (const SubBatchPlan& planned : plan_iteration(views, under_way).sub_batches) {
    std::vector<std::shared_ptr<Sequence>> sequences;
    sequences.reserve(planned.requests.size());
    for (const std::int64_t id : planned.requests) {
      sequences.push_back(*std::lower_bound(
          wanting.begin(), wanting.end(), id,
          [](const auto& sequence, std::int64_t wanted) { return sequence->id < wanted; }));
    }
    for (auto& part : cut_into_mini_batches(sequences)) {
      std::vector<bool> draws;
      sub_batches.push_back(make_sub_batch(part, draws));
      flight.sub_batches.push_back({{}, std::move(part), std::move(draws)});
    }
  }
  if (flight.sub_batches.empty()) return std::nullopt;
  std::vector<PendingIteration> pending = graph_.submit(sub_batches);
  for (std::size_t i = 0; i < pending.size(); ++i)
    flight.sub_batches[i].pending = std::move(pending[i]);
  ++stats_.iterations;
  return flight;
}

void Generator::handle_results(const InFlight& done, const GenerationEvents& events) {
  for (const InFlight::Part& part : done.sub_batches) {
    const std::vector<std::int32_t> tokens = part.pending.tokens();
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      Sequence& sequence = *part.sequences[i];
      if (part.draws[i] && !sequence.finished) take_token(sequence, tokens[i], events);
    }
  }
}

void Generator::take_token(Sequence& sequence, std::int32_t token, const GenerationEvents& events) {
  sequence.last_token_s = run_clock_s();
  ++stats_.generated_tokens;
  ++sequence.num_received;
  const auto& eos = options_.eos_token_ids;
  const bool is_eos = std::find(eos.begin(), eos.end(), token) != eos.end();
  if (sequence.num_received == 1) {
    sequence.first_token_s = sequence.last_token_s;
    mark_request("first-token", sequence.request.index, sequence.request.id);
  }
  if (events.on_token) events.on_token(sequence.request, sequence.num_received - 1);
  if (is_eos && !sequence.request.ignore_eos) {
    finish(sequence, FinishReason::stop, events);
    return;
  }
  sequence.token_ids.push_back(token);
  if (sequence.text) {
    const std::string text = sequence.text->add(token);
    if (!text.empty() && events.on_text) events.on_text(sequence.request, text);
    if (sequence.text->stopped()) {
      finish(sequence, FinishReason::stop, events);
      return;
    }
  }
  if (static_cast<std::int64_t>(sequence.token_ids.size()) == sequence.max_new_tokens) {
    finish(sequence, FinishReason::length, events);
  }
}

void Generator::finish(Sequence& sequence, FinishReason reason, const GenerationEvents& events) {
  sequence.finished = true;
  mark_request("finished", sequence.request.index, sequence.request.id);
  cohorts_[sequence.cohort].give_back(sequence.pages);
  free_slots_.push_back(sequence.slot);
  Completion completion;
  if (sequence.text) {
    const std::string rest = sequence.text->finish();
    if (!rest.empty() && events.on_text) events.on_text(sequence.request, rest);
    completion.text = sequence.text->text();
  }
  completion.token_ids = std::move(sequence.token_ids);
  completion.finish_reason = reason;
  if (sequence.num_received > 0) {
    completion.time_to_first_token_s = sequence.first_token_s - sequence.admitted_s;
    const auto later = static_cast<double>(sequence.num_received) - 1;
    if (later > 0) {
      completion.time_per_output_token_s = (sequence.last_token_s - sequence.first_token_s) / later;
    }
  }
  completion.request = std::move(sequence.request);
  std::erase_if(running_, [&](const auto& other) { return other.get() == &sequence; });
  if (events.on_finished) events.on_finished(std::move(completion));
}

}  // namespace sluice
