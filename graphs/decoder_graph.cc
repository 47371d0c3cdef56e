#include "graphs/decoder_graph.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <initializer_list>
#include <optional>

#include "codelets/attention_parts/attention_parts.h"
#include "codelets/embedding/embedding.h"
#include "codelets/expert_join/expert_join.h"
#include "codelets/experts/experts.h"
#include "codelets/kv_move/kv_move.h"
#include "codelets/kv_store/kv_store.h"
#include "codelets/lm_head/lm_head.h"
#include "codelets/router/router.h"
#include "codelets/runtime/trace_recorder.h"
#include "codelets/sampling/sampling.h"
#include "codelets/select_rows/select_rows.h"
#include "codelets/shared_ffn/shared_ffn.h"
#include "codelets/stage/stage.h"
#include "perfmodels/layer_run.h"

namespace sluice {

std::vector<std::int32_t> PendingIteration::tokens() const {
  const ReadAccess access(tokens_);
  run_failure().rethrow();
  const auto* first = access.as<std::int32_t>();
  return {first, first + num_sequences_};
}

std::vector<float> PendingIteration::logits() const {
  if (!logits_) throw Error("the logits of this iteration were not kept");
  const ReadAccess access(logits_);
  run_failure().rethrow();
  const auto* first = access.as<float>();
  return {first, first + num_logits_};
}

namespace {

TokenLogprobs to_logprobs(const TokenLogprob* row, std::int32_t num_likeliest) {
  TokenLogprobs result{.token = row[0], .likeliest = {row + 1, row + 1 + num_likeliest}};
  std::erase_if(result.likeliest, [](const TokenLogprob& entry) { return entry.token < 0; });
  return result;
}

}  // namespace

std::vector<std::optional<TokenLogprobs>> PendingIteration::logprobs() const {
  std::vector<std::optional<TokenLogprobs>> result(static_cast<std::size_t>(num_sequences_));
  if (!logprobs_) return result;
  const ReadAccess access(logprobs_);
  run_failure().rethrow();
  const auto* row = access.as<TokenLogprob>();
  const BatchView batch(batches_.front().words.data());
  for (std::size_t s = 0; s < result.size(); ++s, row += logprobs_width_) {
    const BatchSequence& sequence = batch.sequences()[s];
    if (sequence.logprobs != no_logprobs) result[s] = to_logprobs(row, sequence.logprobs);
  }
  return result;
}

std::vector<std::vector<TokenLogprobs>> PendingIteration::prompt_logprobs() const {
  std::vector<std::vector<TokenLogprobs>> result(static_cast<std::size_t>(num_sequences_));
  if (prompt_logprobs_.empty()) return result;
  const BatchView batch(batches_.front().words.data());
  const std::span<const std::int32_t> scored = batch.scored_rows();
  for (std::size_t block = 0; block < prompt_logprobs_.size(); ++block) {
    const ReadAccess access(prompt_logprobs_[block]);
    run_failure().rethrow();
    const auto* row = access.as<TokenLogprob>();
    const std::size_t first = block * scored_block_rows_;
    const std::size_t count = std::min(scored_block_rows_, scored.size() - first);
    for (const std::int32_t of : scored.subspan(first, count)) {
      const std::int32_t sequence = batch.rows()[static_cast<std::size_t>(of)].sequence;
      const auto s = static_cast<std::size_t>(sequence);
      result[s].push_back(to_logprobs(row, batch.sequences()[s].prompt_logprobs));
      row += prompt_logprobs_width_;
    }
  }
  return result;
}

PendingIteration::FlatWords::FlatWords(std::vector<std::int32_t> its_words)
    : words(std::move(its_words)),
      handle(DataHandle::of_memory(words.data(), words.size() * sizeof(std::int32_t))) {}

namespace {

TaskTag tagged(TaskTag tag, const SublayerRange& range, std::int64_t layer, Device device) {
  tag.device = device;
  tag.sublayer = range.first;
  tag.last_sublayer = range.last;
  tag.layer = static_cast<std::int32_t>(layer);
  return tag;
}
TaskTag tagged(const TaskTag& tag, Sublayer sublayer, std::int64_t layer, Device device) {
  return tagged(tag, SublayerRange{sublayer, sublayer}, layer, device);
}

}  // namespace

/// Empty where no stage ends that would write it.
struct DecoderGraph::Rows {
  TaskTag tag;
  const DecoderShape& shape;
  const DataHandle& batch;
  std::size_t cohort;
  std::int64_t score_columns;
  CachedTokens cached;
  DataHandle q;        ///< [tokens, q_size]
  DataHandle scores;   ///< split attention only
  DataHandle context;  ///< attention's output [tokens, q_size]
  /// Where cached KV comes page by page; else null.
  const PendingIteration::FlatWords* cached_pages = nullptr;
  const DataHandle* batch_of_cached = nullptr;
  DataHandle cached_kv;  ///< those pages of one layer, one behind the other; else empty

  Rows(const TaskTag& the_tag, const DecoderShape& the_shape, const DataHandle& the_handle,
       const BatchPart& part)
      : tag(the_tag),
        shape(the_shape),
        batch(the_handle),
        cohort(part.cohort),
        score_columns(part.batch.num_score_columns()),
        cached(part.batch.has_cached_tokens() ? CachedTokens::some : CachedTokens::none) {}
  ~Rows() {
    for (DataHandle* handle : {&q, &scores, &context, &cached_kv}) handle->release_after_use();
  }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;

  void make_q() { make(q, bytes(shape.q_size(), size_bytes(shape.dtype))); }
  void make_scores() {
    make(scores, static_cast<std::size_t>(score_columns * shape.num_heads) * sizeof(float));
  }
  void make_context() {
    make(context, bytes(activation_stride(shape.q_size(), shape.dtype), size_bytes(shape.dtype)));
  }
  /// The KV of one layer: the next layer need not wait until it is stored.
  DataHandle new_kv() const { return DataHandle::temporary(new_kv_bytes(shape, tag.num_tokens)); }
  std::size_t bytes(std::int64_t width, std::size_t each) const {
    return static_cast<std::size_t>(tag.num_tokens * width) * each;
  }
  static void make(DataHandle& handle, std::size_t size_bytes) {
    if (!handle) handle = DataHandle::temporary(size_bytes);
  }
};

/// Activations live for one sub-batch of one iteration; StarPU frees them when its last task is
/// done.
struct DecoderGraph::Chain {
  Rows all;
  std::deque<Rows> parts;   ///< none when the sub-batch is one part
  DataHandle x;             ///< [tokens, hidden_size] f32
  DataHandle rope;          ///< [tokens, rotated_dims] f32, rotary models only
  DataHandle h;             ///< [tokens, ffn_size], where a stage ends with sublayer 5
  std::int64_t widest_ffn;  ///< of any layer with one FFN
  std::int64_t num_logit_rows;
  std::int64_t num_scored_rows;

  Chain(const TaskTag& tag, const ModelWeights& model, const DataHandle& handle,
        const BatchPart& whole)
      : all(tag, model.shape(), handle, whole),
        widest_ffn(model.config().widest_ffn()),
        num_logit_rows(whole.batch.num_logit_rows()),
        num_scored_rows(whole.batch.num_scored_rows()) {
    const DecoderShape& shape = all.shape;
    x = DataHandle::temporary(all.bytes(shape.hidden_size, sizeof(float)));
    if (shape.rope) rope = DataHandle::temporary(all.bytes(shape.rotated_dims(), sizeof(float)));
  }
  /// Makes what passes between these stages.
  void add_passing(const Stages& stages) {
    for (const SublayerRange& stage : stages) {
      if (stage.last == Sublayer::qkv) all.make_q();
      if (stage.last == Sublayer::qk) all.make_scores();
      if (stage.last == Sublayer::sv) all.make_context();
    }
    make_h(stages);
  }
  void make_h(const Stages& stages) {
    const auto ends = [](const SublayerRange& stage) { return stage.last == Sublayer::fc1; };
    if (std::none_of(stages.begin(), stages.end(), ends)) return;
    const std::int64_t width = activation_stride(widest_ffn, all.shape.dtype);
    Rows::make(h, all.bytes(width, size_bytes(all.shape.dtype)));
  }
  ~Chain() {
    for (DataHandle* handle : {&x, &rope, &h}) handle->release_after_use();
  }
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  TaskTag tagged(Sublayer sublayer, Device device) const {
    return sluice::tagged(all.tag, sublayer, -1, device);
  }
  bool has_rows_that_nobody_reads() const { return all.tag.num_logit_rows < all.tag.num_tokens; }
  /// All rows are the LM head's, in its order.
  bool has_head_rows_alone() const {
    const bool in_order = num_scored_rows == 0 || num_logit_rows == 0;
    return selected_ || (in_order && !has_rows_that_nobody_reads());
  }
  /// Puts the rows that the LM head computes into a handle of their own, in place of all.
  void keep_head_rows(DataHandle& rows, std::int64_t layer, Device device) const {
    const std::size_t row_bytes = rows.size_bytes() / static_cast<std::size_t>(all.tag.num_tokens);
    DataHandle kept =
        DataHandle::temporary(static_cast<std::size_t>(all.tag.num_logit_rows) * row_bytes);
    submit_select_rows({.tag = sluice::tagged(all.tag, Sublayer::select_rows, layer, device),
                        .row_bytes = row_bytes},
                       {.batch = all.batch, .from = rows, .to = kept}, all.shape.dtype);
    rows.release_after_use();
    rows = std::move(kept);
  }
  /// All further tasks have these rows alone.
  void forget_other_rows() {
    all.tag.num_tokens = all.tag.num_logit_rows;
    h.release_after_use();
    selected_ = true;
  }

 private:
  bool selected_ = false;
};

namespace {

/// Cuts a layer where its placement changes the device, as the options say, and before each of
/// `cuts`.
std::vector<SublayerRange> cut_layer(const DecoderGraph::Options& options,
                                     const Placement& placement,
                                     std::initializer_list<Sublayer> cuts) {
  const auto fuses = [&](Sublayer sublayer) {
    if (std::find(cuts.begin(), cuts.end(), sublayer) != cuts.end()) return false;
    return options.fusion <= Fusion::stages ||
           (options.fusion == Fusion::halves && sublayer != Sublayer::fc1);
  };
  std::vector<SublayerRange> stages;
  for (int i = 1; i <= 6; ++i) {
    const auto sublayer = static_cast<Sublayer>(i);
    const bool changes = i > 1 && placement[sublayer] != placement[static_cast<Sublayer>(i - 1)];
    const bool begins =
        i == 1 || changes ||
        (sublayer == Sublayer::sv ? options.attention == AttentionForm::split : !fuses(sublayer));
    if (begins) stages.push_back({sublayer, sublayer});
    stages.back().last = sublayer;
  }
  return stages;
}

bool experts_fit_stages(const ModelWeights& model) {
  return std::ranges::all_of(model.layers(), [](const LayerWeights& layer) {
    return layer.experts.cut.count() <= most_chunks_in_stage;
  });
}

Placement placement_of(const BatchPart& part, std::int64_t layer) {
  if (part.placements.empty()) return Placement(Device::cpu);
  return part.placements.at(static_cast<std::size_t>(layer));
}

}  // namespace

DecoderGraph::DecoderGraph(const ModelWeights& model, std::span<const KvCache> cohorts,
                           const Options& options)
    : model_(model),
      cohorts_(cohorts),
      options_(options),
      slot_tokens_memory_(static_cast<std::size_t>(options.num_slots) * sizeof(std::int32_t)),
      seen_memory_(
          static_cast<std::size_t>(options.num_slots * seen_words(model.config().vocab_size)) *
          sizeof(std::uint32_t)),
      slot_tokens_(DataHandle::of_memory(slot_tokens_memory_.data(), slot_tokens_memory_.size())),
      seen_(DataHandle::of_memory(seen_memory_.data(), seen_memory_.size())) {
  for (const KvCache& kv : cohorts) kv.clear();
  const bool fit_stages = experts_fit_stages(model);
  for (unsigned bits = 0; bits < num_placements; ++bits) {
    const Placement placement = Placement::from_bits(bits);
    const auto cut = [&](std::initializer_list<Sublayer> cuts) {
      return cut_layer(options, placement, cuts);
    };
    using enum Sublayer;
    dense_.whole.at(bits) = cut({});
    dense_.dropping_rows.at(bits) = cut({out_proj});
    dense_.in_parts.at(bits) = cut({qk, out_proj});
    // A GPU's experts are tasks of their own, and so are those in many chunks.
    const bool apart = placement[fc1] == Device::gpu || !fit_stages;
    mixture_.whole.at(bits) = apart ? cut({fc1}) : dense_.whole.at(bits);
    mixture_.dropping_rows.at(bits) = apart ? cut({out_proj, fc1}) : dense_.dropping_rows.at(bits);
    mixture_.in_parts.at(bits) = apart ? cut({qk, out_proj, fc1}) : dense_.in_parts.at(bits);
    hot_mixture_.whole.at(bits) = cut({fc1});
    hot_mixture_.dropping_rows.at(bits) = cut({out_proj, fc1});
    hot_mixture_.in_parts.at(bits) = cut({qk, out_proj, fc1});
  }
}

PendingIteration DecoderGraph::begin(const SubBatch& sub_batch, const BatchPart& whole) const {
  PendingIteration out;
  out.num_sequences_ = whole.batch.num_sequences();
  out.num_logits_ = whole.batch.num_logit_rows() * model_.config().vocab_size;
  out.logprobs_width_ = whole.batch.wanted_logprobs() + 1;
  out.prompt_logprobs_width_ = whole.batch.wanted_prompt_logprobs() + 1;
  out.batches_.reserve(1 + sub_batch.parts.size());
  out.batches_.emplace_back(whole.batch.build());
  if (sub_batch.parts.size() > 1) {
    for (const BatchPart& part : sub_batch.parts) out.batches_.emplace_back(part.batch.build());
  }
  out.cached_pages_.reserve(2 * sub_batch.parts.size());
  for (const BatchPart& part : sub_batch.parts) {
    if (!brings_pages(part)) continue;
    BatchBuilder::CachedPages cached = part.batch.cached_pages();
    out.cached_pages_.emplace_back(std::move(cached.pages));
    out.cached_pages_.emplace_back(cached.batch.build());
  }
  out.tokens_ =
      DataHandle::temporary(static_cast<std::size_t>(out.num_sequences_) * sizeof(std::int32_t));
  return out;
}

TaskTag DecoderGraph::tag_of(const BatchPart& part, std::size_t sub_batch) const {
  TaskTag tag;
  tag.phase = part.phase;
  tag.sub_batch = static_cast<std::int16_t>(sub_batch);
  tag.iteration = iteration_;
  tag.beside_prompts = has_prompts_;
  tag.num_tokens = part.batch.num_rows();
  tag.context_tokens = part.batch.context_tokens();
  tag.num_sequences = part.batch.num_sequences();
  tag.num_logit_rows = part.batch.num_head_rows();
  return tag;
}

PendingIteration DecoderGraph::submit(const BatchPart& part, Logits logits) {
  return std::move(submit(std::vector{SubBatch{{part}}}, logits).front());
}

std::vector<PendingIteration> DecoderGraph::submit(const std::vector<SubBatch>& sub_batches,
                                                   Logits logits, std::span<const KvMove> moves) {
  ++iteration_;
  mark_iteration(iteration_);
  has_prompts_ = std::ranges::any_of(sub_batches, [](const SubBatch& sub_batch) {
    return std::ranges::any_of(sub_batch.parts,
                               [](const BatchPart& part) { return part.phase == Phase::prefill; });
  });
  std::vector<PendingIteration> pending;
  pending.reserve(sub_batches.size());
  std::deque<Chain> chains;
  for (const SubBatch& sub_batch : sub_batches) {
    std::optional<BatchPart> joined;
    if (sub_batch.parts.size() > 1) joined = sub_batch.whole();
    const BatchPart& whole = joined ? *joined : sub_batch.parts.at(0);
    const PendingIteration& out = pending.emplace_back(begin(sub_batch, whole));
    const std::size_t index = chains.size();
    Chain& chain =
        chains.emplace_back(tag_of(whole, index), model_, out.batches_.front().handle, whole);
    for (std::size_t i = 1; i < out.batches_.size(); ++i) {
      const BatchPart& part = sub_batch.parts[i - 1];
      chain.parts.emplace_back(tag_of(part, index), model_.shape(), out.batches_[i].handle, part);
    }
    auto cached = out.cached_pages_.begin();
    for (std::size_t i = 0; i < sub_batch.parts.size(); ++i) {
      Rows& rows = chain.parts.empty() ? chain.all : chain.parts[i];
      if (!brings_pages(sub_batch.parts[i])) continue;
      rows.cached_pages = &*cached++;
      rows.batch_of_cached = &(cached++)->handle;
    }
    submit_embedding_task(chain);
  }
  std::vector<FlatWords> lists = page_lists(moves);
  std::int64_t next = 0;
  for (std::int64_t layer = 0; layer < model_.config().num_layers; layer = next) {
    next = layer + 1;
    if (chains.size() == 1) next = layer + layers_of_task(chains[0], sub_batches[0], layer);
    for (std::int64_t moving = layer; moving < next; ++moving) submit_moves(moving, moves, lists);
    for (std::size_t i = 0; i < chains.size(); ++i) {
      const SubBatch& sub_batch = sub_batches[i];
      const Placement placement = placement_of(sub_batch.parts.front(), layer);
      if (next > layer + 1) {
        submit_layer_run(chains[i], layer, next - layer, placement);
      } else if (sub_batch.parts.size() > 1) {
        submit_layer_in_parts(chains[i], layer, sub_batch);
      } else {
        submit_layer(chains[i], layer, sub_batch.parts.front());
      }
    }
  }
  if (!pending.empty()) pending.front().moved_pages_ = std::move(lists);
  for (std::size_t i = 0; i < chains.size(); ++i) {
    PendingIteration& out = pending[i];
    select_head_rows(chains[i]);
    if (out.num_logits_ > 0) {
      out.logits_ =
          DataHandle::temporary(static_cast<std::size_t>(out.num_logits_) * sizeof(float));
      submit_head(chains[i], 0, chains[i].num_logit_rows, out.logits_);
    }
    submit_sampling_task(chains[i], sub_batches[i], out);
    submit_logprobs_task(chains[i], out);
    submit_prompt_logprobs(chains[i], out);
    if (logits == Logits::drop) out.logits_.release_after_use();
  }
  return pending;
}

std::vector<DecoderGraph::FlatWords> DecoderGraph::page_lists(std::span<const KvMove> moves) {
  std::vector<FlatWords> lists;
  lists.reserve(2 * moves.size());
  for (const KvMove& move : moves) {
    lists.emplace_back(move.from_pages);
    lists.emplace_back(move.to_pages);
  }
  return lists;
}

void DecoderGraph::submit_page_task(KvMoveArgs::Step step, std::size_t cohort, std::int64_t layer,
                                    const FlatWords& pages, const DataHandle& moved,
                                    TaskTag tag) const {
  const DecoderShape shape = model_.shape(layer);
  KvMoveArgs args{.tag = tag,
                  .step = step,
                  .num_pages = std::ssize(pages.words),
                  .page_bytes = shape.page_bytes()};
  args.tag.num_tokens = args.num_pages * page_tokens;
  const Device device = reader_of(cohorts_[cohort].home(layer)).value_or(Device::cpu);
  args.tag = tagged(args.tag, Sublayer::kv_move, layer, device);
  submit_kv_move(args,
                 {.pages = pages.handle, .slab = cohorts_[cohort].slab(layer), .moved = moved},
                 shape.dtype);
}

bool DecoderGraph::brings_pages(const BatchPart& part, std::int64_t layer) const {
  if (part.phase != Phase::prefill || !part.batch.has_cached_tokens()) return false;
  const Placement placement = placement_of(part, layer);
  const Device device = placement[Sublayer::qk];
  const Tier home = cohorts_[part.cohort].home(layer);
  return home != Tier::disk && placement[Sublayer::sv] == device && reader_of(home) != device;
}

bool DecoderGraph::brings_pages(const BatchPart& part) const {
  for (std::int64_t layer = 0; layer < model_.config().num_layers; ++layer) {
    if (brings_pages(part, layer)) return true;
  }
  return false;
}

void DecoderGraph::submit_gather(Rows& rows, std::int64_t layer) const {
  const FlatWords& pages = *rows.cached_pages;
  rows.cached_kv =
      DataHandle::temporary(pages.words.size() * std::size_t{model_.shape(layer).page_bytes()});
  submit_page_task(KvMoveArgs::Step::gather, rows.cohort, layer, pages, rows.cached_kv, rows.tag);
}

void DecoderGraph::submit_moves(std::int64_t layer, std::span<const KvMove> moves,
                                std::span<const FlatWords> lists) const {
  TaskTag tag;
  tag.iteration = iteration_;
  tag.beside_prompts = has_prompts_;
  tag.phase = Phase::decode;
  tag.num_sequences = 1;
  const auto submit = [&](KvMoveArgs::Step step, std::size_t cohort, const FlatWords& pages,
                          const DataHandle& moved) {
    submit_page_task(step, cohort, layer, pages, moved, tag);
  };
  // All are gathered first: one may go where another one was.
  std::vector<DataHandle> moved;
  moved.reserve(moves.size());
  for (std::size_t i = 0; i < moves.size(); ++i) {
    moved.push_back(DataHandle::temporary(lists[2 * i].words.size() *
                                          std::size_t{model_.shape(layer).page_bytes()}));
    submit(KvMoveArgs::Step::gather, moves[i].from, lists[2 * i], moved[i]);
  }
  for (std::size_t i = 0; i < moves.size(); ++i) {
    submit(KvMoveArgs::Step::scatter, moves[i].to, lists[2 * i + 1], moved[i]);
    moved[i].release_after_use();
  }
}

void DecoderGraph::submit_embedding_task(const Chain& chain) {
  const ModelConfig& config = model_.config();
  const EmbeddingArgs args{
      .tag = chain.tagged(Sublayer::embedding, options_.embedding_device),
      .shape = chain.all.shape,
      .vocab_size = config.vocab_size,
      .embed_size = config.embed_size,
      .table_dtype = model_.table_dtype,
      .position_dtype = model_.position_dtype,
      .position_offset = config.position_offset,
      .position_rows = config.max_positions + config.position_offset,
      .learned_positions = config.position == PositionKind::learned,
      .project_in = config.has_projections(),
      .projection = model_.project_in.type,
      .rope_attention_factor = config.rope_scaling ? config.rope_scaling->attention_factor : 1.0F};
  submit_embedding(args, {.batch = chain.all.batch,
                          .slot_tokens = slot_tokens_,
                          .table = model_.token_table,
                          .positions = model_.positions,
                          .project_in = model_.project_in.data,
                          .frequencies = model_.frequencies,
                          .x = chain.x,
                          .rope = chain.rope});
}

std::optional<Device> DecoderGraph::home_of(const Rows& rows, std::int64_t layer) const {
  return reader_of(cohorts_[rows.cohort].home(layer));
}

std::int64_t DecoderGraph::layers_of_task(const Chain& chain, const SubBatch& sub_batch,
                                          std::int64_t first) const {
  if (options_.fusion != Fusion::layers || sub_batch.parts.size() > 1) return 1;
  const BatchPart& part = sub_batch.parts.front();
  const auto form_of = [&](std::int64_t layer) -> std::optional<LayerForm> {
    const Placement placement = placement_of(part, layer);
    if (cuts_of(layer).whole.at(placement.bits()).size() > 1 || drops_rows(chain, layer))
      return std::nullopt;
    return LayerForm{placement, weight_reader(layer), home_of(chain.all, layer),
                     model_.config().has_experts(layer)};
  };
  return sluice::layers_of_task(first, model_.config().num_layers, chain.all.tag.num_tokens,
                                form_of);
}

std::optional<Device> DecoderGraph::weight_reader(std::int64_t layer) const {
  if (options_.weight_readers.empty()) return std::nullopt;
  return options_.weight_readers.at(static_cast<std::size_t>(layer));
}

void DecoderGraph::submit_layer_run(const Chain& chain, std::int64_t first, std::int64_t count,
                                    const Placement& placement) {
  const Device device = placement[Sublayer::qkv];
  const SublayerRange range = cuts_of(first).whole.at(placement.bits()).front();
  TaskTag tag = tagged(chain.all.tag, range, first, device);
  tag.num_layers = static_cast<std::int16_t>(count);
  const DataHandle no_new_kv;
  std::vector<LayerHandles> layers;
  for (std::int64_t layer = first; layer < first + count; ++layer)
    layers.push_back(handles_of(chain.all, layer, no_new_kv));
  submit_stages(chain, chain.all, tag, KvPath::slab, layers);
}

LayerHandles DecoderGraph::handles_of(const Rows& rows, std::int64_t layer,
                                      const DataHandle& new_kv) const {
  const LayerWeights& weights = model_.layers()[static_cast<std::size_t>(layer)];
  PerLayerWeight<const DataHandle*> matrices;
  for (const LayerWeight weight : all_layer_weights)
    matrices[weight] = &weights.matrices[weight].data;
  return {.vectors = weights.vectors,
          .matrices = matrices,
          .slab = rows.cached_kv ? rows.cached_kv : cohorts_[rows.cohort].slab(layer),
          .new_kv = new_kv,
          .chunks = weights.experts.chunks};
}

/// What passes from a layer's router to its experts, and from them back, where they are tasks.
struct DecoderGraph::ExpertData {
  DataHandle normed;  ///< see RouterOperands
  DataHandle routing;
  DataHandle sum;
  DataHandle hot_sum;  ///< where some experts are hot and some are not

  ExpertData() = default;
  void make(const DecoderShape& shape, const MixtureShape& mixture, const ExpertChunks& chunks,
            std::int64_t rows) {
    const auto temporary = [&](std::int64_t width, std::size_t each) {
      return DataHandle::temporary(static_cast<std::size_t>(rows * width) * each);
    };
    normed = temporary(activation_stride(shape.hidden_size, shape.dtype), size_bytes(shape.dtype));
    routing = temporary(mixture.experts_per_token, sizeof(ExpertChoice));
    sum = temporary(shape.hidden_size, sizeof(float));
    if (chunks.has_two_sums()) hot_sum = temporary(shape.hidden_size, sizeof(float));
  }
  ~ExpertData() {
    for (DataHandle* handle : {&normed, &routing, &sum, &hot_sum}) handle->release_after_use();
  }
  ExpertData(const ExpertData&) = delete;
  ExpertData& operator=(const ExpertData&) = delete;
};

void DecoderGraph::submit_router_of(const Chain& chain, std::int64_t layer, Device device,
                                    const ExpertData& data) {
  const LayerWeights& weights = model_.layers()[static_cast<std::size_t>(layer)];
  const WeightHandle& router = weights.matrices[LayerWeight::router];
  submit_router({.tag = tagged(chain.all.tag, Sublayer::router, layer, device),
                 .shape = model_.shape(layer),
                 .vectors = model_.vectors(),
                 .weight = router.type,
                 .mixture = mixture_shape(model_.config())},
                {.x = chain.x,
                 .vectors = weights.vectors,
                 .weight = router.data,
                 .normed = data.normed,
                 .routing = data.routing});
}

void DecoderGraph::submit_shared_ffn_of(const Chain& chain, std::int64_t layer, Device device,
                                        const ExpertData& data) {
  const LayerWeights& weights = model_.layers()[static_cast<std::size_t>(layer)];
  const WeightHandle& gate = weights.matrices[LayerWeight::shared_gate];
  const WeightHandle& fc1 = weights.matrices[LayerWeight::shared_fc1];
  const WeightHandle& fc2 = weights.matrices[LayerWeight::shared_fc2];
  submit_shared_ffn(
      {.tag = tagged(chain.all.tag, Sublayer::shared_ffn, layer, device),
       .shape = model_.shape(layer),
       .gate = gate.type,
       .fc1 = fc1.type,
       .fc2 = fc2.type},
      {.normed = data.normed, .gate = gate.data, .fc1 = fc1.data, .fc2 = fc2.data, .x = chain.x});
}

void DecoderGraph::submit_experts_of(const Chain& chain, std::int64_t layer,
                                     const Placement& placement, const ExpertData& data) {
  const LayerWeights& weights = model_.layers()[static_cast<std::size_t>(layer)];
  const ExpertChunks& cut = weights.experts.cut;
  const std::int32_t num_hot = cut.num_hot_chunks();
  // Hot ones first: the GPU has them to do while the CPU computes the others.
  if (num_hot > 0) {
    submit_chunks(chain, layer, {0, num_hot}, Device::gpu, data,
                  cut.has_two_sums() ? data.hot_sum : data.sum);
  }
  if (num_hot < cut.count()) {
    submit_chunks(chain, layer, {num_hot, cut.count()}, placement[Sublayer::fc1], data, data.sum);
  }
  const TaskTag tag =
      tagged(chain.all.tag, Sublayer::expert_join, layer, placement[Sublayer::out_proj]);
  submit_expert_join(
      {.tag = tag,
       .shape = model_.shape(layer),
       .vectors = model_.vectors(),
       .has_hot_sum = cut.has_two_sums()},
      {.sum = data.sum, .hot_sum = data.hot_sum, .vectors = weights.vectors, .x = chain.x});
}

void DecoderGraph::submit_chunks(const Chain& chain, std::int64_t layer, const ChunkRange& range,
                                 Device device, const ExpertData& data,
                                 const DataHandle& sum) const {
  const ExpertWeights& experts = model_.layers()[static_cast<std::size_t>(layer)].experts;
  const SublayerRange both{Sublayer::fc1, Sublayer::fc2};
  ExpertsArgs args{.tag = tagged(chain.all.tag, both, layer, device),
                   .shape = model_.shape(layer),
                   .mixture = mixture_shape(model_.config()),
                   .layout = experts.layout,
                   .chunks = experts.cut};
  const bool stays = weight_reader(layer) == Device::gpu || experts.cut.is_hot(range.begin);
  args.recurs = args.tag.num_tokens <= most_rows_of_layer_run && stays;
  const std::vector<HandleRef> chunks(experts.chunks.begin(), experts.chunks.end());
  const std::int32_t at_once = device == Device::gpu ? 1 : range.end - range.begin;
  for (std::int32_t chunk = range.begin; chunk < range.end; chunk += at_once) {
    args.first_chunk = chunk;
    args.num_chunks = at_once;
    args.sum = chunk == range.begin ? ExpertsArgs::Sum::written : ExpertsArgs::Sum::added_to;
    const bool has_all = device == Device::cpu && at_once == experts.cut.count();
    args.tag.num_experts = has_all ? 0 : args.experts_of_task();
    args.tag.experts_are_hot = experts.cut.is_hot(chunk);
    const auto of_task = std::span(chunks).subspan(static_cast<std::size_t>(chunk),
                                                   static_cast<std::size_t>(at_once));
    submit_experts(args, {.normed = data.normed,
                          .routing = data.routing,
                          .places = experts.places,
                          .chunks = of_task,
                          .sum = sum});
  }
}

void DecoderGraph::submit_with_experts(const Chain& chain, std::int64_t layer,
                                       const Placement& placement, const SublayerRange& range,
                                       const KvUse& kv, ExpertData& data) {
  if (placement[Sublayer::fc1] != placement[Sublayer::fc2]) {
    throw Error(
        "layer {} has experts, which run whole: p5 and p6 of its placement {} must be the same",
        layer, placement.to_string());
  }
  if (range.first == Sublayer::fc2) return;  // with fc1
  if (range.first == Sublayer::fc1) {
    if (model_.config().shared_ffn_size > 0)
      submit_shared_ffn_of(chain, layer, placement[Sublayer::out_proj], data);
    return submit_experts_of(chain, layer, placement, data);
  }
  const Device device = placement[range.first];
  if (!range.has(Sublayer::fc2))
    data.make(model_.shape(layer), mixture_shape(model_.config()),
              model_.layers()[static_cast<std::size_t>(layer)].experts.cut,
              chain.all.tag.num_tokens);
  submit_range(chain, chain.all, layer, range, device, kv, &data);
  if (range.is_single()) submit_router_of(chain, layer, device, data);
}

void DecoderGraph::submit_layer(Chain& chain, std::int64_t layer, const BatchPart& part) {
  const Placement placement = placement_of(part, layer);
  const Cuts& cuts = cuts_of(layer);
  const Stages& stages =
      (drops_rows(chain, layer) ? cuts.dropping_rows : cuts.whole).at(placement.bits());
  chain.add_passing(stages);
  const KvPlan kv(placement, home_of(chain.all, layer), chain.all.cached);
  DataHandle new_kv;  // the layer's own: the next layer need not wait until it is stored
  if (kv.passes_new_kv()) new_kv = chain.all.new_kv();
  if (brings_pages(part, layer)) submit_gather(chain.all, layer);
  ExpertData experts;
  for (const SublayerRange& range : stages) {
    if (range.first == Sublayer::out_proj &&
        !keep_drawing_rows(chain, layer, stages, placement[Sublayer::sv], placement[Sublayer::fc2]))
      break;
    const Device device = placement[range.first];
    const KvUse use{kv.path_on(device), new_kv};
    if (range.last >= Sublayer::out_proj && model_.config().has_experts(layer)) {
      submit_with_experts(chain, layer, placement, range, use, experts);
    } else {
      submit_range(chain, chain.all, layer, range, device, use);
    }
    if (kv.store_after() && range.has(*kv.store_after())) submit_store(chain.all, layer, new_kv);
  }
  new_kv.release_after_use();
  chain.all.cached_kv.release_after_use();
}

void DecoderGraph::submit_layer_in_parts(Chain& chain, std::int64_t layer,
                                         const SubBatch& sub_batch) {
  const Placement placement = placement_of(sub_batch.parts.front(), layer);
  const Stages& stages = cuts_of(layer).in_parts.at(placement.bits());
  chain.all.make_context();
  chain.make_h(stages);
  const DecoderShape shape = model_.shape(layer);
  const LayerWeights& weights = model_.layers()[static_cast<std::size_t>(layer)];
  PartRows rows;
  std::vector<DataHandle> new_kv;
  std::vector<QkvPart> qkv;
  std::vector<const DataHandle*> contexts;
  new_kv.reserve(chain.parts.size());
  qkv.reserve(chain.parts.size());
  contexts.reserve(chain.parts.size());
  for (Rows& part : chain.parts) {
    part.make_q();
    part.make_context();
    rows.add(part.tag.num_tokens);
    qkv.push_back({part.q, new_kv.emplace_back(part.new_kv())});
    contexts.push_back(&part.context);
  }
  submit_qkv_split({.tag = tagged(chain.all.tag, Sublayer::qkv, layer, placement[Sublayer::qkv]),
                    .shape = shape,
                    .vectors = model_.vectors(),
                    .parts = rows,
                    .weight = weights.matrices[LayerWeight::qkv].type},
                   {.batch = chain.all.batch,
                    .x = chain.x,
                    .rope = chain.rope,
                    .vectors = weights.vectors,
                    .weight = weights.matrices[LayerWeight::qkv].data},
                   qkv);
  for (std::size_t i = 0; i < chain.parts.size(); ++i) {
    submit_attention_of(chain, chain.parts[i], layer, sub_batch.parts[i], new_kv[i]);
    new_kv[i].release_after_use();
  }
  const Device device = placement[Sublayer::out_proj];
  submit_attention_join({.tag = tagged(chain.all.tag, Sublayer::attention_join, layer, device),
                         .shape = shape,
                         .parts = rows},
                        contexts, chain.all.context);
  if (!keep_drawing_rows(chain, layer, stages, device, placement[Sublayer::fc2])) return;
  const DataHandle nothing;
  ExpertData experts;
  for (const SublayerRange& range : stages) {
    if (range.first < Sublayer::out_proj) continue;
    const KvUse no_kv{KvPath::slab, nothing};
    if (model_.config().has_experts(layer)) {
      submit_with_experts(chain, layer, placement, range, no_kv, experts);
    } else {
      submit_range(chain, chain.all, layer, range, placement[range.first], no_kv);
    }
  }
}

void DecoderGraph::submit_attention_of(const Chain& chain, Rows& part, std::int64_t layer,
                                       const BatchPart& batch_part, const DataHandle& new_kv) {
  const Placement placement = placement_of(batch_part, layer);
  const KvPlan kv(placement, home_of(part, layer), part.cached, NewKv::passes);
  if (kv.store_after() == Sublayer::qkv) submit_store(part, layer, new_kv);
  if (brings_pages(batch_part, layer)) submit_gather(part, layer);
  for (const SublayerRange& range : cuts_of(layer).in_parts.at(placement.bits())) {
    if (range.first != Sublayer::qk && range.first != Sublayer::sv) continue;
    if (range.last == Sublayer::qk) part.make_scores();
    const Device device = placement[range.first];
    submit_range(chain, part, layer, range, device, {kv.path_on(device), new_kv});
  }
  if (kv.store_after() == Sublayer::sv) submit_store(part, layer, new_kv);
  part.cached_kv.release_after_use();
}

void DecoderGraph::submit_range(const Chain& chain, const Rows& rows, std::int64_t layer,
                                const SublayerRange& range, Device device, const KvUse& kv,
                                const ExpertData* experts) {
  const LayerHandles handles = handles_of(rows, layer, kv.new_kv);
  submit_stages(chain, rows, tagged(rows.tag, range, layer, device), kv.path, {&handles, 1},
                experts);
}

void DecoderGraph::submit_stages(const Chain& chain, const Rows& rows, const TaskTag& tag,
                                 KvPath path, std::span<const LayerHandles> layers,
                                 const ExpertData* experts) {
  const bool recurs = tag.num_tokens <= most_rows_of_layer_run && at_home(path) &&
                      weight_reader(tag.layer) == tag.device;
  StageArgs args{
      .tag = tag, .shape = rows.shape, .vectors = model_.vectors(), .kv = path, .recurs = recurs};
  args.shape.ffn_size = model_.config().ffn_size_of(tag.layer);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    args.window_tokens.at(i) =
        model_.config().window_tokens(tag.layer + static_cast<std::int64_t>(i));
    const LayerWeights& weights = model_.layers()[static_cast<std::size_t>(tag.layer) + i];
    args.weights.at(i) = weights.types();
    args.chunks.at(i) = weights.experts.cut;
  }
  if (model_.config().has_experts(tag.layer)) args.mixture = mixture_shape(model_.config());
  const DataHandle none;
  submit_stage(args, {.layers = layers,
                      .batch = rows.cached_kv ? *rows.batch_of_cached : rows.batch,
                      .x = chain.x,
                      .rope = chain.rope,
                      .q = rows.q,
                      .scores = rows.scores,
                      .context = rows.context,
                      .h = chain.h,
                      .normed = experts != nullptr ? experts->normed : none,
                      .routing = experts != nullptr ? experts->routing : none});
}

void DecoderGraph::submit_store(const Rows& rows, std::int64_t layer, const DataHandle& new_kv) {
  const Device device = home_of(rows, layer).value_or(Device::cpu);
  const KvStoreArgs args = {.tag = tagged(rows.tag, Sublayer::kv_store, layer, device),
                            .shape = model_.shape(layer)};
  const KvCache& cohort = cohorts_[rows.cohort];
  const KvStoreHandles handles = {
      .batch = rows.batch, .new_kv = new_kv, .slab = cohort.slab(layer)};
  if (cohort.home(layer) == Tier::disk) return submit_kv_store_on_disk(args, handles);
  submit_kv_store(args, handles);
}

bool DecoderGraph::drops_rows(const Chain& chain, std::int64_t layer) const {
  return options_.last_layer == LastLayer::drawing_rows &&
         layer + 1 == model_.config().num_layers && chain.has_rows_that_nobody_reads();
}

bool DecoderGraph::keep_drawing_rows(Chain& chain, std::int64_t layer, const Stages& stages,
                                     Device attention_device, Device x_device) {
  if (!drops_rows(chain, layer)) return true;
  if (chain.all.tag.num_logit_rows == 0) return false;
  chain.keep_head_rows(chain.all.context, layer, attention_device);
  chain.keep_head_rows(chain.x, layer, x_device);
  chain.forget_other_rows();
  chain.make_h(stages);
  return true;
}

void DecoderGraph::select_head_rows(Chain& chain) {
  if (chain.all.tag.num_logit_rows == 0 || chain.has_head_rows_alone()) return;
  chain.keep_head_rows(chain.x, -1, options_.head_device);
  chain.forget_other_rows();
}

void DecoderGraph::submit_head(const Chain& chain, std::int64_t first_row, std::int64_t num_rows,
                               const DataHandle& logits) {
  TaskTag tag = chain.tagged(Sublayer::lm_head, options_.head_device);
  tag.num_tokens = tag.num_logit_rows = num_rows;
  const ModelConfig& config = model_.config();
  submit_lm_head({.tag = tag,
                  .shape = chain.all.shape,
                  .vocab_size = config.vocab_size,
                  .embed_size = config.embed_size,
                  .first_row = first_row,
                  .final_norm = config.final_norm,
                  .norm_bias = config.norm == NormKind::layer_norm,
                  .norm_weight = config.norm_affine,
                  .project_out = config.has_projections(),
                  .projection = model_.project_out.type,
                  .head = model_.head.type},
                 {.x = chain.x,
                  .final_norm = model_.final_norm,
                  .project_out = model_.project_out.data,
                  .head = model_.head.data,
                  .logits = logits});
}

const DataHandle& DecoderGraph::output_counts() {
  if (!output_counts_) {
    output_counts_memory_ =
        Buffer(static_cast<std::size_t>(options_.num_slots * model_.config().vocab_size) *
               sizeof(std::int32_t));
    output_counts_ =
        DataHandle::of_memory(output_counts_memory_.data(), output_counts_memory_.size());
  }
  return output_counts_;
}

void DecoderGraph::submit_sampling_task(const Chain& chain, const SubBatch& sub_batch,
                                        const PendingIteration& out) {
  const auto any = [&](bool (BatchBuilder::*has)() const) {
    return std::any_of(sub_batch.parts.begin(), sub_batch.parts.end(),
                       [&](const BatchPart& part) { return (part.batch.*has)(); });
  };
  const bool count_output = any(&BatchBuilder::has_output_penalty);
  const DataHandle none;
  submit_sampling(chain.all.shape.dtype,
                  {.tag = chain.tagged(Sublayer::sampling, options_.head_device),
                   .vocab_size = model_.config().vocab_size,
                   .has_logits = out.num_logits_ > 0,
                   .track_seen = any(&BatchBuilder::has_repetition_penalty),
                   .count_output = count_output},
                  {.batch = chain.all.batch,
                   .logits = out.logits_,
                   .seen = seen_,
                   .output_counts = count_output ? output_counts() : none,
                   .slot_tokens = slot_tokens_,
                   .tokens = out.tokens_});
}

void DecoderGraph::submit_logprobs_task(const Chain& chain, PendingIteration& out) {
  if (out.logprobs_width_ == 0) return;
  const std::int64_t entries = out.num_sequences_ * out.logprobs_width_;
  out.logprobs_ = DataHandle::temporary(static_cast<std::size_t>(entries) * sizeof(TokenLogprob));
  submit_logprobs(chain.all.shape.dtype,
                  {.tag = chain.tagged(Sublayer::logprobs, options_.head_device),
                   .vocab_size = model_.config().vocab_size,
                   .most_likeliest = out.logprobs_width_ - 1,
                   .of = LogprobsOf::drawn_tokens,
                   .num_rows = out.num_sequences_},
                  {.batch = chain.all.batch,
                   .logits = out.logits_,
                   .tokens = out.tokens_,
                   .out = out.logprobs_});
}

/// Blocks of like size: a product of very few rows adds up in another order. Two handles take
/// turns, so that one block's logits are computed while another's are reduced.
void DecoderGraph::submit_prompt_logprobs(const Chain& chain, PendingIteration& out) {
  if (chain.num_scored_rows == 0) return;
  const std::int64_t vocab = model_.config().vocab_size;
  const std::int64_t all_rows = chain.num_scored_rows;
  const std::int64_t num_blocks =
      (all_rows - 1) / std::max<std::int64_t>(options_.logit_block_rows, 1) + 1;
  const std::int64_t block_rows = (all_rows - 1) / num_blocks + 1;
  out.scored_block_rows_ = static_cast<std::size_t>(block_rows);
  std::array<DataHandle, 2> logits;
  const DataHandle none;
  for (std::int64_t first = 0; first < all_rows; first += block_rows) {
    const std::int64_t rows = std::min(block_rows, all_rows - first);
    DataHandle& block = logits.at(out.prompt_logprobs_.size() % logits.size());
    Rows::make(block, static_cast<std::size_t>(block_rows * vocab) * sizeof(float));
    submit_head(chain, chain.num_logit_rows + first, rows, block);
    const std::int64_t entries = rows * out.prompt_logprobs_width_;
    const DataHandle& reduced = out.prompt_logprobs_.emplace_back(
        DataHandle::temporary(static_cast<std::size_t>(entries) * sizeof(TokenLogprob)));
    TaskTag tag = chain.tagged(Sublayer::logprobs, options_.head_device);
    tag.num_tokens = tag.num_logit_rows = rows;
    submit_logprobs(chain.all.shape.dtype,
                    {.tag = tag,
                     .vocab_size = vocab,
                     .most_likeliest = out.prompt_logprobs_width_ - 1,
                     .of = LogprobsOf::given_tokens,
                     .first_row = first,
                     .num_rows = rows},
                    {.batch = chain.all.batch, .logits = block, .tokens = none, .out = reduced});
  }
  for (DataHandle& block : logits) block.release_after_use();
}

}  // namespace sluice
