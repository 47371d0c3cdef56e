// linear() and gated_linear() of codelets/cuda over codes.
#include <gtest/gtest.h>

#include <algorithm>

#include "codelets/cuda/linear.h"
#include "codelets/kernels/linear_ref.h"
#include "codelets/weights/quantized.h"
#include "tests/codelets/codelet_data.h"
#include "tests/codelets/cuda/device_data.h"

namespace sluice {
namespace {

using test::OnDevice;
using test::Random;

/// Random codes, and the values that they stand for.
struct CodedWeight {
  WeightType type;
  std::vector<float> values;  ///< [out, in]
  Buffer packed;

  CodedWeight(Random& random, const WeightFormat& format, std::int64_t in, std::int64_t out)
      : type{in, out, format},
        values(static_cast<std::size_t>(in * out)),
        packed(WeightPacking::size_bytes(type)) {
    const std::int64_t groups = format.num_groups(in);
    constexpr std::int64_t strip_rows = 64;
    for (std::int64_t first = 0; first < out; first += strip_rows) {
      const std::int64_t rows = std::min(strip_rows, out - first);
      const auto draw = [&](std::int64_t count, std::int64_t below) {
        std::vector<std::uint8_t> drawn(static_cast<std::size_t>(count));
        for (std::uint8_t& value : drawn) value = static_cast<std::uint8_t>(random.below(below));
        return drawn;
      };
      const std::int64_t most = format.bits_per_code() == 4 ? 16 : 256;
      std::vector<std::uint8_t> codes = draw(rows * in, most);
      if (format.codes == WeightFormat::Codes::fp8)
        for (std::uint8_t& code : codes) code &= 0x77U;  // finite
      const std::vector<std::uint8_t> zero_points = draw(rows * groups, most);
      std::vector<std::uint32_t> scales(static_cast<std::size_t>(rows * groups));
      for (std::uint32_t& scale : scales) {
        const auto exponent = static_cast<std::uint32_t>(random.below(4));
        switch (format.scales) {
          case WeightFormat::Scales::f16:
            scale = (8 + exponent) << 10 | 0x155U;
            break;
          case WeightFormat::Scales::e8m0:
            scale = 118 + exponent;
            break;
          default:
            scale = (118 + exponent) << 23 | 0x12345U;
        }
      }
      const quantized::CodedRows coded = {
          .codes = codes.data(),
          .scales = scales.data(),
          .zero_points = format.has_zero_points ? zero_points.data() : nullptr};
      pack_quantized_strip(type, first / strip_rows, coded, packed.data());
      for (std::int64_t i = 0; i < rows * in; ++i) {
        const std::int64_t group =
            i / in * groups + (format.group == 0 ? 0 : i % in / format.group);
        const auto at = static_cast<std::size_t>(group);
        const float scale = scale_to_float(format.scales, scales[at]);
        const std::int32_t zero =
            format.has_zero_points ? zero_points[at] : default_zero_point(format.codes);
        values[static_cast<std::size_t>(first * in + i)] =
            quantized::dequantize(format, codes[static_cast<std::size_t>(i)], zero, scale);
      }
    }
  }
};

class CudaQuantizedLinearTest : public ::testing::TestWithParam<std::tuple<const char*, DType>> {};

TEST_P(CudaQuantizedLinearTest, MatchesTheValuesOfTheCodes) {
  const auto& [name, dtype] = GetParam();
  const WeightFormat format = parse_weight_format(name);
  Random random(3);
  constexpr std::int64_t in = 256;
  for (const std::int64_t out : {5, 64, 200}) {
    const CodedWeight weight(random, format, in, out);
    for (const std::int64_t rows : {1, 17, 65}) {
      SCOPED_TRACE(::testing::Message() << "out " << out << ", rows " << rows);
      const test::Operand x = test::make_operand(random.floats(rows * in), dtype);
      std::vector<double> expected(static_cast<std::size_t>(rows * out));
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::vector<double> row(x.values.begin() + r * in, x.values.begin() + (r + 1) * in);
        linear_reference(row.data(), weight.values.data(), nullptr, in, out,
                         expected.data() + r * out);
      }
      const cuda::Context& gpu = test::gpu();
      const OnDevice<std::byte> packed(test::memory_of(weight.packed));
      const OnDevice<std::byte> x_there(x.memory);
      OnDevice<float> y(static_cast<std::size_t>(rows * out));
      const LinearCall call = {.weight = {weight.type, packed.get()},
                               .dtype = dtype,
                               .x = x_there.get(),
                               .rows = rows,
                               .dst = y.get()};
      cuda::linear(gpu, call, gpu.workspace.reserve(cuda::linear_scratch_bytes(gpu, call)));
      // In bf16 the values are rounded once more, as an input is.
      test::expect_close(y.read(), expected,
                         test::tolerance(dtype, test::GemmInput::rounded, DType::f32));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, CudaQuantizedLinearTest,
                         ::testing::Combine(::testing::Values("int4-g32", "int4-g128z", "int8-g64",
                                                              "int8-g0z", "mxfp4", "fp8-row",
                                                              "fp8-b128"),
                                            ::testing::Values(DType::f32, DType::bf16)),
                         [](const auto& of) {
                           std::string name = std::string(std::get<0>(of.param)) + "_" +
                                              std::string(to_string(std::get<1>(of.param)));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace sluice
