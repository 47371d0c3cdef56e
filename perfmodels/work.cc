#include "perfmodels/work.h"

#include <algorithm>
#include <cmath>

namespace sluice {
namespace {

double shared_ffn_elements(const ModelDimensions& model) {
  return static_cast<double>(model.shared_ffn_size * model.hidden_size) * (model.gated_ffn ? 3 : 2);
}

}  // namespace

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
      return q * hidden + shared_ffn_elements(model);
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

bool can_place(const ModelDimensions& model, const Placement& placement) {
  return model.num_experts == 0 || placement[Sublayer::fc1] == placement[Sublayer::fc2];
}

double experts_touched(const ModelDimensions& model, double rows) {
  if (model.num_experts > 0 && model.routing) return model.routing->experts_touched(rows);
  return experts_touched(model.num_experts, model.experts_per_token, rows);
}

double rows_of_an_expert(const ModelDimensions& model, double rows) {
  if (model.num_experts == 0) return rows;
  return rows * static_cast<double>(model.experts_per_token) / experts_touched(model, rows);
}

double sublayer_weight_bytes(const ModelDimensions& model, Sublayer sublayer) {
  double elements = 0;
  for (const WeightKind kind : weights_of(sublayer)) elements += weight_elements(model, kind);
  return model.weight_bytes(elements);
}

ExpertPart all_experts(const ModelDimensions& model, double rows) {
  return {.experts = static_cast<double>(model.num_experts),
          .touched = experts_touched(model, rows),
          .pairs = rows * static_cast<double>(model.experts_per_token)};
}

SublayerWork expert_work(const ModelDimensions& model, Sublayer sublayer, const BatchShape& shape,
                         const ExpertPart& part) {
  const auto rows = static_cast<double>(shape.total_rows());
  const auto hidden = static_cast<double>(model.hidden_size);
  const auto ffn = static_cast<double>(model.ffn_size);
  const bool is_first = sublayer == Sublayer::fc1;
  const double weights = hidden * ffn * (is_first && model.gated_ffn ? 2 : 1);
  const double inputs = is_first ? rows * hidden : part.pairs * ffn;
  return {activation_element_bytes * inputs, part.touched * model.weight_bytes(weights),
          2 * part.pairs * weights};
}

SublayerWork sublayer_work(const ModelDimensions& model, Sublayer sublayer,
                           const BatchShape& shape) {
  const auto rows = static_cast<double>(shape.total_rows());
  const auto hidden = static_cast<double>(model.hidden_size);
  const auto ffn = static_cast<double>(model.ffn_size);
  const double q = model.q_size();
  const double kv = model.kv_size();
  const auto product = [&](double inputs, double outputs) {
    const double weights = inputs * outputs;
    return SublayerWork{activation_element_bytes * rows * inputs, model.weight_bytes(weights),
                        2 * rows * weights};
  };
  const auto of_experts = [&](SublayerWork work) {
    work.y_bytes *= experts_touched(model, rows);
    if (model.num_experts > 0) work.flops *= static_cast<double>(model.experts_per_token);
    return work;
  };
  switch (sublayer) {
    case Sublayer::qkv:
      return product(hidden, q + 2 * kv);
    case Sublayer::qk:
    case Sublayer::sv: {
      const double tokens = visible_tokens(model, shape);
      return {activation_element_bytes * rows * q,
              static_cast<double>(shape.batch) * tokens * kv_bytes_per_token(model) / 2,
              2 * rows * tokens * q};
    }
    case Sublayer::out_proj: {
      SublayerWork work = product(q, hidden);
      const double weights = shared_ffn_elements(model);
      if (weights > 0) {
        work.x_bytes +=
            activation_element_bytes * rows * (hidden + static_cast<double>(model.shared_ffn_size));
      }
      work.y_bytes += model.weight_bytes(weights);
      work.flops += 2 * rows * weights;
      return work;
    }
    case Sublayer::fc1:
      return of_experts(product(hidden, ffn * (model.gated_ffn ? 2 : 1)));
    case Sublayer::fc2: {
      SublayerWork work = of_experts(product(ffn, hidden));
      if (model.num_experts > 0) work.x_bytes *= static_cast<double>(model.experts_per_token);
      return work;
    }
    case Sublayer::kv_store:
      return {rows * kv_bytes_per_token(model), rows * kv_bytes_per_token(model), 0};
    default:
      return {};
  }
}

double visible_keys(double rows, double prior, std::int64_t window) {
  const auto triangle = [](double before, double count) {  // (before + 1) + (before + 2) + ...
    return count * (before + (count + 1) / 2);
  };
  if (window == 0) return triangle(prior, rows);
  const auto most = static_cast<double>(window);
  const double growing = std::clamp(most - prior, 0.0, rows);  // rows that see fewer than that
  return triangle(prior, growing) + (rows - growing) * most;
}

namespace {

/// Mean over the layers of what depends on a layer's window.
template <typename OfWindow>
double mean_over_layers(const ModelDimensions& model, const OfWindow& of_window) {
  const double full = model.full_attention_share();
  double mean = 0;
  if (full > 0) mean += full * of_window(0);
  if (full < 1) mean += (1 - full) * of_window(model.sliding_window_tokens);
  return mean;
}

}  // namespace

double visible_keys(const ModelDimensions& model, double rows, double prior) {
  return mean_over_layers(model,
                          [&](std::int64_t window) { return visible_keys(rows, prior, window); });
}

double visible_tokens(const ModelDimensions& model, const BatchShape& shape) {
  const std::int64_t all = std::max(shape.context, shape.rows);
  return mean_over_layers(model, [&](std::int64_t window) {
    return static_cast<double>(window == 0 ? all : std::min(all, window + shape.rows - 1));
  });
}

ModelDimensions measured_form(ModelDimensions model) {
  if (model.full_attention_layers > 0)
    model.sliding_window_tokens = model.full_attention_layers = 0;
  model.routing.reset();
  return model;
}

double causal_share(const ModelDimensions& model, const BatchShape& shape) {
  const auto rows = static_cast<double>(shape.rows);
  const auto prior = static_cast<double>(std::max(shape.context, shape.rows)) - rows;
  return visible_keys(model, rows, prior) / (rows * visible_tokens(model, shape));
}

double context_kv_bytes(const ModelDimensions& model, const BatchShape& shape) {
  const auto tokens = static_cast<double>(shape.batch * std::max(shape.context, shape.rows));
  return tokens * kv_bytes_per_token(model) / 2;
}

double context_slab_bytes(const ModelDimensions& model, const BatchShape& shape) {
  return 2 * context_kv_bytes(model, shape);
}

namespace {

/// Elements of a table, and of the projection between it and the layers where there is one.
double projected_table_elements(const ModelDimensions& model) {
  const auto embed = static_cast<double>(model.embed_size);
  const double projection =
      model.embed_size == model.hidden_size ? 0 : static_cast<double>(model.hidden_size) * embed;
  return embed * static_cast<double>(model.vocab_size) + projection;
}

}  // namespace

double lm_head_elements(const ModelDimensions& model) { return projected_table_elements(model); }

double embedding_elements(const ModelDimensions& model) {
  return projected_table_elements(model) +
         static_cast<double>(model.learned_positions * model.hidden_size);
}

namespace {

/// What an iteration's rows amount to in one layer.
struct LayerRows {
  double rows = 0;
  double keys = 0;       ///< that they see, summed over them
  double kv_tokens = 0;  ///< whose K and V some of them sees

  void add(const ModelDimensions& model, const SequenceWork& sequence) {
    const auto count = static_cast<double>(sequence.rows);
    rows += count;
    if (sequence.rows == 0) return;
    keys += visible_keys(model, count, static_cast<double>(sequence.context));
    kv_tokens +=
        visible_tokens(model, {.rows = sequence.rows, .context = sequence.context + sequence.rows});
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
    all.add(model, sequence);
    last.add(model, drawing_rows(sequence));
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
  const double out_proj = q * hidden + shared_ffn_elements(model);
  const double fc1 = hidden * ffn * (model.gated_ffn ? 2 : 1);
  StageWork last_qkv = product(hidden * 2 * kv, all.rows);
  last_qkv += product(hidden * q, last.rows);
  std::vector<StageWork> stages = {
      in_all_layers("qkv", product(hidden * (q + 2 * kv), all.rows), last_qkv),
      in_all_layers("attention", attention(all), attention(last)),
      in_all_layers("out_proj", product(out_proj, all.rows), product(out_proj, last.rows)),
      in_all_layers("fc1", ffn_product(fc1, all.rows), ffn_product(fc1, last.rows)),
      in_all_layers("fc2", ffn_product(ffn * hidden, all.rows),
                    ffn_product(ffn * hidden, last.rows))};
  if (model.embed_size != model.hidden_size)
    stages.push_back(
        {"embedding", model.table_bytes(embed * hidden), 2 * all.rows * embed * hidden});
  const double head = lm_head_elements(model);
  if (last.rows > 0) stages.push_back({"lm_head", model.head_bytes(head), 2 * last.rows * head});
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
