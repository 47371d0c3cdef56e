// linear() and gated_linear() of codelets/cuda over codes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "codelets/cuda/linear_limits.h"
#include "tests/codelets/coded_weight.h"
#include "tests/codelets/codelet_data.h"
#include "tests/codelets/cuda/device_data.h"
#include "tests/codelets/cuda/linear_data.h"

namespace sluice {
namespace {

using test::CodedWeight;
using test::OnDevice;
using test::Random;

/// "int4-g32", or with other scales "int4-g32 bf16".
WeightFormat format_of(std::string_view name) {
  const std::size_t space = name.find(' ');
  WeightFormat format = parse_weight_format(name.substr(0, space));
  if (space == std::string_view::npos) return format;
  for (const auto scales : {WeightFormat::Scales::bf16, WeightFormat::Scales::f32}) {
    if (name.substr(space + 1) == to_string(scales)) format.scales = scales;
  }
  return format;
}

std::string test_name(std::string text) {
  for (char& c : text) c = c == '-' || c == ' ' ? '_' : c;
  return text;
}

/// A weight and rows of x on the device, and what they make in double precision.
struct Product {
  CodedWeight weight;
  test::Operand x;
  OnDevice<std::byte> packed;
  OnDevice<std::byte> x_there;

  Product(Random& random, const WeightFormat& format, DType dtype, std::int64_t rows,
          std::int64_t in, std::int64_t out)
      : weight(random, format, in, out),
        x(test::make_operand(random.floats(rows * in), dtype)),
        packed(test::memory_of(weight.packed)),
        x_there(x.memory) {}

  std::int64_t in() const { return weight.type.in; }
  std::int64_t out() const { return weight.type.out; }
  /// y [rows, out] of the first rows of x, or of `rows` from one of them on.
  std::vector<float> run(const cuda::Context& gpu, std::int64_t rows,
                         std::int64_t first_row = 0) const {
    OnDevice<float> y(static_cast<std::size_t>(rows * out()));
    test::run_linear_on(
        gpu, LinearCall{.weight = {weight.type, packed.get()},
                        .dtype = x.dtype,
                        .x = x_there.get() +
                             first_row * in() * static_cast<std::int64_t>(size_bytes(x.dtype)),
                        .rows = rows,
                        .dst = y.get()});
    return y.read();
  }
  std::vector<double> expected(std::int64_t rows) const {
    return test::linear_reference_of(x.values, in(), weight.values, nullptr, rows, in(), out());
  }
  /// The same of absolute values: what errors of sums are relative to.
  std::vector<double> magnitudes(std::int64_t rows) const {
    return test::linear_reference_of(absolute(x.values), in(), absolute(weight.values), nullptr,
                                     rows, in(), out());
  }

 private:
  static std::vector<float> absolute(std::vector<float> values) {
    for (float& value : values) value = std::abs(value);
    return values;
  }
};

/// What sums in f32 may be off, relative to the sum of absolute values: 2^-23 for each addition
/// that a term may go through. That is 16 of an mma, one for each fourth step of 32 inputs, and
/// some to put warps and parts together.
double most_error(std::int64_t in) { return (28 + static_cast<double>(in) / 128) * 0x1p-23; }

void expect_sums_of_exact_values(const Product& product, std::int64_t rows) {
  const std::vector<float> y = product.run(test::gpu(), rows);
  const std::vector<double> expected = product.expected(rows);
  const std::vector<double> magnitudes = product.magnitudes(rows);
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(y[i]) - expected[i]) / magnitudes[i]);
    ASSERT_FALSE(std::isnan(y[i]));
  }
  EXPECT_LE(worst, most_error(product.in()));
}

class CudaQuantizedLinearTest : public ::testing::TestWithParam<std::tuple<const char*, DType>> {};

TEST_P(CudaQuantizedLinearTest, MatchesTheValuesOfTheCodes) {
  const auto& [name, dtype] = GetParam();
  Random random(3);
  // Depths of whole groups, of a part of one and of a part of a step; strips of fewer columns.
  for (const auto& [in, out] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {256, 64}, {200, 200}, {96, 5}, {4128, 65}}) {
    const Product product(random, format_of(name), dtype, 65, in, out);
    for (const std::int64_t rows : {1, 3, 16, 17, 33, 64, 65}) {
      if (in > 4096 && rows != 1 && rows != 17) continue;
      SCOPED_TRACE(::testing::Message() << "in " << in << ", out " << out << ", rows " << rows);
      if (dtype == DType::bf16 && rows <= cuda::most_strip_rows) {
        expect_sums_of_exact_values(product, rows);
        continue;
      }
      // Unpacked. In bf16 the values are rounded once more, as an input is.
      test::expect_close(product.run(test::gpu(), rows), product.expected(rows),
                         test::tolerance(dtype, test::GemmInput::rounded, DType::f32));
    }
  }
}

TEST_P(CudaQuantizedLinearTest, OldGenerationsUnpack) {
  const auto& [name, dtype] = GetParam();
  Random random(4);
  const Product product(random, format_of(name), dtype, 3, 200, 65);
  test::expect_close(product.run(test::like_gpu(75, 4), 3), product.expected(3),
                     test::tolerance(dtype, test::GemmInput::rounded, DType::f32));
}

constexpr const char* formats[] = {"int4-g32", "int4-g128z", "int4-g64 bf16", "int4-g0z f32",
                                   "int8-g64", "int8-g0z",   "int8-g32z f32", "int8-g128 f32",
                                   "mxfp4",    "fp8-row",    "fp8-b128",      "fp8-row bf16"};

INSTANTIATE_TEST_SUITE_P(Formats, CudaQuantizedLinearTest,
                         ::testing::Combine(::testing::ValuesIn(formats),
                                            ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& of) {
                           return test_name(std::string(std::get<0>(of.param)) + "_" +
                                            std::string(to_string(std::get<1>(of.param))));
                         });

/// Codes that are multiplied as they are packed.
class CudaQuantizedLinearStripsTest : public ::testing::TestWithParam<const char*> {
 public:
  WeightFormat format() const { return format_of(GetParam()); }
};

TEST_P(CudaQuantizedLinearStripsTest, OneInputGivesTheValueOfItsCode) {
  constexpr std::int64_t in = 224;
  constexpr std::int64_t out = 130;
  Random random(5);
  const CodedWeight weight(random, format(), in, out);
  const OnDevice<std::byte> packed(test::memory_of(weight.packed));
  for (std::int64_t first = 0; first < in; first += cuda::most_strip_rows) {
    const std::int64_t rows = std::min(cuda::most_strip_rows, in - first);
    std::vector<float> ones(static_cast<std::size_t>(rows * in));
    for (std::int64_t r = 0; r < rows; ++r) ones[static_cast<std::size_t>(r * in + first + r)] = 1;
    const OnDevice<std::byte> x(test::make_operand(ones, DType::bf16).memory);
    OnDevice<float> y(static_cast<std::size_t>(rows * out));
    test::run_linear_on(test::gpu(), LinearCall{.weight = {weight.type, packed.get()},
                                                .dtype = DType::bf16,
                                                .x = x.get(),
                                                .rows = rows,
                                                .dst = y.get()});
    const std::vector<float> values = y.read();
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t column = 0; column < out; ++column) {
        ASSERT_EQ(values[static_cast<std::size_t>(r * out + column)],
                  weight.values[static_cast<std::size_t>(column * in + first + r)])
            << "input " << first + r << ", column " << column;
      }
    }
  }
}

TEST_P(CudaQuantizedLinearStripsTest, TheBoundTellsExactValuesFromRoundedOnes) {
  if (format().codes == WeightFormat::Codes::fp4) GTEST_SKIP() << "its values are exact in bf16";
  constexpr std::int64_t rows = 4;
  Random random(6);
  const Product product(random, format(), DType::bf16, rows, 256, 64);
  std::vector<float> rounded = product.weight.values;
  for (float& value : rounded) value = to_float(to_bf16(value));
  const std::vector<double> of_rounded = test::linear_reference_of(
      product.x.values, product.in(), rounded, nullptr, rows, product.in(), product.out());
  const std::vector<double> expected = product.expected(rows);
  const std::vector<double> magnitudes = product.magnitudes(rows);
  std::size_t told = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const double error = std::abs(of_rounded[i] - expected[i]) / magnitudes[i];
    if (error > most_error(product.in())) ++told;
  }
  EXPECT_GT(told, expected.size() * 3 / 4);
}

TEST_P(CudaQuantizedLinearStripsTest, RowHasTheSameBitsInEveryBatch) {
  constexpr std::int64_t in = 1048;  // of 33 steps, which few blocks share
  constexpr std::int64_t out = 200;
  Random random(7);
  const Product product(random, format(), DType::bf16, 64, in, out);
  for (const int multiprocessors : {1, 3, 132}) {
    SCOPED_TRACE(::testing::Message() << multiprocessors << " multiprocessors");
    const cuda::Context gpu = test::like_gpu(test::gpu().compute_capability, multiprocessors);
    const std::vector<float> all = product.run(gpu, 64);
    for (const std::int64_t rows : {1, 2, 5, 16, 17, 33}) {
      for (const std::int64_t first : {std::int64_t{0}, 64 - rows}) {
        const std::vector<float> some = product.run(gpu, rows, first);
        EXPECT_EQ(std::memcmp(some.data(), all.data() + first * out, some.size() * sizeof(float)),
                  0)
            << rows << " rows from " << first << " on";
      }
    }
  }
}

TEST_P(CudaQuantizedLinearStripsTest, FinishesInEveryWay) {
  constexpr std::int64_t in = 200;
  Random random(8);
  for (const std::int64_t out : {128, 129}) {
    const Product product(random, format(), DType::bf16, 20, in, out);
    const std::vector<float> bias = random.floats(out);
    const OnDevice<float> bias_there(bias);
    for (const std::int64_t rows : {3, 20}) {
      for (const Epilogue epilogue : {Epilogue::store, Epilogue::relu, Epilogue::gelu,
                                      Epilogue::gelu_tanh, Epilogue::silu, Epilogue::accumulate}) {
        const bool accumulates = epilogue == Epilogue::accumulate;
        const DType stored_as = accumulates || rows == 3 ? DType::f32 : DType::bf16;
        const std::int64_t stride = out + 8;
        SCOPED_TRACE(::testing::Message() << "out " << out << ", rows " << rows << ", epilogue "
                                          << static_cast<int>(epilogue));
        const test::Operand before = test::make_operand(random.floats(rows * stride), stored_as);
        OnDevice<std::byte> dst(before.memory);
        test::run_linear_on(test::like_gpu(test::gpu().compute_capability, 132),
                            LinearCall{.weight = {product.weight.type, product.packed.get()},
                                       .dtype = DType::bf16,
                                       .x = product.x_there.get(),
                                       .rows = rows,
                                       .bias = bias_there.get(),
                                       .epilogue = epilogue,
                                       .dst = dst.get(),
                                       .dst_dtype = stored_as,
                                       .dst_stride = stride});
        const std::vector<float> all = test::to_floats(dst.read().data(), rows * stride, stored_as);
        std::vector<double> expected = product.expected(rows);
        std::vector<float> result;
        for (std::int64_t i = 0; i < rows * stride; ++i) {
          const auto at = static_cast<std::size_t>(i);
          const auto column = static_cast<std::size_t>(i % stride);
          if (i % stride >= out) {
            ASSERT_EQ(all[at], before.values[at]) << "written beyond a row";
            continue;
          }
          double& value = expected[result.size()];
          value += static_cast<double>(bias[column]);
          value = accumulates ? value + static_cast<double>(before.values[at])
                              : test::activate(epilogue, value);
          result.push_back(all[at]);
        }
        test::expect_close(result, expected,
                           test::tolerance(DType::bf16, test::GemmInput::exact, stored_as));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, CudaQuantizedLinearStripsTest, ::testing::ValuesIn(formats),
                         [](const auto& of) { return test_name(of.param); });

/// Formats of up and gate.
class CudaQuantizedLinearPairTest
    : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(CudaQuantizedLinearPairTest, IsTheProductOfItsHalves) {
  const auto& [up_name, gate_name] = GetParam();
  Random random(9);
  for (const auto& [in, out] :
       std::vector<std::pair<std::int64_t, std::int64_t>>{{200, 1}, {96, 130}, {1056, 65}}) {
    const CodedWeight up(random, format_of(up_name), in, out);
    const CodedWeight gate(random, format_of(gate_name), in, out);
    const OnDevice<std::byte> up_there(test::memory_of(up.packed));
    const OnDevice<std::byte> gate_there(test::memory_of(gate.packed));
    const std::vector<float> biases = random.floats(2 * out);
    const OnDevice<float> biases_there(biases);
    for (const std::int64_t rows : {1, 17, 64, 65}) {
      if (in > 1000 && rows > 17) continue;
      SCOPED_TRACE(::testing::Message() << "in " << in << ", out " << out << ", rows " << rows);
      const bool biased = rows == 17;
      const Epilogue activation = rows >= 64 ? Epilogue::clamped_gate : Epilogue::silu;
      const test::Operand x = test::make_operand(random.floats(rows * in, 0.1), DType::bf16);
      const OnDevice<std::byte> x_there(x.memory);
      OnDevice<std::byte> h(static_cast<std::size_t>(rows * out) * size_bytes(DType::bf16));
      test::run_linear_on(test::like_gpu(test::gpu().compute_capability, 132),
                          GatedLinearCall{.gate = {gate.type, gate_there.get()},
                                          .up = {up.type, up_there.get()},
                                          .dtype = DType::bf16,
                                          .x = x_there.get(),
                                          .rows = rows,
                                          .gate_bias = biased ? biases_there.get() + out : nullptr,
                                          .up_bias = biased ? biases_there.get() : nullptr,
                                          .activation = activation,
                                          .limit = test::gated_limit,
                                          .dst = h.get()});
      // Straight from codes the values are exact; else they are rounded, as the reference's are.
      const bool straight = format_of(up_name) == format_of(gate_name) && rows <= 64;
      const auto read = [&](const std::vector<float>& values) {
        return straight ? values : test::make_operand(values, DType::bf16).values;
      };
      std::vector<double> expected = test::linear_reference_of(
          x.values, in, read(up.values), biased ? biases.data() : nullptr, rows, in, out);
      const std::vector<double> gates = test::linear_reference_of(
          x.values, in, read(gate.values), biased ? biases.data() + out : nullptr, rows, in, out);
      for (std::size_t i = 0; i < expected.size(); ++i)
        expected[i] = test::gated(activation, gates[i], expected[i]);
      test::expect_close(test::to_floats(h.read().data(), rows * out, DType::bf16), expected,
                         test::tolerance(DType::bf16, test::GemmInput::exact, DType::bf16));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, CudaQuantizedLinearPairTest,
    ::testing::Values(std::tuple{"int4-g32", "int4-g32"}, std::tuple{"int4-g128z", "int4-g128z"},
                      std::tuple{"int8-g64", "int8-g64"}, std::tuple{"mxfp4", "mxfp4"},
                      std::tuple{"fp8-b128", "fp8-b128"}, std::tuple{"int4-g32", "int8-g64"}),
    [](const auto& of) {
      return test_name(std::string(std::get<0>(of.param)) + "_by_" + std::get<1>(of.param));
    });

TEST(CudaQuantizedLinearFp8Test, NanOfACodeIsNanInItsColumnOnly) {
  constexpr std::int64_t in = 96;
  constexpr std::int64_t out = 70;
  Random random(10);
  const WeightType type{in, out, parse_weight_format("fp8-row")};
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(in * out), 0x38);  // 1
  const std::vector<std::uint32_t> scales(out, std::bit_cast<std::uint32_t>(1.0F));
  codes[5 * in + 37] = 0x7f;
  codes[69 * in + 2] = 0xff;
  Buffer packed(WeightPacking::size_bytes(type));
  for (std::int64_t strip = 0; strip < 2; ++strip) {
    pack_quantized_strip(type, strip,
                         {.codes = codes.data() + strip * 64 * in, .scales = scales.data()},
                         packed.data());
  }
  const OnDevice<std::byte> packed_there(test::memory_of(packed));
  constexpr std::int64_t rows = 18;
  const OnDevice<std::byte> x(test::make_operand(random.floats(rows * in), DType::bf16).memory);
  OnDevice<float> y(static_cast<std::size_t>(rows * out));
  test::run_linear_on(test::gpu(), LinearCall{.weight = {type, packed_there.get()},
                                              .dtype = DType::bf16,
                                              .x = x.get(),
                                              .rows = rows,
                                              .dst = y.get()});
  const std::vector<float> values = y.read();
  for (std::int64_t i = 0; i < rows * out; ++i) {
    const bool is_nan = i % out == 5 || i % out == 69;
    EXPECT_EQ(std::isnan(values[static_cast<std::size_t>(i)]), is_nan) << "column " << i % out;
  }
}

TEST(QuantizedLinearScratchTest, IsNeverMoreThanIsPlannedFor) {
  for (const char* name : {"int4-g32", "int8-g64z", "mxfp4", "fp8-b128"}) {
    for (const auto& [in, out] :
         {std::pair<std::int64_t, std::int64_t>{64, 3}, {129, 1000}, {8192, 2048}, {1024, 50272}}) {
      const WeightType type{in, out, format_of(name)};
      for (const std::int64_t rows : {1, 17, 64, 65, 2048}) {
        for (const int capability : {75, 90}) {
          for (const int multiprocessors : {1, 40, 132}) {
            const cuda::Context gpu = test::like_gpu(capability, multiprocessors);
            const auto most = [&, in = in, out = out](std::int64_t matrices) {
              return static_cast<std::size_t>(cuda::most_linear_scratch_bytes(
                  rows, in, out, matrices, size_bytes(DType::bf16), multiprocessors));
            };
            const LinearCall one = {.weight = {type, nullptr}, .dtype = DType::bf16, .rows = rows};
            EXPECT_LE(cuda::linear_scratch_bytes(gpu, one), most(1)) << rows << " of " << in;
            const GatedLinearCall pair = {
                .gate = {type, nullptr}, .up = {type, nullptr}, .dtype = DType::bf16, .rows = rows};
            EXPECT_LE(cuda::linear_scratch_bytes(gpu, pair), most(2)) << rows << " of " << in;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice
