#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_set>
#include <vector>

#include "engine/batching/executor.h"
#include "engine/batching/kv_pool.h"
#include "engine/batching/policy_run.h"
#include "engine/batching/sequence.h"
#include "engine/requests/events.h"
#include "engine/requests/source.h"
#include "models/config.h"

namespace sluice {

inline constexpr std::int64_t default_prefill_chunk_tokens = 2048;

/// Whether a request waits until the KV cache has room for all tokens that it may get.
enum class AdmitBy : std::uint8_t {
  whole_output,  ///< it does; so none that runs has to make way
  known_tokens,  ///< its pages are taken as it grows; where they run out, a later one makes way
};

struct EngineOptions {
  std::int64_t max_sequences = 1;  ///< that run at once
  /// Rows of an iteration; nothing: as many as there are. At least
  /// least_batch_tokens(max_sequences).
  std::optional<std::int64_t> max_batch_tokens = std::nullopt;
  /// Prompt tokens that one iteration computes for one sequence; a longer prompt takes several.
  std::int64_t prefill_chunk_tokens = default_prefill_chunk_tokens;
  AdmitBy admit_by = AdmitBy::whole_output;
  std::int64_t max_skips = 16;      ///< see Engine
  std::int64_t max_overtakes = 64;  ///< see Engine
  std::vector<std::int32_t> eos_token_ids = {};
  std::vector<std::int32_t> suppress_tokens = {};        ///< never drawn
  std::vector<std::int32_t> begin_suppress_tokens = {};  ///< not drawn as an output's first token
  /// Says what runs together and where; outlives the engine. Null: everything at once, on the CPU.
  PolicyRun* policy = nullptr;

  /// So few that a prompt can go on beside all others' next tokens.
  static constexpr std::int64_t least_batch_tokens(std::int64_t max_sequences) {
    return max_sequences + 2 * fewest_prompt_rows;
  }
};

/// Totals of one run.
struct EngineStats {
  std::int64_t prompt_tokens = 0;     ///< of admitted requests, each output's
  std::int64_t generated_tokens = 0;  ///< drawn tokens, end-of-sequence tokens included
  std::int64_t iterations = 0;
  std::int64_t preemptions = 0;  ///< outputs that gave up their KV to make way
  /// Pages of one layer that went to the first pool, and that went to another one.
  std::int64_t swapped_in_pages = 0;
  std::int64_t swapped_out_pages = 0;
  std::int64_t prefix_hit_tokens = 0;  ///< prompt tokens whose KV was there
  double wall_s = 0;
};

/// Runs requests through a model: decides what each iteration computes, keeps the books of pages
/// and slots, and tells what comes out. What computes is the executor.
///
/// An iteration is begun before the results of the one before it are looked at: what it computes
/// depends on lengths alone. So an output that ends by its content, or is cancelled, computes one
/// token more, which is thrown away.
///
/// Requests are admitted by priority, then by arrival. None that fits is overtaken by more than
/// `max_overtakes` later ones, and none that runs is left out by the policy of more than
/// `max_skips` iterations in a row in which one that came later takes part.
class Engine {
 public:
  /// The pools are the executor's cohorts, and the policy's kv_cohorts(). All outlive the engine.
  /// Throws Error when max_batch_tokens is too small.
  Engine(const ModelConfig& model, std::span<KvPool> pools, Executor& executor,
         const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Returns when the source has ended and all outputs are finished, or soon after `interrupt` is
  /// set: what is running then finishes as `interrupted`, what waits is dropped. Throws Error when
  /// a kernel fails.
  EngineStats run(RequestSource& source, const EngineEvents& events,
                  const std::atomic<bool>& interrupt);

  // For the events' handlers:
  /// Of the run so far, but for wall_s.
  const EngineStats& stats() const { return stats_; }
  /// Outputs that wait, and that run.
  std::int64_t num_waiting() const { return std::ssize(waiting_); }
  std::int64_t num_running() const { return std::ssize(running_); }
  /// Of the running ones, those whose KV is not in the first pool.
  std::int64_t num_swapped() const;

 private:
  using Shared = std::shared_ptr<Sequence>;
  using Sequences = std::vector<Shared>;

  /// A sequence with what it brings to an iteration.
  struct Scheduled {
    Shared sequence;
    Piece piece;
  };
  /// An iteration that will be begun: who can take part, and who does with whom.
  struct Planned {
    std::vector<Scheduled> scheduled;
    IterationPlan plan;
  };
  /// An iteration whose results were not looked at yet: its sequences, by sub-batch, in the order
  /// of the batch.
  struct InFlight {
    std::vector<std::vector<Scheduled>> sub_batches;
  };

  using Taken = std::unordered_set<const Sequence*>;

  // Requests that come and go.
  void take_requests();
  void enqueue(Request request);
  void cancel(std::int64_t index);
  void wait_for_admission(const Shared& sequence);
  /// By the engine's own rule.
  void admit();
  bool admit(const Shared& sequence);
  /// False: its KV has no room in that pool now.
  bool admit_to(std::size_t cohort, const Shared& sequence);
  /// Pages that it is promised when it is admitted.
  std::int64_t promised_to(const Sequence& sequence) const;
  /// From now on it runs; counts for those that came earlier and go on waiting.
  void begin_running(const Shared& sequence);

  // Who takes part in the next iteration.
  /// Begins it, with the sequences that the policy picks among all that can take part; nothing when
  /// none can, or when it picks none while another iteration is under way.
  std::optional<InFlight> begin_iteration(bool under_way);
  /// By the policy's schedule(); nothing if it leaves that to the engine, or there is none.
  std::optional<Planned> by_the_policy(bool under_way);
  Situation situation(bool under_way) const;
  Planned follow(const Schedule& schedule);
  /// Those with rows that the policy has left out.
  static void add_left_out(Planned& next);
  /// Throws Error: the policy's.
  void follow_moves(const Schedule& schedule);
  /// The pool of that tier.
  std::size_t cohort_of(Tier tier) const;
  [[noreturn]] void refuse_pages(const Sequence& sequence, std::size_t cohort,
                                 std::int64_t pages) const;
  /// By the engine's own rule.
  Planned by_own_rule(bool under_way);
  /// The running sequences that want an iteration and get rows, within the limits, and pages for
  /// them; by id.
  std::vector<Scheduled> schedule();
  /// Adds it with at most so many rows if there are rows and pages for it, even if others that are
  /// not `taken` make way; takes them from `rows_left`.
  void schedule(const Shared& sequence, std::int64_t& rows_left, Taken& taken,
                std::vector<Scheduled>& scheduled);
  /// False: there are none.
  bool take_pages_for(const Shared& sequence, std::int64_t rows);
  bool make_way_for(const Shared& sequence, std::int64_t rows, const Taken& taken);
  Shared who_makes_way_for(const Shared& sequence, const Taken& taken) const;
  /// Its KV goes to another pool that has room, or is given up.
  void make_way(const Shared& sequence);
  void preempt(const Shared& sequence);
  /// False: there is no room, or KV does not move between these cohorts.
  bool swap(Sequence& sequence, std::size_t cohort);
  std::int64_t room_in(std::size_t cohort) const {
    return pools_[cohort].num_available() - owed_pages_[cohort];
  }
  /// Changes what a sequence holds or was promised, and keeps count.
  template <typename Change>
  auto changing_pages(Sequence& sequence, const Change& change);
  bool moves(std::size_t cohort) const;
  IterationPlan plan_iteration(const std::vector<Scheduled>& scheduled, bool under_way);
  bool is_left_out_too_long(const Sequence& sequence) const;
  /// Lets those take part that were left out too often, or leaves out all that came later.
  void bound_skips(const std::vector<Scheduled>& scheduled, IterationPlan& plan);
  /// Notes who takes part.
  void note_plan(const IterationPlan& plan);
  void count_skips();
  IterationReport report(const std::vector<SubBatch>& sub_batches, const InFlight& flight) const;

  // What it computes.
  /// As the policy's pipeline has it for their phase, and no larger than pays.
  std::vector<std::vector<Scheduled>> cut_into_mini_batches(
      const std::vector<Scheduled>& sequences) const;
  /// Puts the sequences in the order of the sub-batch.
  SubBatch make_sub_batch(std::vector<Scheduled>& sequences) const;
  void add_to(BatchPart& part, const Scheduled& scheduled) const;
  void keep_prompt_pages(Sequence& sequence) const;
  /// Tokens that the sequence's next one must not be, ascending.
  std::vector<std::int32_t> suppressed_for(const Sequence& sequence) const;

  // What came out.
  void handle_results(const InFlight& done);
  void take_token(const Shared& of, std::int32_t token, const TokenLogprobs* logprobs);
  bool ends_output(const Request& request, std::int32_t token) const;
  void leave_batch(Sequence& sequence);
  void finish(const Shared& of, FinishReason reason);
  void finish_all(FinishReason reason);

  const ModelConfig& model_;
  std::span<KvPool> pools_;
  Executor& executor_;
  EngineOptions options_;
  RequestSource* source_ = nullptr;
  const EngineEvents* events_ = nullptr;
  /// In the order in which they are admitted: by priority, then by arrival; those that were
  /// overtaken too often come first.
  std::map<std::pair<int, std::int64_t>, Shared> waiting_;
  std::map<std::int64_t, Shared> running_;  ///< by arrival: id
  /// Of each pool, pages that were promised to admitted sequences, and that they have not taken.
  std::vector<std::int64_t> owed_pages_;
  std::vector<std::int32_t> free_slots_;
  std::vector<KvMove> moves_;  ///< before the next iteration
  std::int64_t num_arrived_ = 0;
  EngineStats stats_;
};

}  // namespace sluice
