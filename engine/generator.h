#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/policy_run.h"
#include "graphs/decoder_graph.h"
#include "models/tokenizer.h"

namespace sluice {

/// How the tokens of one request are drawn, and when it ends.
struct SamplingParams {
  float temperature = 0.0F;  ///< 0: greedy
  int top_k = 0;             ///< 0: off
  float top_p = 1.0F;
  float min_p = 0.0F;
  float repetition_penalty = 1.0F;
  std::uint64_t seed = 0;
};

/// New tokens that a model has positions for behind a prompt: the last one that is drawn needs
/// none.
std::int64_t most_new_tokens(const ModelConfig& config, std::int64_t prompt_tokens);
/// Throws Error when a model has too few positions for what is planned or simulated: a run would
/// end early, and look faster than it is.
void check_length(const ModelConfig& config, const Workload& workload);

/// One prompt to continue.
struct Request {
  std::int64_t index = 0;  ///< place in the input
  std::string id;
  std::string prompt;
  std::vector<std::int32_t> prompt_tokens;
  std::int64_t max_new_tokens = 128;
  bool ignore_eos = false;
  std::vector<std::string> stop;  ///< texts that end the output, none empty; no part of it
  /// Tokens that come before an end-of-sequence token may; a stop text ends the output earlier.
  std::int64_t min_new_tokens = 0;
  SamplingParams sampling;
};

enum class FinishReason : std::uint8_t { stop, length, interrupted };
const char* to_string(FinishReason reason);

/// What became of a request.
struct Completion {
  Request request;
  std::vector<std::int32_t> token_ids;  ///< without the end-of-sequence token
  std::string text;                     ///< valid UTF-8
  FinishReason finish_reason = FinishReason::stop;
  double time_to_first_token_s = 0;  ///< from admission into the batch
  double time_per_output_token_s =
      0;  ///< mean over the tokens after the first; 0 with fewer than two
};

/// Called while generating, on the thread that runs the generator.
struct GenerationEvents {
  /// New text of a request, complete UTF-8 characters only. Text that may yet turn out to be a stop
  /// text is held back.
  std::function<void(const Request&, const std::string& text)> on_text;
  std::function<void(Completion)> on_finished;
  /// A request has its token number `index`, from 0 on; the end-of-sequence token, too.
  std::function<void(const Request&, std::int64_t index)> on_token = {};
};

/// Totals of one run.
struct GenerationStats {
  std::int64_t prompt_tokens = 0;
  std::int64_t generated_tokens = 0;  ///< drawn tokens, end-of-sequence tokens included
  std::int64_t iterations = 0;
  double wall_s = 0;
};

inline constexpr std::int64_t default_prefill_chunk_tokens = 2048;

/// Runs requests through a model: at most `max_batch` at once, the place of a finished one goes to
/// the next. The graph of an iteration is submitted before the results of the one before it are
/// looked at, so a sequence that ends by its content computes one token more, which is thrown away.
class Generator {
 public:
  struct Options {
    std::int64_t max_batch = 1;
    AttentionForm attention = AttentionForm::fused;
    Fusion fusion = Fusion::layers;
    std::vector<std::int32_t> eos_token_ids = {};
    std::vector<std::int32_t> suppress_tokens = {};        ///< never drawn
    std::vector<std::int32_t> begin_suppress_tokens = {};  ///< not drawn as an output's first token
    /// Prompt tokens that one iteration computes for one sequence; a longer prompt takes several.
    std::int64_t prefill_chunk_tokens = default_prefill_chunk_tokens;
    /// Says what runs together and where; outlives the generator. Null: everything at once, on the
    /// CPU.
    PolicyRun* policy = nullptr;
  };

  /// The KV caches of `cohorts` are the policy's kv_cohorts(), and together have pages for
  /// `max_batch` of the longest requests. `tokenizer` may be null: then there is no text and no
  /// stop text. All outlive the generator.
  Generator(const ModelWeights& model, std::span<KvCache> cohorts, const Tokenizer* tokenizer,
            const Options& options);
  ~Generator();
  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  /// Requests are taken from `next` whenever a place is free, until it gives nothing. Returns when
  /// all are finished, or soon after `interrupt` is set: what is running then finishes as
  /// `interrupted`. Throws Error when a kernel fails.
  GenerationStats run(const std::function<std::optional<Request>()>& next,
                      const GenerationEvents& events, const std::atomic<bool>& interrupt);

 private:
  struct Sequence;
  struct InFlight;
  using Sequences = std::vector<std::shared_ptr<Sequence>>;

  void admit(const std::function<std::optional<Request>()>& next);
  /// Submits the next iteration, of the sequences that the policy picks among all that still need
  /// one; nothing when none does, or when it picks none while another iteration is under way.
  std::optional<InFlight> submit_iteration(bool under_way);
  IterationPlan plan_iteration(const std::vector<RequestView>& requests, bool under_way);
  /// As the policy's pipeline has it for their phase, and no larger than pays.
  std::vector<Sequences> cut_into_mini_batches(const Sequences& sequences) const;
  /// Pages for a request from the first cohort that has enough.
  struct TakenPages {
    std::size_t cohort = 0;
    std::vector<std::int32_t> pages;
  };
  std::optional<TakenPages> take_pages(const Request& request);
  /// Puts the sequences in the order of the sub-batch; `draws` gets what add_to() says of each.
  SubBatch make_sub_batch(Sequences& sequences, std::vector<bool>& draws) const;
  /// True when the sequence draws a token: this is not a piece of its prompt before the last one.
  bool add_to(BatchPart& part, Sequence& sequence) const;
  /// Tokens that the sequence's next one must not be, ascending.
  std::vector<std::int32_t> suppressed_for(const Sequence& sequence) const;
  void handle_results(const InFlight& done, const GenerationEvents& events);
  void take_token(Sequence& sequence, std::int32_t token, const GenerationEvents& events);
  void finish(Sequence& sequence, FinishReason reason, const GenerationEvents& events);

  const ModelWeights& model_;
  std::span<KvCache> cohorts_;
  const Tokenizer* tokenizer_;
  Options options_;
  DecoderGraph graph_;
  std::list<std::shared_ptr<Sequence>> running_;
  std::vector<std::int32_t> free_slots_;
  std::optional<Request> waiting_;  ///< taken from the input, but no pages were free
  bool input_ended_ = false;
  std::int64_t num_admitted_ = 0;
  GenerationStats stats_;
};

/// Tokens that a request may take of the KV cache, prompt and output together.
std::int64_t kv_tokens(const Request& request, const ModelConfig& config);

}  // namespace sluice
