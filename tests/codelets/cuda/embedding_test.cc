#include <gtest/gtest.h>

#include "tests/codelets/cuda/device_data.h"
#include "tests/codelets/embedding_fixture.h"

namespace sluice {
namespace {

using test::OnDevice;

class CudaEmbeddingTest : public test::EmbeddingFixture {
 protected:
  /// Leaves x_ and rope_ as the codelet left them. The table starts `offset` bytes behind an
  /// aligned address.
  void run(std::size_t offset = 0) {
    const OnDevice<std::int32_t> batch(batch_.words);
    const OnDevice<std::int32_t> slot_tokens(slot_tokens_);
    std::vector<std::byte> shifted(offset);
    shifted.insert(shifted.end(), table_.memory.begin(), table_.memory.end());
    const OnDevice<std::byte> table(shifted);
    const OnDevice<std::byte> positions(positions_.memory);
    const OnDevice<std::byte> project_in(test::memory_of(project_in_.packed));
    const OnDevice<float> frequencies(frequencies_);
    OnDevice<float> x(x_.size());
    OnDevice<float> rope(rope_.size());
    embedding_cuda(test::gpu(),
                   {.args = &args_,
                    .batch = BatchView(batch.get()),
                    .slot_tokens = slot_tokens.get(),
                    .table = table.get() + offset,
                    .positions = args_.learned_positions ? positions.get() : nullptr,
                    .project_in = {args_.projection, args_.project_in ? project_in.get() : nullptr},
                    .frequencies = args_.shape.rope ? frequencies.get() : nullptr,
                    .x = x.get(),
                    .rope = args_.shape.rope ? rope.get() : nullptr});
    x_ = x.read();
    rope_ = rope.read();
  }

  BatchRow& row(std::size_t r) { return const_cast<BatchRow&>(batch_.view().rows()[r]); }
};

TEST_P(CudaEmbeddingTest, MatchesReference) {
  std::vector<double> x(x_.size());
  std::vector<double> rope(rope_.size());
  embedding_reference(operands(), args_.project_in ? project_in_.plain.values.data() : nullptr,
                      x.data(), rope.data());
  for (const std::size_t offset : {std::size_t{0}, std::size_t{1}, std::size_t{6}}) {
    run(offset);
    if (args_.project_in) {
      const bool exact = args_.table_dtype == args_.shape.dtype || args_.shape.dtype == DType::f32;
      test::expect_close(
          x_, x,
          test::tolerance(args_.shape.dtype,
                          exact ? test::GemmInput::exact : test::GemmInput::rounded, DType::f32));
    } else {
      test::expect_close(x_, x, {.of_largest = 1e-7});  // one addition
    }
    // As on the CPU: the angle is rounded once, half a last place of at most 113.
    if (args_.shape.rope) test::expect_close(rope_, rope, {.of_largest = 0x1p-18 + 1e-7});
    EXPECT_EQ(test::take_device_failure().code, cuda::DeviceFailure::none);
  }
}

TEST_P(CudaEmbeddingTest, ReportsATokenOutsideOfTheVocabulary) {
  row(20).token = vocab_size;
  run();
  const cuda::DeviceFailure above = test::take_device_failure();
  EXPECT_EQ(above.code, cuda::DeviceFailure::token_outside_vocabulary);
  EXPECT_EQ(above.row, 20);
  EXPECT_EQ(above.value, vocab_size);
  row(20).token = 0;
  slot_tokens_[1] = -1;  // nothing was drawn yet
  run();
  const cuda::DeviceFailure below = test::take_device_failure();
  EXPECT_EQ(below.code, cuda::DeviceFailure::token_outside_vocabulary);
  EXPECT_EQ(below.value, -1);
}

TEST_P(CudaEmbeddingTest, ReportsAPositionBeyondTheTable) {
  if (!args_.learned_positions) return;  // positions without a table have no end
  row(3).position = 120;
  run();
  const cuda::DeviceFailure failure = test::take_device_failure();
  EXPECT_EQ(failure.code, cuda::DeviceFailure::position_beyond_table);
  EXPECT_EQ(failure.row, 3);
  EXPECT_EQ(failure.value, 120);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaEmbeddingTest, test::embedding_cases(),
                         [](const auto& case_info) { return test::embedding_name(case_info); });

}  // namespace
}  // namespace sluice
