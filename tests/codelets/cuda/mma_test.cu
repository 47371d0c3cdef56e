// The warp's matrix product against a plain one.
#include <gtest/gtest.h>

#include <vector>

#include "codelets/cuda/mma.h"
#include "tests/codelets/codelet_data.h"
#include "tests/codelets/cuda/device_data.h"

namespace sluice::cuda {
namespace {

constexpr int rows = 16;
constexpr int columns = 8;
constexpr int depth = 16;

/// A warp w of the block: d[w] += a[w] b[w]^T; a [16, 16], b [8, 16], d [16, 8] each.
template <DType dtype>
__global__ void multiply(const std::uint32_t* a, const std::uint32_t* b, float* d) {
  const unsigned warp = threadIdx.y;
  const unsigned group = threadIdx.x / 4;
  const unsigned place = threadIdx.x % 4;
  a += warp * rows * depth / 2;
  b += warp * columns * depth / 2;
  d += warp * rows * columns;
  const MmaA in_a = {{a[group * 8 + place], a[(group + 8) * 8 + place], a[group * 8 + place + 4],
                      a[(group + 8) * 8 + place + 4]}};
  const MmaB in_b = {{b[group * 8 + place], b[group * 8 + place + 4]}};
  MmaD sum;
  for (unsigned v = 0; v < 4; ++v) {
    sum.value[v] = d[(group + v / 2 * 8) * columns + 2 * place + v % 2];
  }
  mma_16x8x16<dtype>(sum, in_a, in_b);
  for (unsigned v = 0; v < 4; ++v) {
    d[(group + v / 2 * 8) * columns + 2 * place + v % 2] = sum.value[v];
  }
}

class CudaMmaTest : public ::testing::TestWithParam<DType> {};

TEST_P(CudaMmaTest, EveryWarpMultipliesItsOwnMatrices) {
  if (test::gpu().compute_capability < 80) GTEST_SKIP() << "mma.m16n8k16 needs sm_80";
  constexpr int warps = 3;
  test::Random random(11);
  const test::Operand a = test::make_operand(random.floats(warps * rows * depth), GetParam());
  const test::Operand b = test::make_operand(random.floats(warps * columns * depth), GetParam());
  const std::vector<float> before = random.floats(warps * rows * columns);
  std::vector<double> expected(before.begin(), before.end());
  for (int i = 0; i < warps * rows * columns; ++i) {
    const int row = i / columns;  // of all warps' A
    const int column = i / (rows * columns) * columns + i % columns;
    for (int k = 0; k < depth; ++k) {
      expected[static_cast<std::size_t>(i)] +=
          static_cast<double>(a.values[static_cast<std::size_t>(row * depth + k)]) *
          static_cast<double>(b.values[static_cast<std::size_t>(column * depth + k)]);
    }
  }
  const test::OnDevice<std::byte> a_there(a.memory);
  const test::OnDevice<std::byte> b_there(b.memory);
  test::OnDevice<float> d_there(before);
  launch("multiply", GetParam() == DType::bf16 ? multiply<DType::bf16> : multiply<DType::f16>,
         {.blocks = dim3(1), .threads = dim3(32, warps)}, test::gpu().stream,
         reinterpret_cast<const std::uint32_t*>(a_there.get()),
         reinterpret_cast<const std::uint32_t*>(b_there.get()), d_there.get());
  test::expect_close(d_there.read(), expected, {.of_largest = 1e-6});
}

INSTANTIATE_TEST_SUITE_P(DTypes, CudaMmaTest, ::testing::Values(DType::bf16, DType::f16),
                         [](const auto& case_info) { return test::name_of(case_info.param); });

}  // namespace
}  // namespace sluice::cuda
