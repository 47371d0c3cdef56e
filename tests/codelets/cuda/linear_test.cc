// linear() and gated_linear() of codelets/cuda over the CPU's packed weights.
#include "codelets/cuda/linear.h"

#include <gtest/gtest.h>

#include <tuple>

#include "codelets/cuda/linear_limits.h"
#include "codelets/kernels/linear_ref.h"
#include "tests/codelets/codelet_data.h"
#include "tests/codelets/cuda/device_data.h"
#include "tests/codelets/cuda/linear_data.h"

namespace sluice {
namespace {

using test::OnDevice;
using test::Random;

std::vector<double> reference_of(const std::vector<float>& x, std::int64_t x_stride,
                                 const test::Operand& weight, const float* bias, std::int64_t rows,
                                 std::int64_t in, std::int64_t out) {
  return test::linear_reference_of(x, x_stride, weight.values, bias, rows, in, out);
}

OnDevice<std::byte> on_device(const Buffer& packed) {
  return OnDevice<std::byte>(test::memory_of(packed));
}

/// y [rows, out] in f32; x [rows, x_stride].
std::vector<float> run_linear(const cuda::Context& gpu, const WeightType& type,
                              const OnDevice<std::byte>& packed, const OnDevice<std::byte>& x,
                              std::int64_t rows, std::int64_t x_stride,
                              const std::vector<float>& bias) {
  const OnDevice<float> bias_there(bias);
  OnDevice<float> y(static_cast<std::size_t>(rows * type.out));
  test::run_linear_on(gpu, LinearCall{.weight = {type, packed.get()},
                                      .dtype = type.format.dtype(),
                                      .x = x.get(),
                                      .rows = rows,
                                      .x_stride = x_stride,
                                      .bias = bias.empty() ? nullptr : bias_there.get(),
                                      .dst = y.get()});
  return y.read();
}

class CudaLinearShapesTest : public ::testing::TestWithParam<std::tuple<DType, std::int64_t>> {};

TEST_P(CudaLinearShapesTest, MatchesReferenceForFewAndManyRows) {
  const auto [dtype, in] = GetParam();
  Random random(static_cast<std::uint64_t>(in));
  for (const std::int64_t out : {1, 5, 63, 64, 65, 129, 1000, 2049}) {
    const test::PackedWeight weight = test::make_weight(random, out, in, dtype);
    const OnDevice<std::byte> packed = on_device(weight.packed);
    for (const std::int64_t rows : {1, 2, 7, 8, 16, 17, 33, 64, 65, 130}) {
      if (out * rows * in > 1'500'000 && rows != 17) continue;
      SCOPED_TRACE(::testing::Message() << "out " << out << ", rows " << rows);
      const std::int64_t x_stride = rows % 2 == 0 ? (in + 7) / 8 * 8 : in;
      const test::Operand x = test::make_operand(random.floats(rows * x_stride), dtype);
      const std::vector<float> bias = rows % 2 == 1 ? random.floats(out) : std::vector<float>();
      const cuda::Context gpu = test::like_gpu(test::gpu().compute_capability, rows == 8 ? 132 : 4);
      test::expect_close(
          run_linear(gpu, weight.type, packed, OnDevice<std::byte>(x.memory), rows, x_stride, bias),
          reference_of(x.values, x_stride, weight.plain, bias.empty() ? nullptr : bias.data(), rows,
                       in, out),
          test::tolerance(dtype, test::GemmInput::exact, DType::f32));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, CudaLinearShapesTest,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16),
                                            ::testing::Values(1, 2, 3, 63, 64, 65, 130, 1026)),
                         [](const auto& case_info) {
                           return test::name_of(std::get<0>(case_info.param)) + "_in" +
                                  std::to_string(std::get<1>(case_info.param));
                         });

class CudaLinearTest : public ::testing::TestWithParam<DType> {};

TEST_P(CudaLinearTest, ResultsAreTheSameBitsEveryTime) {
  constexpr std::int64_t in = 1024;
  constexpr std::int64_t out = 192;
  Random random(2);
  const test::PackedWeight weight = test::make_weight(random, out, in, GetParam());
  const OnDevice<std::byte> packed = on_device(weight.packed);
  for (const std::int64_t rows : {1, 20, 70}) {
    const test::Operand x = test::make_operand(random.floats(rows * in), GetParam());
    const OnDevice<std::byte> x_there(x.memory);
    const cuda::Context gpu = test::like_gpu(test::gpu().compute_capability, 132);
    const std::vector<float> first = run_linear(gpu, weight.type, packed, x_there, rows, in, {});
    for (int again = 0; again < 3; ++again) {
      EXPECT_EQ(run_linear(gpu, weight.type, packed, x_there, rows, in, {}), first);
    }
  }
}

TEST_P(CudaLinearTest, NoRowsIsNoWork) {
  Random random(1);
  const WeightType type = test::plain_type(3, 5, GetParam());
  const test::PackedWeight weight = test::make_weight(random, 5, 3, GetParam());
  EXPECT_TRUE(
      run_linear(test::gpu(), type, on_device(weight.packed), OnDevice<std::byte>(0U), 0, 0, {})
          .empty());
}

TEST_P(CudaLinearTest, FinishesInEveryWay) {
  constexpr std::int64_t in = 72;
  Random random(5);
  // Aligned columns and rows, where cuBLASLt may finish itself, and neither.
  for (const std::int64_t out : {128, 129}) {
    const WeightType type = test::plain_type(in, out, GetParam());
    const test::PackedWeight weight = test::make_weight(random, out, in, GetParam());
    const OnDevice<std::byte> packed = on_device(weight.packed);
    const std::vector<float> bias = random.floats(out + 1);
    const OnDevice<float> bias_there(bias);
    for (const std::int64_t rows : {3, 40, 67}) {
      const test::Operand x = test::make_operand(random.floats(rows * in, 2.0), GetParam());
      const OnDevice<std::byte> x_there(x.memory);
      for (const Epilogue epilogue : {Epilogue::store, Epilogue::relu, Epilogue::gelu,
                                      Epilogue::gelu_tanh, Epilogue::silu, Epilogue::accumulate}) {
        for (const std::int64_t bias_at : {-1, 0, 1}) {
          const DType stored_as = epilogue == Epilogue::accumulate ? DType::f32 : GetParam();
          const std::int64_t stride = out + (out % 8 == 0 ? 8 : 3);
          SCOPED_TRACE(::testing::Message() << "out " << out << ", rows " << rows << ", epilogue "
                                            << static_cast<int>(epilogue) << ", bias " << bias_at);
          std::vector<double> expected =
              reference_of(x.values, in, weight.plain,
                           bias_at < 0 ? nullptr : bias.data() + bias_at, rows, in, out);
          const test::Operand before =
              test::make_operand(random.floats(rows * stride, 3.0), stored_as);
          OnDevice<std::byte> dst(before.memory);
          test::run_linear_on(test::gpu(),
                              LinearCall{.weight = {type, packed.get()},
                                         .dtype = type.format.dtype(),
                                         .x = x_there.get(),
                                         .rows = rows,
                                         .bias = bias_at < 0 ? nullptr : bias_there.get() + bias_at,
                                         .epilogue = epilogue,
                                         .dst = dst.get(),
                                         .dst_dtype = stored_as,
                                         .dst_stride = stride});
          const std::vector<float> all =
              test::to_floats(dst.read().data(), rows * stride, stored_as);
          std::vector<float> result;
          for (std::int64_t i = 0; i < rows * stride; ++i) {
            const auto at = static_cast<std::size_t>(i);
            if (i % stride >= out) {
              ASSERT_EQ(all[at], before.values[at]) << "written beyond a row";
              continue;
            }
            double& value = expected[result.size()];
            value = epilogue == Epilogue::accumulate
                        ? value + static_cast<double>(before.values[at])
                        : test::activate(epilogue, value);
            result.push_back(all[at]);
          }
          test::expect_close(result, expected,
                             test::tolerance(GetParam(), test::GemmInput::exact, stored_as));
        }
      }
    }
  }
}

TEST_P(CudaLinearTest, GatedPairIsTheProductOfItsHalves) {
  Random random(9);
  // Shallow, and deep enough to be split among blocks.
  for (const auto& [in, out] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {130, 1}, {130, 65}, {130, 333}, {1026, 65}}) {
    const test::PackedWeight gate = test::make_weight(random, out, in, GetParam());
    const test::PackedWeight up = test::make_weight(random, out, in, GetParam());
    const OnDevice<std::byte> gate_there = on_device(gate.packed);
    const OnDevice<std::byte> up_there = on_device(up.packed);
    const std::vector<float> biases = random.floats(2 * out);
    const OnDevice<float> biases_there(biases);
    for (const std::int64_t rows : {1, 9, 64, 66}) {
      const bool biased = rows == 9 || rows == 66;
      SCOPED_TRACE(::testing::Message() << "in " << in << ", out " << out << ", rows " << rows);
      const test::Operand x = test::make_operand(random.floats(rows * in, 2.0), GetParam());
      const OnDevice<std::byte> x_there(x.memory);
      std::vector<double> expected =
          reference_of(x.values, in, up.plain, biased ? biases.data() : nullptr, rows, in, out);
      const std::vector<double> gates = reference_of(
          x.values, in, gate.plain, biased ? biases.data() + out : nullptr, rows, in, out);
      const Epilogue activation = out == 65 ? Epilogue::clamped_gate : Epilogue::silu;
      for (std::size_t i = 0; i < expected.size(); ++i)
        expected[i] = test::gated(activation, gates[i], expected[i]);
      OnDevice<std::byte> h(expected.size() * size_bytes(GetParam()));
      test::run_linear_on(
          test::like_gpu(test::gpu().compute_capability, rows == 9 ? 132 : 4),
          GatedLinearCall{.gate = {test::plain_type(in, out, GetParam()), gate_there.get()},
                          .up = {test::plain_type(in, out, GetParam()), up_there.get()},
                          .dtype = GetParam(),
                          .x = x_there.get(),
                          .rows = rows,
                          .gate_bias = biased ? biases_there.get() + out : nullptr,
                          .up_bias = biased ? biases_there.get() : nullptr,
                          .activation = activation,
                          .limit = test::gated_limit,
                          .dst = h.get()});
      test::expect_close(test::to_floats(h.read().data(), rows * out, GetParam()), expected,
                         test::tolerance(GetParam(), test::GemmInput::exact, GetParam()));
    }
  }
}

TEST_P(CudaLinearTest, OldGenerationsComputeInHalfPrecision) {
  Random random(7);
  const cuda::Context gpu = test::like_gpu(75, 4);
  for (const auto& [in, out] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{63, 65}, {130, 200}, {256, 64}}) {
    const test::PackedWeight weight = test::make_weight(random, out, in, GetParam());
    const OnDevice<std::byte> packed = on_device(weight.packed);
    for (const std::int64_t rows : {1, 66}) {
      const test::Operand x = test::make_operand(random.floats(rows * in), GetParam());
      test::expect_close(
          run_linear(gpu, weight.type, packed, OnDevice<std::byte>(x.memory), rows, in, {}),
          reference_of(x.values, in, weight.plain, nullptr, rows, in, out),
          test::tolerance(GetParam(), test::GemmInput::exact, DType::f32));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, CudaLinearTest, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& case_info) { return test::name_of(case_info.param); });

TEST(CudaLinearPiecesTest, LargeWeightIsUnpackedPieceByPiece) {
  constexpr std::int64_t in = 2048;
  constexpr std::int64_t out = 8191;  // two pieces of 32 MiB
  constexpr std::int64_t rows = 2;
  Random random(4);
  const test::PackedWeight weight = test::make_weight(random, out, in, DType::f32);
  const test::Operand x = test::make_operand(random.floats(rows * in), DType::f32);
  const std::vector<float> y =
      run_linear(test::gpu(), test::plain_type(in, out, DType::f32), on_device(weight.packed),
                 OnDevice<std::byte>(x.memory), rows, in, {});
  std::vector<float> result;
  std::vector<double> expected;
  for (std::int64_t column = 0; column < out; column += column < 4080 || column >= 4110 ? 37 : 1) {
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::vector<double> row(x.values.begin() + r * in, x.values.begin() + (r + 1) * in);
      linear_reference(row.data(), weight.plain.values.data() + column * in, nullptr, in, 1,
                       &expected.emplace_back());
      result.push_back(y[static_cast<std::size_t>(r * out + column)]);
    }
  }
  test::expect_close(result, expected,
                     test::tolerance(DType::f32, test::GemmInput::exact, DType::f32));
}

TEST(LinearScratchTest, IsNeverMoreThanIsPlannedFor) {
  for (const auto& [in, out] : {std::pair<std::int64_t, std::int64_t>{64, 3},
                                {129, 1000},
                                {2048, 8192},
                                {8192, 2048},
                                {1024, 50272},
                                {57344, 7168}}) {
    for (const DType dtype : {DType::bf16, DType::f32}) {
      const WeightType type = test::plain_type(in, out, dtype);
      for (const std::int64_t rows : {1, 3, 17, 64, 65, 500, 2048, 300000}) {
        for (const int capability : {75, 80, 90}) {
          for (const int multiprocessors : {1, 40, 132}) {
            const cuda::Context gpu = test::like_gpu(capability, multiprocessors);
            const auto most = [&, in = in, out = out](std::int64_t matrices) {
              return cuda::most_linear_scratch_bytes(rows, in, out, matrices,
                                                     static_cast<std::int64_t>(size_bytes(dtype)),
                                                     multiprocessors);
            };
            const LinearCall one = {
                .weight = {type, nullptr}, .dtype = dtype, .rows = rows, .x_stride = in + 1};
            EXPECT_LE(cuda::linear_scratch_bytes(gpu, one), most(1)) << rows << " of " << in;
            const GatedLinearCall pair = {.gate = {type, nullptr},
                                          .up = {type, nullptr},
                                          .dtype = dtype,
                                          .rows = rows,
                                          .x_stride = in + 1};
            EXPECT_LE(cuda::linear_scratch_bytes(gpu, pair), most(2)) << rows << " of " << in;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice
