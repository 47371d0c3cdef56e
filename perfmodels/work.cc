#include "perfmodels/work.h"

#include <algorithm>
#include <cmath>

namespace sluice {

double weight_elements(const ModelDimensions& model, WeightKind kind) {
  const auto hidden = static_cast<double>(model.hidden_size);
  const auto ffn = static_cast<double>(model.ffn_size);
  const double q = model.q_size();
  const double kv = model.kv_size();
  const auto experts = static_cast<double>(std::max<std::int64_t>(model.num_experts, 1));
  switch (kind) {
    case WeightKind::vectors:
      return model.gated_ffn ? 2 * hidden : 6 * hidden + q + 2 * kv + ffn;
    case WeightKind::query:
      return hidden * q;
    case WeightKind::key:
    case WeightKind::value:
      return hidden * kv;
    case WeightKind::out_proj:
      return q * hidden;
    case WeightKind::fc1:
      return experts * hidden * ffn * (model.gated_ffn ? 2 : 1);
    case WeightKind::fc2:
      return experts * ffn * hidden;
  }
  return 0;
}

double layer_weight_bytes(const ModelDimensions& model) {
  double elements = 0;
  for (std::size_t kind = 0; kind < num_weight_kinds; ++kind)
    elements += weight_elements(model, static_cast<WeightKind>(kind));
  return model.weight_bytes(elements);
}

double kv_bytes_per_token(const ModelDimensions& model) {
  return 2 * model.kv_size() * static_cast<double>(model.kv_element_bytes);
}

double experts_touched(const ModelDimensions& model, double rows) {
  return experts_touched(model.num_experts, model.experts_per_token, rows);
}

double experts_touched(std::int64_t num_experts, std::int64_t experts_per_token, double rows) {
  if (num_experts == 0) return 1;
  const auto experts = static_cast<double>(num_experts);
  const double missed = 1 - static_cast<double>(experts_per_token) / experts;
  return experts * (1 - std::pow(missed, rows));
}

namespace {

/// Keys that the rows of one sequence see, summed over the rows: row i sees context + i + 1 of
/// them, at most the window.
double visible_keys(const SequenceWork& sequence, std::int64_t window) {
  const auto triangle = [](std::int64_t first, std::int64_t count) {  // first + (first + 1) + ...
    return static_cast<double>(count) *
           (static_cast<double>(first) + (static_cast<double>(count) - 1) / 2);
  };
  const std::int64_t first = sequence.context + 1;
  if (window == 0) return triangle(first, sequence.rows);
  const std::int64_t below = std::clamp<std::int64_t>(window - sequence.context, 0, sequence.rows);
  return triangle(first, below) + static_cast<double>((sequence.rows - below) * window);
}

/// Tokens whose K and V some row of the sequence sees.
std::int64_t visible_tokens(const SequenceWork& sequence, std::int64_t window) {
  const std::int64_t all = sequence.context + sequence.rows;
  return window == 0 ? all : std::min(all, window + sequence.rows - 1);
}

/// What an iteration's rows amount to in one layer.
struct LayerRows {
  double rows = 0;
  double keys = 0;       ///< that they see, summed over them
  double kv_tokens = 0;  ///< whose K and V some of them sees

  void add(const SequenceWork& sequence, std::int64_t window) {
    rows += static_cast<double>(sequence.rows);
    if (sequence.rows == 0) return;
    keys += visible_keys(sequence, window);
    kv_tokens += static_cast<double>(visible_tokens(sequence, window));
  }
};

/// The rows that need logits, behind the others.
SequenceWork drawing_rows(const SequenceWork& sequence) {
  return {.rows = sequence.logit_rows,
          .context = sequence.context + sequence.rows - sequence.logit_rows,
          .logit_rows = sequence.logit_rows};
}

/// Weights that are multiplied with a layer's rows.
StageWork& operator+=(StageWork& sum, const StageWork& work) {
  sum.bytes += work.bytes;
  sum.flops += work.flops;
  return sum;
}

}  // namespace

std::vector<StageWork> iteration_work(const ModelDimensions& model,
                                      std::span<const SequenceWork> sequences) {
  LayerRows all;
  LayerRows last;
  for (const SequenceWork& sequence : sequences) {
    all.add(sequence, model.sliding_window_tokens);
    last.add(drawing_rows(sequence), model.sliding_window_tokens);
  }
  const auto layers = static_cast<double>(model.num_layers);
  const auto hidden = static_cast<double>(model.hidden_size);
  const auto embed = static_cast<double>(model.embed_size);
  const auto ffn = static_cast<double>(model.ffn_size);
  const double q = model.q_size();
  const double kv = model.kv_size();
  const auto product = [&](double weights, double rows) {
    return StageWork{{}, rows > 0 ? model.weight_bytes(weights) : 0, 2 * rows * weights};
  };
  const auto ffn_product = [&](double weights, double rows) {
    StageWork work = product(weights, rows);
    work.bytes *= experts_touched(model, rows);
    if (model.num_experts > 0) work.flops *= static_cast<double>(model.experts_per_token);
    return work;
  };
  const auto attention = [&](const LayerRows& layer) {
    return StageWork{{}, layer.kv_tokens * kv_bytes_per_token(model), 4 * q * layer.keys};
  };
  /// All layers alike but for the last one.
  const auto in_all_layers = [&](std::string_view name, const StageWork& each,
                                 const StageWork& in_last) {
    return StageWork{name, (layers - 1) * each.bytes + in_last.bytes,
                     (layers - 1) * each.flops + in_last.flops};
  };
  const auto table = [&](std::string_view name, double weights, double count) {
    return StageWork{name, model.table_bytes(weights), 2 * count * weights};
  };
  const double fc1 = hidden * ffn * (model.gated_ffn ? 2 : 1);
  StageWork last_qkv = product(hidden * 2 * kv, all.rows);
  last_qkv += product(hidden * q, last.rows);
  std::vector<StageWork> stages = {
      in_all_layers("qkv", product(hidden * (q + 2 * kv), all.rows), last_qkv),
      in_all_layers("attention", attention(all), attention(last)),
      in_all_layers("out_proj", product(q * hidden, all.rows), product(q * hidden, last.rows)),
      in_all_layers("fc1", ffn_product(fc1, all.rows), ffn_product(fc1, last.rows)),
      in_all_layers("fc2", ffn_product(ffn * hidden, all.rows),
                    ffn_product(ffn * hidden, last.rows))};
  const bool projections = model.embed_size != model.hidden_size;
  if (projections) stages.push_back(table("embedding", embed * hidden, all.rows));
  if (last.rows > 0) {
    const double project_out = projections ? hidden * embed : 0;
    stages.push_back(
        table("lm_head", embed * static_cast<double>(model.vocab_size) + project_out, last.rows));
  }
  return stages;
}

std::string_view to_string(Bound bound) {
  return bound == Bound::bandwidth ? "bandwidth" : "compute";
}

TimeLimit time_limit(std::span<const StageWork> stages, const MachineRates& rates) {
  TimeLimit limit;
  for (const StageWork& stage : stages) {
    const double reading_s = stage.bytes / rates.read_bandwidth_bytes_per_s;
    const double computing_s = stage.flops / rates.gemm_flop_per_s;
    (computing_s > reading_s ? limit.compute_s : limit.bandwidth_s) +=
        std::max(reading_s, computing_s);
  }
  return limit;
}

}  // namespace sluice
