#include "engine/measure/swept_experts.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "engine/measure/bench.h"
#include "models/model.h"

namespace sluice {
namespace {

constexpr std::size_t num_choices = 8;

/// A model of one layer with experts, and with few other weights.
Model one_layer_of(const ModelConfig& config, DType dtype) {
  Model model;
  model.config = config;
  ModelConfig& one = model.config;
  std::int64_t layer = 0;
  while (!config.has_experts(layer)) ++layer;
  one.num_layers = 1;
  one.vocab_size = 64;
  one.dense_layers.clear();
  one.windowed_layers.clear();
  if (!config.layer_formats.empty())
    one.layer_formats = {config.layer_formats.at(static_cast<std::size_t>(layer))};
  one.quantization.reset();  // of random weights the formats are enough
  one.eos_token_ids.clear();
  one.bos_token_id.reset();
  model.weights = random_weights(one, dtype, 0);
  return model;
}

/// `count` different ones of `experts`, by number.
std::vector<ExpertChoice> choose(std::vector<std::int32_t>& experts, std::int32_t count,
                                 std::mt19937& random) {
  std::vector<ExpertChoice> chosen;
  for (std::int32_t i = 0; i < count; ++i) {
    std::uniform_int_distribution<std::size_t> any(static_cast<std::size_t>(i), experts.size() - 1);
    std::swap(experts.at(static_cast<std::size_t>(i)), experts.at(any(random)));
    chosen.push_back({experts.at(static_cast<std::size_t>(i)), 1.0F / static_cast<float>(count)});
  }
  std::ranges::sort(chosen, {}, &ExpertChoice::expert);
  return chosen;
}

}  // namespace

std::optional<SweptExperts> SweptExperts::of(const ModelConfig& model, DType dtype,
                                             ThreadPool& pool) {
  if (model.num_experts == 0) return std::nullopt;
  return SweptExperts(model, dtype, pool);
}

SweptExperts::SweptExperts(const ModelConfig& model, DType dtype, ThreadPool& pool)
    : loaded_(std::make_unique<LoadedModel>(one_layer_of(model, dtype), dtype, pool)) {
  const LayerWeights& layer = loaded_->layers().front();
  args_.shape = loaded_->shape(0);
  args_.mixture = mixture_shape(loaded_->config());
  args_.layout = layer.experts.layout;
  args_.chunks = layer.experts.cut;
  args_.tag.layer = 0;
  for (const DataHandle& chunk : layer.experts.chunks)
    chunks_.push_back(ReadAccess(chunk).as<std::byte>());  // it stays where it is
}

double SweptExperts::expert_elements() const {
  const double matrices = args_.shape.gated_ffn ? 3 : 2;
  return matrices * static_cast<double>(hidden_size()) * static_cast<double>(ffn_size());
}

void SweptExperts::prepare(std::int64_t rows) {
  const DecoderShape& shape = args_.shape;
  args_.tag.num_tokens = rows;
  const std::int64_t elements = rows * activation_stride(shape.hidden_size, shape.dtype);
  normed_ = Buffer(static_cast<std::size_t>(elements) * size_bytes(shape.dtype));
  std::mt19937 random(3);
  std::normal_distribution<float> values;
  for (std::int64_t i = 0; i < elements; ++i) {
    if (shape.dtype == DType::f32) {
      normed_.as<float>()[i] = values(random);
    } else {
      normed_.as<BFloat16>()[i] = to_bf16(values(random));
    }
  }
  sum_.resize(static_cast<std::size_t>(rows * shape.hidden_size));
  std::vector<std::int32_t> experts(static_cast<std::size_t>(args_.mixture.num_experts));
  std::iota(experts.begin(), experts.end(), 0);
  choices_.assign(num_choices, {});
  for (std::vector<ExpertChoice>& choice : choices_) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const std::vector<ExpertChoice> of_row =
          choose(experts, args_.mixture.experts_per_token, random);
      choice.insert(choice.end(), of_row.begin(), of_row.end());
    }
  }
}

double SweptExperts::touched() const {
  double sum = 0;
  for (const std::vector<ExpertChoice>& choice : choices_) {
    std::set<std::int32_t> experts;
    for (const ExpertChoice& each : choice) experts.insert(each.expert);
    sum += static_cast<double>(experts.size());
  }
  return sum / static_cast<double>(choices_.size());
}

void SweptExperts::run(const CpuContext& cpu) {
  ExpertsOperands operands{.args = &args_,
                           .normed = normed_.data(),
                           .routing = choices_.at(next_++ % choices_.size()).data(),
                           .sum = sum_.data()};
  std::ranges::copy(chunks_, operands.chunks.begin());
  experts_cpu(cpu, operands);
}

}  // namespace sluice
