#include "codelets/cuda/norm.h"

#include <gtest/gtest.h>

#include <tuple>

#include "tests/codelets/codelet_data.h"
#include "tests/codelets/cuda/device_data.h"

namespace sluice {
namespace {

using test::OnDevice;

class CudaNormTest : public ::testing::TestWithParam<std::tuple<NormKind, std::int64_t>> {
 protected:
  CudaNormTest() {
    std::tie(shape_.norm, shape_.hidden_size) = GetParam();
    for (float& value : x_ = random_.floats(num_rows * width(), 3.0)) value += 1;  // not about 0
    weight_ = random_.floats(width());
    if (shape_.norm == NormKind::layer_norm) bias_ = random_.floats(width());
  }

  std::int64_t width() const { return shape_.hidden_size; }

  std::vector<double> reference() const {
    const NormVectors norm{weight_.data(), bias_.empty() ? nullptr : bias_.data()};
    std::vector<double> values(x_.begin(), x_.end());
    for (std::int64_t row = 0; row < num_rows; ++row) {
      double* at = values.data() + row * width();
      norm_reference(shape_, norm, at, width(), at);
    }
    return values;
  }

  /// Rows of `dtype`, without what is between them.
  std::vector<float> block_input(DType dtype) {
    shape_.dtype = dtype;
    shape_.norm_place = NormPlace::pre;
    const OnDevice<float> x(x_);
    const OnDevice<float> weight(weight_);
    const OnDevice<float> bias(bias_);
    const std::int64_t stride = activation_stride(width(), dtype);
    OnDevice<std::byte> out(static_cast<std::size_t>(num_rows * stride) * size_bytes(dtype));
    cuda::block_input(test::gpu(), shape_, {weight.get(), bias.get()}, x.get(), num_rows,
                      out.get());
    const std::vector<std::byte> memory = out.read();
    const std::vector<float> all = test::to_floats(memory.data(), num_rows * stride, dtype);
    std::vector<float> rows;
    for (std::int64_t row = 0; row < num_rows; ++row)
      rows.insert(rows.end(), all.begin() + row * stride, all.begin() + row * stride + width());
    return rows;
  }

  static constexpr std::int64_t num_rows = 3;
  test::Random random_{5};
  DecoderShape shape_;
  std::vector<float> x_, weight_, bias_;
};

TEST_P(CudaNormTest, MatchesTheReference) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    SCOPED_TRACE(to_string(dtype));
    test::expect_close(block_input(dtype), reference(),
                       test::tolerance(DType::f32, test::GemmInput::exact, dtype));
  }
}

TEST_P(CudaNormTest, MatchesTheReferenceInPlace) {
  shape_.norm_place = NormPlace::post;
  OnDevice<float> x(x_);
  const OnDevice<float> weight(weight_);
  const OnDevice<float> bias(bias_);
  cuda::block_output(test::gpu(), shape_, {weight.get(), bias.get()}, x.get(), num_rows);
  test::expect_close(x.read(), reference(),
                     test::tolerance(DType::f32, test::GemmInput::exact, DType::f32));
}

// A thread has 4, 8, 16 or 32 elements in registers, all or some threads the last of them; what is
// wider, or no multiple of four, has a kernel of its own.
INSTANTIATE_TEST_SUITE_P(
    Widths, CudaNormTest,
    ::testing::Combine(::testing::Values(NormKind::layer_norm, NormKind::rms_norm),
                       ::testing::Values(4, 100, 2048, 2052, 4096, 7168, 8196, 12288, 16384, 16388,
                                         6, 4095)),
    [](const auto& values) {
      return (std::get<0>(values.param) == NormKind::layer_norm ? "layer_norm_" : "rms_norm_") +
             std::to_string(std::get<1>(values.param));
    });

}  // namespace
}  // namespace sluice
