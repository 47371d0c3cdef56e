#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "codelets/experts/experts.h"
#include "codelets/kernels/norm.h"
#include "codelets/router/router.h"
#include "codelets/weights/weight_packing.h"
#include "tests/codelets/coded_weight.h"
#include "tests/codelets/codelet_data.h"

namespace sluice::test {

struct MixtureCase {
  const char* name;
  std::int64_t hidden_size;
  std::int64_t ffn_size;
  std::int32_t num_experts;
  std::int32_t per_token;
  RouterKind router;
  bool norm_chosen;
  bool gated;
  std::int32_t num_groups = 1;
  std::int32_t groups_per_token = 1;
  float routed_scaling = 1;
  bool correction = false;
  bool biased = false;  ///< router and experts have biases, and SwiGLU is clamped
};

inline std::ostream& operator<<(std::ostream& out, const MixtureCase& of) { return out << of.name; }

class RouterFixture : public ::testing::TestWithParam<std::tuple<DType, MixtureCase>> {
 protected:
  static constexpr std::int64_t most_rows = 67;

  RouterFixture() : random_(84) {
    const auto& [dtype, from] = GetParam();
    DecoderShape& shape = args_.shape;
    shape.dtype = dtype;
    shape.hidden_size = from.hidden_size;
    shape.ffn_size = from.ffn_size;
    shape.num_heads = shape.num_kv_heads = shape.head_dim = 1;
    vectors_ = make_vectors(random_, shape, {.norm_weight = true});
    args_.vectors = vectors_.layout;
    if (from.biased) {
      args_.vectors.router_bias = static_cast<std::int64_t>(vectors_.values.size());
      for (const float value : random_.floats(from.num_experts)) vectors_.values.push_back(value);
    }
    args_.mixture = {.num_experts = from.num_experts,
                     .experts_per_token = from.per_token,
                     .router = from.router,
                     .norm_chosen = from.norm_chosen,
                     .num_groups = from.num_groups,
                     .groups_per_token = from.groups_per_token,
                     .routed_scaling = from.routed_scaling};
    x_ = random_.floats(most_rows * shape.hidden_size, 3.0);
    weight_ = make_weight(random_, from.num_experts, shape.hidden_size, dtype);
    args_.weight = weight_.type;
    if (from.correction) {
      args_.vectors.router_correction = static_cast<std::int64_t>(vectors_.values.size());
      const std::vector<float> correction = random_.floats(from.num_experts, 0.5);
      vectors_.values.insert(vectors_.values.end(), correction.begin(), correction.end());
    }
  }

  void set_rows(std::int64_t rows) {
    args_.tag.num_tokens = rows;
    normed_.assign(static_cast<std::size_t>(rows * normed_stride()) * size_bytes(args_.shape.dtype),
                   std::byte{0});
    routing_.assign(static_cast<std::size_t>(rows * args_.mixture.experts_per_token), {});
  }
  std::int64_t normed_stride() const {
    return activation_stride(args_.shape.hidden_size, args_.shape.dtype);
  }

  RouterOperands operands() {
    return {.args = &args_,
            .x = x_.data(),
            .vectors = vectors_.values.data(),
            .weight = weight_.weight(),
            .normed = normed_.data(),
            .routing = routing_.data()};
  }

  /// What router_cpu() and router_cuda() gave: the norm, and the choice by it as it was rounded.
  void expect_reference(const std::vector<std::byte>& normed,
                        const std::vector<ExpertChoice>& routing) const {
    const DecoderShape& shape = args_.shape;
    const std::int64_t hidden = shape.hidden_size;
    const std::int64_t num_experts = args_.mixture.num_experts;
    const std::int64_t rows = args_.tag.num_tokens;
    std::vector<float> given;
    std::vector<double> expected;
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::vector<float> row = to_floats(
          normed.data() + static_cast<std::size_t>(r * normed_stride()) * size_bytes(shape.dtype),
          hidden, shape.dtype);
      given.insert(given.end(), row.begin(), row.end());
      std::vector<double> of_row(x_.begin() + r * hidden, x_.begin() + (r + 1) * hidden);
      norm_reference(
          shape, {VectorLayout::at(vectors_.values.data(), args_.vectors.ffn_norm_weight), nullptr},
          of_row.data(), hidden, of_row.data());
      expected.insert(expected.end(), of_row.begin(), of_row.end());
    }
    expect_close(given, expected, tolerance(shape.dtype, GemmInput::rounded, shape.dtype));

    std::vector<double> weights(static_cast<std::size_t>(rows * num_experts));
    const double gap = router_reference(
        args_, std::vector<double>(given.begin(), given.end()).data(), weight_.plain.values.data(),
        VectorLayout::at(vectors_.values.data(), args_.vectors.router_bias), weights.data(),
        correction());
    ASSERT_GT(gap, 1e-4) << "the rows do not tell a right choice from a wrong one";
    std::vector<float> chosen(weights.size());
    std::size_t i = 0;
    for (std::int64_t r = 0; r < rows; ++r) {
      std::int32_t before = -1;
      for (std::int32_t k = 0; k < args_.mixture.experts_per_token; ++k) {
        const ExpertChoice& choice = routing[i++];
        ASSERT_GT(choice.expert, before) << "row " << r;
        ASSERT_LT(choice.expert, num_experts) << "row " << r;
        before = choice.expert;
        chosen[static_cast<std::size_t>(r * num_experts + choice.expert)] = choice.weight;
      }
    }
    for (std::size_t e = 0; e < weights.size(); ++e)
      ASSERT_EQ(chosen[e] != 0, weights[e] != 0) << "row and expert " << e;
    expect_close(chosen, weights, {.of_value = 0, .of_largest = 2e-5});
  }

  const float* correction() const {
    return VectorLayout::at(vectors_.values.data(), args_.vectors.router_correction);
  }

  Random random_;
  RouterArgs args_;
  LayerVectors vectors_;
  std::vector<float> x_;
  PackedWeight weight_;
  std::vector<std::byte> normed_;
  std::vector<ExpertChoice> routing_;
};

inline auto mixture_cases() {
  constexpr auto first = RouterKind::softmax_first;
  constexpr auto of_chosen = RouterKind::softmax_of_chosen;
  return ::testing::Combine(
      ::testing::Values(DType::f32, DType::bf16),
      ::testing::Values(
          MixtureCase{"mixtral_2_of_8", 72, 100, 8, 2, first, true, true},
          MixtureCase{"raw_weights_3_of_20", 200, 65, 20, 3, first, false, true},
          MixtureCase{"chosen_only_4_of_130", 64, 96, 130, 4, of_chosen, true, true},
          MixtureCase{"one_expert", 63, 101, 1, 1, first, true, false},
          MixtureCase{"one_of_5", 128, 64, 5, 1, first, false, false},
          MixtureCase{"all_of_6", 96, 333, 6, 6, of_chosen, true, true},
          MixtureCase{"biased_4_of_9", 80, 70, 9, 4, of_chosen, true, true, 1, 1, 1, false, true}));
}

/// Sigmoid routers: groups, corrections and scaling.
inline auto sigmoid_cases() {
  constexpr auto sigmoid = RouterKind::sigmoid;
  return ::testing::Combine(
      ::testing::Values(DType::f32, DType::bf16),
      ::testing::Values(
          MixtureCase{"sigmoid_2_of_7", 72, 40, 7, 2, sigmoid, true, true},
          MixtureCase{"sigmoid_4_of_130_corrected", 64, 40, 130, 4, sigmoid, true, true, 1, 1, 2.5F,
                      true},
          MixtureCase{"sigmoid_3_of_12_in_2_of_4_groups", 72, 40, 12, 3, sigmoid, true, true, 4, 2,
                      2.5F, true},
          MixtureCase{"sigmoid_1_of_16_in_1_of_2_groups_raw", 200, 40, 16, 1, sigmoid, false, true,
                      2, 1, 0.5F, true},
          MixtureCase{"sigmoid_all_6_of_2_of_3_groups", 63, 40, 9, 6, sigmoid, true, true, 3, 2, 1,
                      true},
          MixtureCase{"sigmoid_5_of_10_in_all_of_5_groups", 96, 40, 10, 5, sigmoid, true, true, 5,
                      5, 1, true},
          MixtureCase{"sigmoid_all_of_5", 128, 40, 5, 5, sigmoid, false, true, 1, 1, 1, true},
          MixtureCase{"sigmoid_one_expert", 63, 40, 1, 1, sigmoid, true, true, 1, 1, 1, true}));
}

template <typename ParamInfo>
std::string mixture_name(const ParamInfo& info) {
  return name_of(std::get<0>(info.param)) + "_" + std::get<1>(info.param).name;
}

/// All experts' weights, plain and packed in chunks.
struct PackedExperts {
  /// One kind of weight of each expert.
  struct Weights {
    WeightType type;
    std::vector<float> values;  ///< one expert behind the other
    std::vector<Buffer> packed;
    std::vector<float> biases;  ///< likewise; none unless biased
  };
  PerLayerWeight<Weights> weights;
  ExpertLayout layout;
  ExpertChunks cut;
  ExpertOrder order;
  std::vector<Buffer> chunks;

  /// In the shape's type.
  PackedExperts(Random& random, const DecoderShape& shape, std::int32_t num_experts,
                std::int32_t per_chunk, bool biased = false)
      : PackedExperts(random, shape, {.num_experts = num_experts, .per_chunk = per_chunk},
                      WeightFormat::plain(shape.dtype), {}, biased) {}
  /// `hot` names cut.num_hot experts.
  PackedExperts(Random& random, const DecoderShape& shape, const ExpertChunks& its_cut,
                const WeightFormat& format, const std::vector<std::int32_t>& hot = {},
                bool biased = false)
      : cut(its_cut), order(cut.num_experts, hot) {
    if (shape.gated_ffn)
      draw(random, LayerWeight::gate, {shape.hidden_size, shape.ffn_size, format});
    draw(random, LayerWeight::fc1, {shape.hidden_size, shape.ffn_size, format});
    draw(random, LayerWeight::fc2, {shape.ffn_size, shape.hidden_size, format});
    LayerWeightTypes types;
    for (const LayerWeight weight : all_layer_weights) types[weight] = weights[weight].type;
    layout = ExpertLayout::of(types, {.num_experts = cut.num_experts, .expert_bias = biased});
    if (biased) {
      for (Weights& of : weights) of.biases = random.floats(cut.num_experts * of.type.out);
    }
    for (std::int32_t chunk = 0; chunk < cut.count(); ++chunk) pack_chunk(chunk);
  }

  std::array<const std::byte*, most_chunks> pointers() const {
    std::array<const std::byte*, most_chunks> all{};
    for (std::size_t i = 0; i < chunks.size(); ++i) all.at(i) = chunks[i].data();
    return all;
  }
  ExpertMatrices matrices() const {
    const auto biases = [&](LayerWeight weight) {
      const std::vector<float>& all = weights[weight].biases;
      return all.empty() ? nullptr : all.data();
    };
    return {weights[LayerWeight::gate].values.data(),
            weights[LayerWeight::fc1].values.data(),
            weights[LayerWeight::fc2].values.data(),
            biases(LayerWeight::gate),
            biases(LayerWeight::fc1),
            biases(LayerWeight::fc2)};
  }

 private:
  void draw(Random& random, LayerWeight weight, const WeightType& type) {
    Weights& of = weights[weight];
    of.type = type;
    const auto add = [&](const std::vector<float>& values, Buffer packed) {
      of.values.insert(of.values.end(), values.begin(), values.end());
      of.packed.push_back(std::move(packed));
    };
    for (std::int32_t expert = 0; expert < cut.num_experts; ++expert) {
      if (!type.format.is_plain()) {
        CodedWeight coded(random, type.format, type.in, type.out);
        add(coded.values, std::move(coded.packed));
        continue;
      }
      const Operand plain =
          make_operand(random.floats(type.in * type.out, 0.2), type.format.dtype());
      add(plain.values, pack(plain, type.out, type.in));
    }
  }
  void pack_chunk(std::int32_t chunk) {
    const std::int32_t count = cut.size_of(chunk);
    Buffer& memory = chunks.emplace_back(static_cast<std::size_t>(count) * layout.size_bytes());
    for (std::int32_t i = 0; i < count; ++i) {
      std::byte* expert = memory.data() + static_cast<std::size_t>(i) * layout.size_bytes();
      for (const LayerWeight weight : all_layer_weights) {
        const std::vector<Buffer>& packed = weights[weight].packed;
        if (packed.empty()) continue;
        const auto place = static_cast<std::size_t>(cut.first_of(chunk) + i);
        const auto number = static_cast<std::size_t>(order.experts.at(place));
        const Buffer& of = packed.at(number);
        std::memcpy(expert + layout.offset(weight), of.data(), of.size());
        const std::vector<float>& biases = weights[weight].biases;
        if (biases.empty()) continue;
        const auto out = static_cast<std::size_t>(weights[weight].type.out);
        std::memcpy(expert + layout.bias_offset(weight), biases.data() + number * out,
                    out * sizeof(float));
      }
    }
  }
};

/// Which experts rows go through.
enum class Spread : std::uint8_t { random, all_to_one, none_to_the_first };

/// Rows and their experts.
class ExpertRowsOf {
 protected:
  ExpertRowsOf(DType dtype, const MixtureCase& from) : random_(91) {
    DecoderShape& shape = args_.shape;
    shape.dtype = dtype;
    shape.hidden_size = from.hidden_size;
    shape.ffn_size = from.ffn_size;
    shape.gated_ffn = from.gated;
    shape.num_heads = shape.num_kv_heads = shape.head_dim = 1;
    args_.mixture = {.num_experts = from.num_experts,
                     .experts_per_token = from.per_token,
                     .expert_bias = from.biased};
    if (from.biased) {
      shape.activation = Activation::clamped_swiglu;
      shape.swiglu_limit = 1.25F;  // which many values exceed
    }
  }

  /// Rows whose k experts are drawn; weights that do not add up to 1.
  void set_rows(std::int64_t rows, Spread spread) {
    args_.tag.num_tokens = rows;
    const std::int64_t hidden = args_.shape.hidden_size;
    const std::int64_t stride = activation_stride(hidden, args_.shape.dtype);
    normed_values_.clear();
    normed_.assign(static_cast<std::size_t>(rows * stride) * size_bytes(args_.shape.dtype),
                   std::byte{0});
    routing_.clear();
    weights_.assign(static_cast<std::size_t>(rows * args_.mixture.num_experts), 0.0);
    for (std::int64_t r = 0; r < rows; ++r) {
      const Operand row = make_operand(random_.floats(hidden, 2.0), args_.shape.dtype);
      std::memcpy(
          normed_.data() + static_cast<std::size_t>(r * stride) * size_bytes(args_.shape.dtype),
          row.data(), row.memory.size());
      normed_values_.insert(normed_values_.end(), row.values.begin(), row.values.end());
      for (const std::int32_t expert : experts_of_row(spread)) {
        const auto weight = static_cast<float>(0.1 + random_.uniform());
        routing_.push_back({expert, weight});
        weights_[static_cast<std::size_t>(r * args_.mixture.num_experts + expert)] = weight;
      }
    }
  }

  std::vector<double> expected(const PackedExperts& experts) const {
    std::vector<double> sum(normed_values_.size());
    experts_reference(args_, normed_values_.data(), weights_.data(), experts.matrices(),
                      sum.data());
    return sum;
  }

  Random random_;
  ExpertsArgs args_;
  std::vector<double> normed_values_;
  std::vector<std::byte> normed_;
  std::vector<ExpertChoice> routing_;
  std::vector<double> weights_;

 private:
  std::vector<std::int32_t> experts_of_row(Spread spread) {
    const std::int32_t all = args_.mixture.num_experts;
    const std::int32_t count = args_.mixture.experts_per_token;
    const std::int32_t first = spread == Spread::none_to_the_first && count < all ? 1 : 0;
    std::vector<std::int32_t> order = random_.permutation(all - first);
    for (std::int32_t& expert : order) expert += first;
    if (spread == Spread::all_to_one) std::iota(order.begin(), order.end(), 0);
    order.resize(static_cast<std::size_t>(count));
    std::sort(order.begin(), order.end());
    return order;
  }
};

class ExpertsFixture : public ExpertRowsOf,
                       public ::testing::TestWithParam<std::tuple<DType, MixtureCase>> {
 protected:
  ExpertsFixture() : ExpertRowsOf(std::get<0>(GetParam()), std::get<1>(GetParam())) {}
};

}  // namespace sluice::test
