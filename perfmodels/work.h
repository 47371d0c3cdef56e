#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "perfmodels/placement.h"
#include "perfmodels/routing.h"

namespace sluice {

/// Neighbouring experts cross together, as chunks of so many bytes at most, but one expert at
/// least.
inline constexpr std::size_t most_chunk_bytes = std::size_t{256} << 20;

/// What the accounting of work needs of a decoder. Counts are elements, heads, layers or tokens.
struct ModelDimensions {
  std::int64_t num_layers = 0;
  std::int64_t hidden_size = 0;
  std::int64_t embed_size = 0;  ///< != hidden_size: two projections around the layers (OPT-350M)
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t ffn_size = 0;
  std::int64_t vocab_size = 0;
  std::int64_t sliding_window_tokens = 0;  ///< 0: no window
  /// Layers that see all in spite of the window. Costs are those of the mean layer.
  std::int64_t full_attention_layers = 0;
  bool gated_ffn = true;               ///< FC1 is two matrices
  std::int64_t learned_positions = 0;  ///< rows of a table beside the embedding (OPT)
  std::int64_t num_experts = 0;        ///< 0: one FFN; else a mixture of experts
  std::int64_t experts_per_token = 0;  ///< that a token's row goes through
  /// Of the FFN that all rows go through beside their experts: a part of sublayer 4's weights and
  /// work, since it runs there. 0: there is none.
  std::int64_t shared_ffn_size = 0;
  /// Which experts those are; nothing: each is as likely as another. Of as many experts as above.
  std::optional<Routing> routing{};
  /// Of a layer's weight: 32, 16, or 4.5 for groups of 4 bits with their scales (FlexGen's
  /// group-wise quantisation, HeLM section IV-B), which are widened before they are used.
  double weight_bits = 16;
  double head_bits = 0;  ///< of the LM head's weight; 0: as table_bytes()
  /// Kernels multiply codes as they are; else narrow weights are widened in a pass of its own.
  bool fused_codes = false;
  std::int64_t kv_element_bytes = 2;

  double q_size() const { return static_cast<double>(num_heads * head_dim); }
  double kv_size() const { return static_cast<double>(num_kv_heads * head_dim); }
  double weight_bytes(double elements) const { return elements * weight_bits / 8; }
  /// Of the embedding, the LM head and the projections around the layers: never narrower than 16
  /// bits.
  double table_bytes(double elements) const { return elements * std::max(weight_bits, 16.0) / 8; }
  /// Of the LM head alone.
  double head_bytes(double elements) const {
    return head_bits > 0 ? elements * head_bits / 8 : table_bytes(elements);
  }
  /// Whether weights are widened before they are multiplied.
  bool widens_weights() const { return weight_bits < 16 && !fused_codes; }
  /// Share of the layers that see all their context.
  double full_attention_share() const {
    if (sliding_window_tokens == 0) return 1;
    return full_attention_layers == 0
               ? 0
               : static_cast<double>(full_attention_layers) / static_cast<double>(num_layers);
  }
  bool operator==(const ModelDimensions&) const = default;
};

/// Elements of one layer's weight of a kind, all experts together. Vectors are counted as two norms
/// and, without a gate (OPT), all biases.
double weight_elements(const ModelDimensions& model, WeightKind kind);
/// Elements of the token embedding, of learned positions and of the projection behind them. Tied to
/// the head or not, it is a tensor of its own: the head is packed for its kernels.
double embedding_elements(const ModelDimensions& model);
/// Bytes of one layer's weights.
double layer_weight_bytes(const ModelDimensions& model);
/// Bytes that one token's K and V take in one layer.
double kv_bytes_per_token(const ModelDimensions& model);

/// Whether layers of the model can run so: a mixture's experts run whole, p5 = p6.
bool can_place(const ModelDimensions& model, const Placement& placement);

/// How many of a layer's experts at least one of `rows` rows is expected to go through
/// (Routing::experts_touched). 1 without experts.
double experts_touched(const ModelDimensions& model, double rows);
/// Rows that each of those computes, in the mean. All without experts.
double rows_of_an_expert(const ModelDimensions& model, double rows);
/// Some of a layer's experts in an iteration: what they have to compute.
struct ExpertPart {
  double experts = 0;  ///< so many of the layer's
  double touched = 0;  ///< those of them that at least one row goes through
  double pairs = 0;    ///< of a row and one of these experts that it goes through

  double rows_of_each() const { return touched > 0 ? pairs / touched : 0; }
};
/// All of them, of `rows` rows.
ExpertPart all_experts(const ModelDimensions& model, double rows);

/// Bytes of one layer's weights of a sublayer, all experts together: what crosses a link, as which
/// experts rows go through is known only where the weights are.
double sublayer_weight_bytes(const ModelDimensions& model, Sublayer sublayer);

/// What one sub-batch computes in one iteration: `batch` sequences of `rows` new tokens each, that
/// see `context` tokens each, the new ones included (a mean, where they differ). LIA's B and L:
/// prefill is {B, L, L}, decode {B, 1, L}.
struct BatchShape {
  Phase phase = Phase::decode;
  std::int64_t batch = 1;
  std::int64_t rows = 1;
  std::int64_t context = 1;

  std::int64_t total_rows() const { return batch * rows; }
  bool operator==(const BatchShape&) const = default;
  static BatchShape prefill(std::int64_t batch, std::int64_t tokens) {
    return {Phase::prefill, batch, tokens, tokens};
  }
  static BatchShape decode(std::int64_t batch, std::int64_t context) {
    return {Phase::decode, batch, 1, context};
  }
};

/// LIA Table 1 for one sublayer of one layer, with heads that share KV, a gated FFN, experts and a
/// window. T = batch x rows, S = visible_tokens(); D_X and D_Y of the table:
///   qkv       x 2 T hidden   y weight   2 T hidden (q + 2 kv) FLOP
///   qk, sv    x 2 T q        y 2 batch S kv (K, or V)   2 T S q FLOP: as the table, no credit for
///                            causal masking
///   out_proj  x 2 T q        y weight   2 T q hidden
///             (and the same of a shared FFN: x 2 T (hidden + shared), 6 or 4 T hidden shared FLOP)
///   fc1       x 2 T hidden   y weights of the experts touched   2 T hidden ffn (twice if gated)
///   fc2       x 2 T ffn      y the same   2 T ffn hidden   (x for every expert of a token)
///   kv_store  (ours) x K and V of the new tokens, read   y the same, written
struct SublayerWork {
  double x_bytes = 0;
  double y_bytes = 0;
  double flops = 0;
};
SublayerWork sublayer_work(const ModelDimensions& model, Sublayer sublayer,
                           const BatchShape& shape);

/// The same of fc1 or fc2 of a mixture for some of the experts:
///   fc1  x 2 T hidden    y weights of those touched   2 pairs hidden ffn FLOP (twice if gated)
///   fc2  x 2 pairs ffn   y the same                   2 pairs ffn hidden
SublayerWork expert_work(const ModelDimensions& model, Sublayer sublayer, const BatchShape& shape,
                         const ExpertPart& part);

/// Bytes of an element between sublayers.
constexpr double activation_element_bytes = 2;

/// Keys that `rows` new rows behind `prior` cached tokens see, summed over the rows: itself and all
/// before it, each at most `window` (0: no window).
double visible_keys(double rows, double prior, std::int64_t window);
/// The same in the mean layer.
double visible_keys(const ModelDimensions& model, double rows, double prior);
/// Tokens of a sequence whose K and V some of its rows sees: all, or those within the window; in
/// the mean layer.
double visible_tokens(const ModelDimensions& model, const BatchShape& shape);

/// The model whose measurements serve for this one: where only some layers have a window, one in
/// which none has. What a window saves is then counted, and so is what routing does.
ModelDimensions measured_form(ModelDimensions model);

/// Of sublayer_work()'s FLOP of qk and sv, those of keys that a row sees: visible_keys() over
/// rows x visible_tokens().
double causal_share(const ModelDimensions& model, const BatchShape& shape);

/// Bytes of K, or of V, of a batch's contexts in one layer: what moves where they are not at home,
/// since a layer's KV moves as a whole, also what lies before a window.
double context_kv_bytes(const ModelDimensions& model, const BatchShape& shape);
/// Bytes of both, in one slab: what moves where one of sublayers 2 and 3 is away from home, and
/// the other is not.
double context_slab_bytes(const ModelDimensions& model, const BatchShape& shape);

/// Elements that the LM head multiplies with: the table, and the projection before it, if there is
/// one.
double lm_head_elements(const ModelDimensions& model);

/// One sequence's part of an iteration.
struct SequenceWork {
  std::int64_t rows = 1;        ///< new tokens
  std::int64_t context = 0;     ///< tokens whose KV is cached already
  std::int64_t logit_rows = 1;  ///< rows that need logits, the last ones
};

/// What one stage of an iteration must do, all layers together.
struct StageWork {
  std::string_view name;  ///< "qkv", "attention", "out_proj", "fc1", "fc2", "embedding", "lm_head"
  double bytes = 0;       ///< weights, each once, or KV, once a sequence
  double flops = 0;
};

/// The work of one iteration over `sequences` that no implementation can avoid. Per layer, with T
/// rows in all (LIA Table 1's C and D_Y):
///   qkv        2 T hidden (q + 2 kv) FLOP
///   attention  4 q (visible keys, summed over rows) FLOP; K and V of every visible token
///   out_proj   2 T q hidden FLOP, and those of a shared FFN
///   fc1        2 T hidden ffn FLOP, twice that when gated
///   fc2        2 T ffn hidden FLOP
///   lm_head    2 (logit rows) embed vocab FLOP, once, with the projection before it
/// Last layer: of rows that need no logits only k and v. Not counted: activations, norms, tables.
std::vector<StageWork> iteration_work(const ModelDimensions& model,
                                      std::span<const SequenceWork> sequences);

/// What a machine does at best.
struct MachineRates {
  double read_bandwidth_bytes_per_s = 0;
  double gemm_flop_per_s = 0;
};

enum class Bound : std::uint8_t { bandwidth, compute };
std::string_view to_string(Bound bound);

/// The shortest time that work can take, split by what sets it.
struct TimeLimit {
  double bandwidth_s = 0;  ///< of stages that wait for memory
  double compute_s = 0;    ///< of stages that wait for arithmetic

  double total_s() const { return bandwidth_s + compute_s; }
  /// What makes up more of the sum.
  Bound bound() const { return compute_s > bandwidth_s ? Bound::compute : Bound::bandwidth; }
};

/// Sum over stages of max(bytes / bandwidth, FLOP / rate).
TimeLimit time_limit(std::span<const StageWork> stages, const MachineRates& rates);

}  // namespace sluice
