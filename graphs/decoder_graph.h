#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "codelets/kv_move/kv_move.h"
#include "codelets/logprobs/logprobs.h"
#include "codelets/runtime/batch.h"
#include "codelets/stage/stage.h"
#include "graphs/kv_cache.h"
#include "graphs/kv_plan.h"
#include "graphs/model_weights.h"
#include "graphs/sub_batch.h"
#include "perfmodels/placement.h"
#include "perfmodels/task.h"

namespace sluice {

/// How sublayers 2 and 3 run: as one flash-style stage, or as the split pair with stored scores.
enum class AttentionForm : std::uint8_t { fused, split };
/// Whether neighbouring sublayers on one device are one task: those of several layers where nothing
/// comes between (layer_run.h), all of a layer, those of its attention half (1 to 4) and of its FFN
/// half, or none.
enum class Fusion : std::uint8_t { layers, stages, halves, sublayers };
/// What the last layer's sublayers 4 to 6 compute: nothing reads the rows that draw no token, and
/// give none a logprob.
enum class LastLayer : std::uint8_t { drawing_rows, all_rows };

/// One submitted sub-batch: what its tasks read and what comes out. Destroying it waits for its
/// tasks.
class PendingIteration {
 public:
  PendingIteration() = default;
  ~PendingIteration() = default;
  PendingIteration(PendingIteration&&) = default;
  /// The old handles must go before the memory that they stand for, as in the destructor.
  PendingIteration& operator=(PendingIteration&& other) noexcept {
    PendingIteration old(std::move(*this));
    std::swap(num_sequences_, other.num_sequences_);
    std::swap(num_logits_, other.num_logits_);
    std::swap(logprobs_width_, other.logprobs_width_);
    std::swap(prompt_logprobs_width_, other.prompt_logprobs_width_);
    std::swap(scored_block_rows_, other.scored_block_rows_);
    batches_ = std::move(other.batches_);
    moved_pages_ = std::move(other.moved_pages_);
    tokens_ = std::move(other.tokens_);
    logits_ = std::move(other.logits_);
    logprobs_ = std::move(other.logprobs_);
    prompt_logprobs_ = std::move(other.prompt_logprobs_);
    return *this;
  }
  PendingIteration(const PendingIteration&) = delete;
  PendingIteration& operator=(const PendingIteration&) = delete;

  /// The drawn tokens, one a sequence of the batch, in its order; waits for them. Throws Error when
  /// a kernel failed.
  std::vector<std::int32_t> tokens() const;
  /// The logits [logit rows, vocab_size] if they were kept; waits for them. Throws Error as above.
  std::vector<float> logits() const;
  /// Of the drawn tokens, one a sequence in the batch's order, nothing where none was drawn or
  /// asked for; waits for them. Throws Error as above.
  std::vector<std::optional<TokenLogprobs>> logprobs() const;
  /// Of given tokens of prompts: for each sequence those behind its rows (the first row's token has
  /// none here), as far as they were asked for; waits for them. Throws Error as above.
  std::vector<std::vector<TokenLogprobs>> prompt_logprobs() const;

 private:
  friend class DecoderGraph;
  struct FlatWords {
    explicit FlatWords(std::vector<std::int32_t> its_words);
    std::vector<std::int32_t> words;  // outlives its handle
    DataHandle handle;
  };
  std::int64_t num_sequences_ = 0;
  std::int64_t num_logits_ = 0;
  /// Entries of a row of the logprobs: the token's and the likeliest ones'; 0: nobody asks.
  std::int64_t logprobs_width_ = 0;
  std::int64_t prompt_logprobs_width_ = 0;
  std::size_t scored_block_rows_ = 0;  ///< of all blocks but the last, which may have fewer
  std::vector<FlatWords> batches_;  ///< of the sub-batch; then of each part, when there are several
  std::vector<FlatWords> moved_pages_;  ///< what the iteration moves first
  /// Of parts whose attention may run where their cached KV is not: its pages, and the batch with
  /// these alone.
  std::vector<FlatWords> cached_pages_;
  DataHandle tokens_;
  DataHandle logits_;
  DataHandle logprobs_;                      ///< [sequences, logprobs_width]
  std::vector<DataHandle> prompt_logprobs_;  ///< of each block [rows, prompt_logprobs_width]
};

/// Turns iterations of one model into StarPU tasks. Dependencies follow from the data, so the next
/// iteration may be submitted at once. One sub-batch, with two parts in the first layer shown:
///
///                      part 0: kv_store > 2 3
///   embedding > 1 ---- part 1: kv_store > 2 3 ---- attention_join > 4 5 6 > next layer
///   last layer:   1 > 2 3 > select_rows > 4 5 6 > lm_head > sampling > logprobs
///                                               > lm_head > logprobs, in blocks of a prompt's rows
///
/// 1. A layer is cut where its placement changes the device; each task's tag names its device.
/// 2. Layers in place on one device are one task together (perfmodels/layer_run.h).
/// 3. A kv_store task stands where sublayers 1 to 3 do not all run beside the slab (KvPlan).
/// 4. Attention of different parts does not wait for each other; their rows share 1 and 4 to 6.
/// 5. Sub-batches follow each other where they share a slab, layer by layer, and in sampling.
/// 6. Rows that draw no token, and are not scored, end with the last layer's attention.
/// 7. In a layer with experts, router > shared_ffn > experts > expert_join stand in place of 5 and
///    6: the experts where p5 = p6 says, a GPU's as a task for each chunk, the others where 4 runs.
///    Hot experts run on the GPU, beside the others, and have a sum of their own.
/// 8. There are logprobs where a sequence asks. Of a prompt's scored rows only the logits of two
///    blocks are there at once.
/// docs/design/overview.md has the reasons.
class DecoderGraph {
 public:
  struct Options {
    std::int64_t num_slots = 1;  ///< sequences that run at once
    AttentionForm attention = AttentionForm::fused;
    Fusion fusion = Fusion::layers;
    LastLayer last_layer = LastLayer::drawing_rows;
    Device embedding_device = Device::cpu;
    Device head_device = Device::cpu;  ///< of LM head and sampling
    /// The most scored rows whose logits are computed at once.
    std::int64_t logit_block_rows = 256;
    /// For each layer the device that reads all of its weights where they live; nothing: something
    /// has to come. Empty: that is so everywhere.
    std::vector<std::optional<Device>> weight_readers = {};
  };
  enum class Logits : std::uint8_t { drop, keep };

  /// `cohorts`, one KV cache each, outlive the graph.
  DecoderGraph(const ModelWeights& model, std::span<const KvCache> cohorts, const Options& options);

  /// Submits one iteration and returns without waiting: one result for each sub-batch. Their tasks
  /// are submitted layer by layer, so that a scheduler that looks ahead sees all that a layer's
  /// weights are for together. Throws Error when StarPU refuses.
  /// `moves` come first, layer by layer; they need a sub-batch.
  std::vector<PendingIteration> submit(const std::vector<SubBatch>& sub_batches,
                                       Logits logits = Logits::drop,
                                       std::span<const KvMove> moves = {});
  /// An iteration of one sub-batch of one part.
  PendingIteration submit(const BatchPart& part, Logits logits = Logits::drop);

 private:
  using Stages = std::vector<SublayerRange>;
  using FlatWords = PendingIteration::FlatWords;
  struct Rows;   // what passes to and from the attention of a sub-batch or of one part
  struct Chain;  // the handles that the tasks of one sub-batch share
  struct ExpertData;
  /// How a layer's attention reaches its KV.
  struct KvUse {
    KvPath path;
    HandleRef new_kv;
  };
  PendingIteration begin(const SubBatch& sub_batch, const BatchPart& whole) const;
  TaskTag tag_of(const BatchPart& part, std::size_t sub_batch) const;
  /// What reads the tier of a layer's KV.
  std::optional<Device> home_of(const Rows& rows, std::int64_t layer) const;
  /// The numbers of the moves' pages, from and to.
  static std::vector<FlatWords> page_lists(std::span<const KvMove> moves);
  /// Gathers a cohort's pages of a layer, or scatters them, beside its slab.
  void submit_page_task(KvMoveArgs::Step step, std::size_t cohort, std::int64_t layer,
                        const FlatWords& pages, const DataHandle& moved, TaskTag tag) const;
  void submit_moves(std::int64_t layer, std::span<const KvMove> moves,
                    std::span<const FlatWords> lists) const;
  /// Brings the part's cached KV of a layer to where its attention runs, and its pages alone.
  void submit_gather(Rows& rows, std::int64_t layer) const;
  bool brings_pages(const BatchPart& part, std::int64_t layer) const;
  /// In some layer.
  bool brings_pages(const BatchPart& part) const;
  void submit_embedding_task(const Chain& chain);
  /// How many layers from `first` on are one task: at least 1.
  std::int64_t layers_of_task(const Chain& chain, const SubBatch& sub_batch,
                              std::int64_t first) const;
  std::optional<Device> weight_reader(std::int64_t layer) const;
  void submit_layer_run(const Chain& chain, std::int64_t first, std::int64_t count,
                        const Placement& placement);
  void submit_layer(Chain& chain, std::int64_t layer, const BatchPart& part);
  void submit_layer_in_parts(Chain& chain, std::int64_t layer, const SubBatch& sub_batch);
  void submit_attention_of(const Chain& chain, Rows& part, std::int64_t layer,
                           const BatchPart& batch_part, const DataHandle& new_kv);
  void submit_range(const Chain& chain, const Rows& rows, std::int64_t layer,
                    const SublayerRange& range, Device device, const KvUse& kv,
                    const ExpertData* experts = nullptr);
  /// A range of some layers, for `rows` of the chain.
  void submit_stages(const Chain& chain, const Rows& rows, const TaskTag& tag, KvPath path,
                     std::span<const LayerHandles> layers, const ExpertData* experts = nullptr);
  LayerHandles handles_of(const Rows& rows, std::int64_t layer, const DataHandle& new_kv) const;
  void submit_router_of(const Chain& chain, std::int64_t layer, Device device,
                        const ExpertData& data);
  /// Adds to x what its FFN for all rows gives, which its experts need not wait for.
  void submit_shared_ffn_of(const Chain& chain, std::int64_t layer, Device device,
                            const ExpertData& data);
  /// Those of a layer, and what adds them to x.
  void submit_experts_of(const Chain& chain, std::int64_t layer, const Placement& placement,
                         const ExpertData& data);
  struct ChunkRange {
    std::int32_t begin, end;
  };
  /// The experts of some chunks alone: the CPU's as one task, a GPU's as one for each chunk, so
  /// that only one need be there at a time.
  void submit_chunks(const Chain& chain, std::int64_t layer, const ChunkRange& range, Device device,
                     const ExpertData& data, const DataHandle& sum) const;
  /// A range that ends behind attention, of a layer with experts: as one stage as far as it goes.
  void submit_with_experts(const Chain& chain, std::int64_t layer, const Placement& placement,
                           const SublayerRange& range, const KvUse& kv, ExpertData& data);
  void submit_store(const Rows& rows, std::int64_t layer, const DataHandle& new_kv);
  /// Whether a layer is the last one, and drops rows before sublayer 4.
  bool drops_rows(const Chain& chain, std::int64_t layer) const;
  /// There, keeps the rows that tokens are drawn from, of attention's output and of x, each copied
  /// where it was written. False: there are none, and nothing is left to compute.
  bool keep_drawing_rows(Chain& chain, std::int64_t layer, const Stages& stages,
                         Device attention_device, Device x_device);
  /// Brings the rows that the LM head computes into its order, unless they are.
  void select_head_rows(Chain& chain);
  /// The LM head of those from `first_row` on.
  void submit_head(const Chain& chain, std::int64_t first_row, std::int64_t num_rows,
                   const DataHandle& logits);
  void submit_sampling_task(const Chain& chain, const SubBatch& sub_batch,
                            const PendingIteration& out);
  const DataHandle& output_counts();
  void submit_logprobs_task(const Chain& chain, PendingIteration& out);
  void submit_prompt_logprobs(const Chain& chain, PendingIteration& out);

  const ModelWeights& model_;
  std::span<const KvCache> cohorts_;
  Options options_;
  /// Of a layer, by its placement's bits.
  struct Cuts {
    using ByPlacement = std::array<Stages, num_placements>;
    ByPlacement whole;
    ByPlacement dropping_rows;  ///< cut before sublayer 4, where rows are dropped
    ByPlacement in_parts;       ///< with attention cut off from both neighbours
  };
  Cuts dense_;
  Cuts mixture_;      ///< of a layer with experts: cut before sublayer 5, too
  Cuts hot_mixture_;  ///< the same where some are hot: always
  const Cuts& cuts_of(std::int64_t layer) const {
    if (!model_.config().has_experts(layer)) return dense_;
    const ExpertWeights& experts = model_.layers()[static_cast<std::size_t>(layer)].experts;
    return experts.cut.num_hot > 0 ? hot_mixture_ : mixture_;
  }
  std::int64_t iteration_ = -1;
  bool has_prompts_ = false;  ///< of the iteration
  Buffer slot_tokens_memory_;
  Buffer seen_memory_;
  Buffer output_counts_memory_;
  DataHandle slot_tokens_;  ///< [slots] int32: the last token drawn for each
  DataHandle seen_;  ///< [slots, seen_words]: tokens each has seen, for the repetition penalty
  /// [slots, vocab_size] int32: how often each token is in a slot's output; from the first request
  /// with a presence or frequency penalty on.
  DataHandle output_counts_;
};

}  // namespace sluice
