#include "graphs/decoder_graph.h"

#include "codelets/embedding/embedding.h"
#include "codelets/lm_head/lm_head.h"
#include "codelets/sampling/sampling.h"
#include "codelets/stage/stage.h"

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
  DataHandle x;     ///< [tokens, hidden_size] f32
  DataHandle rope;  ///< [tokens, head_dim] f32, rotary models only
  // What passes from one stage to another; empty where no stage ends there:
  DataHandle q;        ///< [tokens, q_size]
  DataHandle scores;   ///< split attention only
  DataHandle context;  ///< attention's output [tokens, q_size]
  DataHandle h;        ///< [tokens, ffn_size]

  Chain(const TaskTag& the_tag, const DecoderShape& the_shape, const DataHandle& the_batch,
        const std::vector<SublayerRange>& stages, std::int64_t score_columns)
      : tag(the_tag), shape(the_shape), batch(the_batch) {
    const std::size_t element = size_bytes(shape.dtype);
    const auto bytes = [this](std::int64_t width, std::size_t each) {
      return static_cast<std::size_t>(tag.num_tokens * width) * each;
    };
    x = DataHandle::temporary(bytes(shape.hidden_size, sizeof(float)));
    if (shape.rope) rope = DataHandle::temporary(bytes(shape.head_dim, sizeof(float)));
    for (const SublayerRange& stage : stages) {
      switch (stage.last) {
        case Sublayer::qkv:
          q = DataHandle::temporary(bytes(shape.q_size(), element));
          break;
        case Sublayer::qk:
          scores = DataHandle::temporary(static_cast<std::size_t>(score_columns * shape.num_heads) *
                                         sizeof(float));
          break;
        case Sublayer::sv:
          context =
              DataHandle::temporary(bytes(activation_stride(shape.q_size(), shape.dtype), element));
          break;
        case Sublayer::fc1:
          h = DataHandle::temporary(bytes(activation_stride(shape.ffn_size, shape.dtype), element));
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

  TaskTag tagged(Sublayer sublayer) const { return tagged({sublayer, sublayer}, -1); }
  TaskTag tagged(const SublayerRange& range, std::int64_t layer) const {
    TaskTag result = tag;
    result.sublayer = range.first;
    result.last_sublayer = range.last;
    result.layer = static_cast<std::int32_t>(layer);
    return result;
  }
};

namespace {

std::vector<SublayerRange> cut_layer(const DecoderGraph::Options& options) {
  std::vector<SublayerRange> stages;
  for (int i = 1; i <= 6; ++i) {
    const auto sublayer = static_cast<Sublayer>(i);
    const bool begins =
        i == 1 || (sublayer == Sublayer::sv ? options.attention == AttentionForm::split
                                            : options.fusion == Fusion::sublayers);
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
      stages_(cut_layer(options)),
      slot_tokens_memory_(static_cast<std::size_t>(options.num_slots) * sizeof(std::int32_t)),
      seen_memory_(
          static_cast<std::size_t>(options.num_slots * seen_words(model.config().vocab_size)) *
          sizeof(std::uint32_t)),
      slot_tokens_(DataHandle::of_memory(slot_tokens_memory_.data(), slot_tokens_memory_.size())),
      seen_(DataHandle::of_memory(seen_memory_.data(), seen_memory_.size())) {}

PendingIteration DecoderGraph::submit(const SubBatch& sub_batch, Logits logits) {
  const BatchBuilder& batch = sub_batch.batch;
  PendingIteration out;
  out.num_sequences_ = batch.num_sequences();
  out.num_logits_ = batch.num_logit_rows() * model_.config().vocab_size;
  out.batch_words_ = batch.build();
  out.batch_ = DataHandle::of_memory(out.batch_words_.data(),
                                     out.batch_words_.size() * sizeof(std::int32_t));
  out.tokens_ =
      DataHandle::temporary(static_cast<std::size_t>(out.num_sequences_) * sizeof(std::int32_t));

  TaskTag tag;
  tag.phase = sub_batch.phase;
  tag.sub_batch = sub_batch.index;
  tag.iteration = iteration_++;
  tag.num_tokens = batch.num_rows();
  tag.context_tokens = batch.context_tokens();
  const bool split = options_.attention == AttentionForm::split;
  const Chain chain(tag, model_.shape(), out.batch_, stages_,
                    split ? batch.num_score_columns() : 0);

  submit_embedding_task(chain);
  for (std::int64_t layer = 0; layer < model_.config().num_layers; ++layer)
    submit_layer(chain, layer);
  if (batch.num_logit_rows() > 0) {
    out.logits_ = DataHandle::temporary(static_cast<std::size_t>(out.num_logits_) * sizeof(float));
    submit_head(chain, out);
  }
  submit_sampling_task(chain, out, batch.has_repetition_penalty());
  if (logits == Logits::drop) out.logits_.release_after_use();
  return out;
}

void DecoderGraph::submit_embedding_task(const Chain& chain) {
  const ModelConfig& config = model_.config();
  const EmbeddingArgs args{.tag = chain.tagged(Sublayer::embedding),
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

void DecoderGraph::submit_layer(const Chain& chain, std::int64_t layer) {
  const LayerWeights& weights = model_.layers()[static_cast<std::size_t>(layer)];
  for (const SublayerRange& range : stages_) {
    submit_stage(
        {.tag = chain.tagged(range, layer), .shape = chain.shape, .vectors = model_.vectors()},
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
         .q = chain.q,
         .scores = chain.scores,
         .context = chain.context,
         .h = chain.h});
  }
}

void DecoderGraph::submit_head(const Chain& chain, const PendingIteration& out) {
  const ModelConfig& config = model_.config();
  submit_lm_head({.tag = chain.tagged(Sublayer::lm_head),
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
                  {.tag = chain.tagged(Sublayer::sampling),
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
