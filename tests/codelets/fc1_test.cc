#include "codelets/fc1/fc1.h"

#include <gtest/gtest.h>

#include "tests/codelets/codelet_data.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

using test::Random;

struct Shape {
  const char* name;
  std::int64_t hidden_size;
  std::int64_t ffn_size;
  bool gated;
  Activation activation;
  NormKind norm;
  NormPlace norm_place;
  test::VectorChoice vectors;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.name; }

class Fc1Test : public ::testing::TestWithParam<std::tuple<DType, Shape>> {
 protected:
  Fc1Test() : random_(51) {
    const auto& [dtype, from] = GetParam();
    DecoderShape& shape = args_.shape;
    shape.dtype = dtype;
    shape.hidden_size = from.hidden_size;
    shape.ffn_size = from.ffn_size;
    shape.gated_ffn = from.gated;
    shape.activation = from.activation;
    shape.norm = from.norm;
    shape.norm_place = from.norm_place;
    shape.num_heads = shape.num_kv_heads = shape.head_dim = 1;
    vectors_ = test::make_vectors(random_, shape, from.vectors);
    args_.vectors = vectors_.layout;
    x_ = random_.floats(most_rows * shape.hidden_size, 3.0);
    weight_ = test::make_weight(random_, shape.ffn_size, shape.hidden_size, dtype);
    if (from.gated) gate_ = test::make_weight(random_, shape.ffn_size, shape.hidden_size, dtype);
  }

  void set_rows(std::int64_t rows) {
    args_.tag.num_tokens = rows;
    h_.assign(static_cast<std::size_t>(rows * args_.shape.ffn_size) * size_bytes(args_.shape.dtype),
              std::byte{0});
  }

  Fc1Operands operands() {
    return {.args = &args_,
            .x = x_.data(),
            .vectors = vectors_.values.data(),
            .weight = weight_.packed.data(),
            .gate = gate_.packed.data(),
            .h = h_.data()};
  }

  static constexpr std::int64_t most_rows = 67;
  Random random_;
  Fc1Args args_;
  test::LayerVectors vectors_;
  std::vector<float> x_;
  test::Weight weight_, gate_;
  std::vector<std::byte> h_;
};

TEST_P(Fc1Test, MatchesReference) {
  const DType dtype = args_.shape.dtype;
  for (const std::int64_t rows : {std::int64_t{1}, std::int64_t{5}, most_rows}) {
    SCOPED_TRACE(rows);
    set_rows(rows);
    std::vector<double> expected(static_cast<std::size_t>(rows * args_.shape.ffn_size));
    fc1_reference(operands(), weight_.plain.values.data(), gate_.plain.values.data(),
                  expected.data());
    fc1_cpu(test::cpu(), operands());
    test::expect_close(test::to_floats(h_.data(), rows * args_.shape.ffn_size, dtype), expected,
                       test::tolerance(dtype, test::GemmInput::rounded, dtype));
  }
}

TEST_P(Fc1Test, GivesTheSameBitsAsAStarPuTask) {
  set_rows(most_rows);
  fc1_cpu(test::cpu(), operands());
  std::vector<std::byte> h(h_.size());
  test::runtime();
  {
    const DataHandle x = DataHandle::of_memory(x_.data(), 4 * x_.size());
    const DataHandle vectors =
        DataHandle::of_memory(vectors_.values.data(), 4 * vectors_.values.size());
    const DataHandle weight = DataHandle::of_memory(weight_.packed.data(), weight_.packed.size());
    const DataHandle gate = args_.shape.gated_ffn
                                ? DataHandle::of_memory(gate_.packed.data(), gate_.packed.size())
                                : DataHandle();
    const DataHandle to_h = DataHandle::of_memory(h.data(), h.size());
    submit_fc1(args_, {x, vectors, weight, gate, to_h});
  }
  EXPECT_FALSE(run_failure().happened());
  EXPECT_EQ(h, h_);
}

constexpr auto layer_norm = NormKind::layer_norm;
constexpr auto rms_norm = NormKind::rms_norm;
constexpr auto pre = NormPlace::pre;
constexpr auto post = NormPlace::post;
const test::VectorChoice weight_only{.norm_weight = true};
const test::VectorChoice all_vectors{.norm_weight = true, .norm_bias = true, .linear_bias = true};
const test::VectorChoice no_vectors{.norm_weight = false};

INSTANTIATE_TEST_SUITE_P(
    Shapes, Fc1Test,
    ::testing::Combine(::testing::Values(DType::f32, DType::bf16),
                       ::testing::Values(Shape{"relu_63_to_101", 63, 101, false, Activation::relu,
                                               layer_norm, pre, all_vectors},
                                         Shape{"relu_200_to_333_post", 200, 333, false,
                                               Activation::relu, layer_norm, post, all_vectors},
                                         Shape{"gelu_72_to_65", 72, 65, false, Activation::gelu,
                                               rms_norm, pre, weight_only},
                                         Shape{"gelu_tanh_72_to_1000", 72, 1000, false,
                                               Activation::gelu_tanh, layer_norm, pre, no_vectors},
                                         Shape{"silu_63_to_63_post", 63, 63, false,
                                               Activation::silu, rms_norm, post, no_vectors},
                                         Shape{"gated_silu_200_to_333", 200, 333, true,
                                               Activation::silu, rms_norm, pre, weight_only},
                                         Shape{"gated_silu_63_to_2049", 63, 2049, true,
                                               Activation::silu, rms_norm, pre, weight_only},
                                         Shape{"gated_gelu_tanh_72_to_97", 72, 97, true,
                                               Activation::gelu_tanh, rms_norm, pre, no_vectors})),
    [](const auto& case_info) {
      return test::name_of(std::get<0>(case_info.param)) + "_" + std::get<1>(case_info.param).name;
    });

TEST(Fc1GateTest, GoesToZeroFarBelowZero) {
  // A gate of -200: silu is -200 / (1 + e^200), nothing at all.
  Fc1Args args;
  args.tag.num_tokens = 1;
  args.shape.dtype = DType::f32;
  args.shape.hidden_size = args.shape.ffn_size = 1;
  args.shape.norm_place = NormPlace::post;  // x goes in as it is
  const test::Operand up = test::make_operand({1.0F}, DType::f32);
  const Buffer packed = test::pack(up, 1, 1);
  const std::vector<float> vectors(1);
  for (const float gate : {-100.0F, -104.5F, -110.0F, -150.0F, -200.0F, -1000.0F}) {
    const Buffer packed_gate = test::pack(test::make_operand({gate}, DType::f32), 1, 1);
    const float x = 1.0F;
    float h = 7.0F;
    fc1_cpu(test::cpu(), {.args = &args,
                          .x = &x,
                          .vectors = vectors.data(),
                          .weight = packed.data(),
                          .gate = packed_gate.data(),
                          .h = reinterpret_cast<std::byte*>(&h)});
    EXPECT_NEAR(h, 0.0, 1e-30) << "gate " << gate;
  }
}

}  // namespace
}  // namespace sluice
