#include "graphs/decoder_graph.h"

#include <deque>

#include "codelets/embedding/embedding.h"
#include "codelets/kv_store/kv_store.h"
#include "codelets/lm_head/lm_head.h"
#include "codelets/runtime/trace_recorder.h"
#include "codelets/sampling/sampling.h"
#include "codelets/stage/stage.h"
#include "graphs/kv_plan.h"

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

/// Activations live for one sub-batch of one iteration; StarPU frees them when its last task is
/// done.
struct DecoderGraph::Chain {
  TaskTag tag;
  const DecoderShape& shape;
  const DataHandle& batch;
  std::int64_t score_columns;
  CachedTokens cached;
  DataHandle x;     ///< [tokens, hidden_size] f32
  DataHandle rope;  ///< [tokens, head_dim] f32, rotary models only
  // What passes from one stage to another; empty where no stage ends there:
  DataHandle q;        ///< [tokens, q_size]
  DataHandle scores;   ///< split attention only
  DataHandle context;  ///< attention's output [tokens, q_size]
  DataHandle h;        ///< [tokens, ffn_size]

  Chain(const TaskTag& the_tag, const DecoderShape& the_shape, const DataHandle& the_handle,
        const BatchBuilder& the_batch)
      : tag(the_tag),
        shape(the_shape),
        batch(the_handle),
        score_columns(the_batch.num_score_columns()),
        cached(the_batch.has_cached_tokens() ? CachedTokens::some : CachedTokens::none) {
    x = DataHandle::temporary(bytes(shape.hidden_size, sizeof(float)));
    if (shape.rope) rope = DataHandle::temporary(bytes(shape.head_dim, sizeof(float)));
  }
  /// Makes what passes between these stages.
  void add_passing(const std::vector<SublayerRange>& stages) {
    const std::size_t element = size_bytes(shape.dtype);
    for (const SublayerRange& stage : stages) {
      switch (stage.last) {
        case Sublayer::qkv:
          make(q, bytes(shape.q_size(), element));
          break;
        case Sublayer::qk:
          make(scores, static_cast<std::size_t>(score_columns * shape.num_heads) * sizeof(float));
          break;
        case Sublayer::sv:
          make(context, bytes(activation_stride(shape.q_size(), shape.dtype), element));
          break;
        case Sublayer::fc1:
          make(h, bytes(activation_stride(shape.ffn_size, shape.dtype), element));
          break;
        default:
          break;
      }
    }
  }
  ~Chain() {
    for (DataHandle* handle : {&x, &rope, &q, &context, &scores, &h}) handle->release_after_use();
  }
  Chain(const Chain&) = delete;
  Chain& operator=(const Chain&) = delete;

  TaskTag tagged(Sublayer sublayer, Device device) const {
    return tagged({sublayer, sublayer}, -1, device);
  }
  TaskTag tagged(const SublayerRange& range, std::int64_t layer, Device device) const {
    TaskTag result = tag;
    result.device = device;
    result.sublayer = range.first;
    result.last_sublayer = range.last;
    result.layer = static_cast<std::int32_t>(layer);
    return result;
  }

 private:
  std::size_t bytes(std::int64_t width, std::size_t each) const {
    return static_cast<std::size_t>(tag.num_tokens * width) * each;
  }
  static void make(DataHandle& handle, std::size_t size_bytes) {
    if (!handle) handle = DataHandle::temporary(size_bytes);
  }
};

namespace {

std::vector<SublayerRange> cut_layer(const DecoderGraph::Options& options,
                                     const Placement& placement) {
  const auto fuses = [&](Sublayer sublayer) {
    return options.fusion == Fusion::stages ||
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

}  // namespace

DecoderGraph::DecoderGraph(const LoadedModel& model, const KvCache& kv, const Options& options)
    : model_(model),
      kv_(kv),
      options_(options),
      slot_tokens_memory_(static_cast<std::size_t>(options.num_slots) * sizeof(std::int32_t)),
      seen_memory_(
          static_cast<std::size_t>(options.num_slots * seen_words(model.config().vocab_size)) *
          sizeof(std::uint32_t)),
      slot_tokens_(DataHandle::of_memory(slot_tokens_memory_.data(), slot_tokens_memory_.size())),
      seen_(DataHandle::of_memory(seen_memory_.data(), seen_memory_.size())) {
  for (unsigned bits = 0; bits < num_placements; ++bits)
    stages_.at(bits) = cut_layer(options, Placement::from_bits(bits));
}

const DecoderGraph::Stages& DecoderGraph::stages(const Placement& placement) const {
  return stages_.at(placement.bits());
}

PendingIteration DecoderGraph::begin(const SubBatch& sub_batch) const {
  const BatchBuilder& batch = sub_batch.batch;
  PendingIteration out;
  out.num_sequences_ = batch.num_sequences();
  out.num_logits_ = batch.num_logit_rows() * model_.config().vocab_size;
  out.batch_words_ = batch.build();
  out.batch_ = DataHandle::of_memory(out.batch_words_.data(),
                                     out.batch_words_.size() * sizeof(std::int32_t));
  out.tokens_ =
      DataHandle::temporary(static_cast<std::size_t>(out.num_sequences_) * sizeof(std::int32_t));
  return out;
}

TaskTag DecoderGraph::tag_of(const SubBatch& sub_batch, std::size_t index) const {
  const BatchBuilder& batch = sub_batch.batch;
  TaskTag tag;
  tag.phase = sub_batch.phase;
  tag.sub_batch = static_cast<std::int16_t>(index);
  tag.iteration = iteration_;
  tag.num_tokens = batch.num_rows();
  tag.context_tokens = batch.context_tokens();
  tag.num_sequences = batch.num_sequences();
  tag.num_logit_rows = batch.num_logit_rows();
  return tag;
}

PendingIteration DecoderGraph::submit(const SubBatch& sub_batch, Logits logits) {
  return std::move(submit(std::vector<SubBatch>{sub_batch}, logits).front());
}

std::vector<PendingIteration> DecoderGraph::submit(const std::vector<SubBatch>& sub_batches,
                                                   Logits logits) {
  ++iteration_;
  mark_iteration(iteration_);
  std::vector<PendingIteration> pending;
  pending.reserve(sub_batches.size());
  std::deque<Chain> chains;
  for (const SubBatch& sub_batch : sub_batches) {
    const PendingIteration& out = pending.emplace_back(begin(sub_batch));
    chains.emplace_back(tag_of(sub_batch, chains.size()), model_.shape(), out.batch_,
                        sub_batch.batch);
    submit_embedding_task(chains.back());
  }
  for (std::int64_t layer = 0; layer < model_.config().num_layers; ++layer) {
    for (std::size_t i = 0; i < chains.size(); ++i) {
      const std::vector<Placement>& placements = sub_batches[i].placements;
      const Placement placement = placements.empty()
                                      ? Placement(Device::cpu)
                                      : placements.at(static_cast<std::size_t>(layer));
      chains[i].add_passing(stages(placement));
      submit_layer(chains[i], layer, placement);
    }
  }
  for (std::size_t i = 0; i < chains.size(); ++i) {
    PendingIteration& out = pending[i];
    if (out.num_logits_ > 0) {
      out.logits_ =
          DataHandle::temporary(static_cast<std::size_t>(out.num_logits_) * sizeof(float));
      submit_head(chains[i], out);
    }
    submit_sampling_task(chains[i], out, sub_batches[i].batch.has_repetition_penalty());
    if (logits == Logits::drop) out.logits_.release_after_use();
  }
  return pending;
}

void DecoderGraph::submit_embedding_task(const Chain& chain) {
  const ModelConfig& config = model_.config();
  const EmbeddingArgs args{.tag = chain.tagged(Sublayer::embedding, options_.embedding_device),
                           .shape = chain.shape,
                           .vocab_size = config.vocab_size,
                           .embed_size = config.embed_size,
                           .table_dtype = model_.table_dtype,
                           .position_dtype = model_.position_dtype,
                           .position_offset = config.position_offset,
                           .position_rows = config.max_positions + config.position_offset,
                           .learned_positions = config.position == PositionKind::learned,
                           .project_in = config.has_projections()};
  submit_embedding(args, {.batch = chain.batch,
                          .slot_tokens = slot_tokens_,
                          .table = model_.token_table,
                          .positions = model_.positions,
                          .project_in = model_.project_in,
                          .frequencies = model_.frequencies,
                          .x = chain.x,
                          .rope = chain.rope});
}

void DecoderGraph::submit_layer(const Chain& chain, std::int64_t layer,
                                const Placement& placement) {
  const LayerWeights& weights = model_.layers()[static_cast<std::size_t>(layer)];
  const Device home = reader_of(kv_.home(layer)).value_or(Device::cpu);
  const KvPlan kv(placement, home, chain.cached);
  DataHandle new_kv;  // the layer's own: the next layer need not wait until it is stored
  if (kv.passes_new_kv())
    new_kv = DataHandle::temporary(new_kv_bytes(chain.shape, chain.tag.num_tokens));
  for (const SublayerRange& range : stages(placement)) {
    const Device device = placement[range.first];
    submit_stage({.tag = chain.tagged(range, layer, device),
                  .shape = chain.shape,
                  .vectors = model_.vectors(),
                  .kv = kv.path_on(device)},
                 {.batch = chain.batch,
                  .x = chain.x,
                  .rope = chain.rope,
                  .vectors = weights.vectors,
                  .qkv_weight = weights.qkv,
                  .out_weight = weights.out,
                  .gate_weight = weights.gate,
                  .fc1_weight = weights.fc1,
                  .fc2_weight = weights.fc2,
                  .slab = kv_.slab(layer),
                  .new_kv = new_kv,
                  .q = chain.q,
                  .scores = chain.scores,
                  .context = chain.context,
                  .h = chain.h});
    if (kv.store_after() && range.has(*kv.store_after())) {
      const SublayerRange store{Sublayer::kv_store, Sublayer::kv_store};
      submit_kv_store({.tag = chain.tagged(store, layer, home), .shape = chain.shape},
                      {.batch = chain.batch, .new_kv = new_kv, .slab = kv_.slab(layer)});
    }
  }
  new_kv.release_after_use();
}

void DecoderGraph::submit_head(const Chain& chain, const PendingIteration& out) {
  const ModelConfig& config = model_.config();
  submit_lm_head({.tag = chain.tagged(Sublayer::lm_head, options_.head_device),
                  .shape = chain.shape,
                  .vocab_size = config.vocab_size,
                  .embed_size = config.embed_size,
                  .final_norm = config.final_norm,
                  .norm_bias = config.norm == NormKind::layer_norm,
                  .norm_weight = config.norm_affine,
                  .project_out = config.has_projections()},
                 {.batch = chain.batch,
                  .x = chain.x,
                  .final_norm = model_.final_norm,
                  .project_out = model_.project_out,
                  .head = model_.head,
                  .logits = out.logits_});
}

void DecoderGraph::submit_sampling_task(const Chain& chain, const PendingIteration& out,
                                        bool track_seen) {
  submit_sampling(chain.shape.dtype,
                  {.tag = chain.tagged(Sublayer::sampling, options_.head_device),
                   .vocab_size = model_.config().vocab_size,
                   .has_logits = out.num_logits_ > 0,
                   .track_seen = track_seen},
                  {.batch = chain.batch,
                   .logits = out.logits_,
                   .seen = seen_,
                   .slot_tokens = slot_tokens_,
                   .tokens = out.tokens_});
}

}  // namespace sluice
