#include "engine/run/iteration_memory.h"

#include <algorithm>
#include <utility>

#include "codelets/experts/experts.h"
#include "codelets/kv_store/kv_store.h"
#include "codelets/runtime/shape.h"
#include "graphs/model_weights.h"

namespace sluice {
namespace {

/// Of values between tasks, for each row: hidden state and rotary angles; the last layer's
/// attention, after which rows that draw no token are left out; new KV on its way to where it
/// lives, of two layers; and where a layer is several tasks, q and the FFN's middle. Beside an
/// accelerator new KV may wait, of four layers, and attention is once more each part's.
std::int64_t passing_row_bytes(const DecoderShape& shape, bool layers_in_pieces, bool accelerated) {
  const auto element = static_cast<std::int64_t>(size_bytes(shape.dtype));
  const std::int64_t attention = activation_stride(shape.q_size(), shape.dtype) * element;
  const std::int64_t new_kv = 2 * static_cast<std::int64_t>(new_kv_bytes(shape, 1));
  std::int64_t bytes =
      (shape.hidden_size + shape.head_dim) * 4 + (accelerated ? 2 : 1) * (attention + new_kv);
  if (layers_in_pieces)
    bytes += (shape.q_size() + activation_stride(shape.ffn_size, shape.dtype)) * element;
  return bytes;
}

}  // namespace

std::uint64_t activation_bytes(const ModelConfig& config, DType dtype, std::int64_t rows,
                               std::int64_t logit_rows) {
  const DecoderShape shape = decoder_shape(config, dtype);
  const auto row_bytes = static_cast<std::uint64_t>(8 * shape.hidden_size + 8 * shape.qkv_size() +
                                                    4 * config.widest_ffn());
  std::uint64_t of_experts = 0;
  if (config.num_experts > 0) {
    // Normed rows, the choice and the sum are the stage's.
    const std::int64_t passing =
        8 * shape.hidden_size + 8 * config.experts_per_token + 4 * config.shared_ffn_size;
    of_experts = static_cast<std::uint64_t>(rows * passing) +
                 experts_workspace_bytes(shape, mixture_shape(config), rows);
  }
  return 2 * (static_cast<std::uint64_t>(rows + logit_rows) * row_bytes + of_experts +
              static_cast<std::uint64_t>(logit_rows * config.vocab_size) * 4);
}

std::uint64_t score_bytes(const ModelConfig& config, std::int64_t rows,
                          std::int64_t context_tokens) {
  return 2 * static_cast<std::uint64_t>(rows * config.num_heads * context_tokens) * sizeof(float);
}

HostNeed iteration_need(const ModelConfig& config, std::span<const IterationSize> sizes,
                        std::int64_t context_tokens, const TaskForms& forms) {
  std::int64_t rows = 1;  // of an iteration
  std::int64_t chain_rows = 1;
  std::int64_t sequences = 1;
  for (const IterationSize& size : sizes) {
    MiniBatches cut;
    if (size.phase == Phase::prefill)
      cut.enough_rows = MiniBatches::enough_rows_of_prompts(forms.accelerated);
    rows = std::max(rows, size.sequences * size.rows);
    chain_rows = std::max(chain_rows, cut.most_rows(size.sequences, size.rows));
    sequences = std::max(sequences, size.sequences);
  }
  const bool in_pieces = forms.accelerated || forms.fusion != Fusion::layers ||
                         forms.attention == AttentionForm::split;
  DecoderShape widest = decoder_shape(config, forms.dtype);
  widest.ffn_size = config.widest_ffn();
  std::int64_t row_bytes = passing_row_bytes(widest, in_pieces, forms.accelerated);
  if (in_pieces && config.num_experts > 0)  // normed rows, the choice of experts, their sum
    row_bytes += 8 * config.hidden_size + 8 * config.experts_per_token;
  HostNeed need;
  // Of two iterations: the next one is submitted while one runs.
  need.activation_bytes = 2 * static_cast<std::uint64_t>((rows + sequences) * row_bytes +
                                                         sequences * config.vocab_size * 4);
  need.workspace_bytes =
      activation_bytes(config, forms.dtype, std::min(rows, chain_rows), sequences);
  need.split_score_bytes = score_bytes(config, rows, context_tokens);
  if (forms.attention == AttentionForm::split)
    need.activation_bytes += std::exchange(need.split_score_bytes, 0);
  return need;
}

}  // namespace sluice
