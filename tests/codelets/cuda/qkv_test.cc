#include <gtest/gtest.h>

#include "tests/codelets/cuda/device_data.h"
#include "tests/codelets/qkv_fixture.h"

namespace sluice {
namespace {

using test::OnDevice;

class CudaQkvTest : public test::QkvFixture {
 protected:
  /// Where k and v go.
  struct Into {
    bool slab = true;
    bool new_kv = false;
  };

  /// Leaves q_, slab_ and new_kv_ as the codelet left them.
  void run(Into into) {
    const OnDevice<std::int32_t> batch(batch_.words);
    const OnDevice<float> x(x_);
    const OnDevice<float> rope(rope_);
    const OnDevice<float> vectors(vectors_.values);
    const OnDevice<std::byte> weight(test::memory_of(weight_.packed));
    OnDevice<std::byte> q(q_.size());
    OnDevice<std::byte> slab(slab_);
    new_kv_.resize(static_cast<std::size_t>(batch_.num_rows() * 2 * args_.shape.kv_size()) *
                   size_bytes(args_.shape.dtype));
    OnDevice<std::byte> new_kv(new_kv_.size());
    qkv_cuda(test::gpu(), {.args = &args_,
                           .batch = BatchView(batch.get()),
                           .x = x.get(),
                           .rope = args_.shape.rope ? rope.get() : nullptr,
                           .vectors = vectors.get(),
                           .weight = {weight_.type, weight.get()},
                           .q = q.get(),
                           .slab = into.slab ? slab.get() : nullptr,
                           .new_kv = into.new_kv ? new_kv.get() : nullptr});
    q_ = q.read();
    slab_ = slab.read();
    new_kv_ = new_kv.read();
  }

  void expect_like_reference() {
    std::vector<double> expected(
        static_cast<std::size_t>(batch_.num_rows() * args_.shape.qkv_size()));
    qkv_reference(operands(), weight_.plain.values.data(), expected.data());
    const DType dtype = args_.shape.dtype;
    test::expect_close(gather(), expected, test::tolerance(dtype, test::GemmInput::rounded, dtype));
  }

  std::vector<std::byte> new_kv_;
};

TEST_P(CudaQkvTest, MatchesReferenceAndWritesItsTokensPagesOnly) {
  run({});
  expect_like_reference();
}

TEST_P(CudaQkvTest, MatchesReferenceForFewRows) {
  set_batch({{17, 1}});
  run({});
  expect_like_reference();
  set_batch({{0, 5}, {31, 1}, {64, 1}, {15, 2}});
  run({});
  expect_like_reference();
}

TEST_P(CudaQkvTest, PassesOnWhatTheSlabWouldHold) {
  set_batch({{0, 5}, {31, 1}, {64, 1}, {15, 2}});
  const std::vector<std::byte> before = slab_;
  run({});
  const std::vector<std::byte> expected_q = q_;
  const std::vector<std::byte> expected_slab = slab_;

  // Into new_kv alone; storing that is what is left to do.
  slab_ = before;
  run({.slab = false, .new_kv = true});
  EXPECT_EQ(q_, expected_q);
  EXPECT_EQ(slab_, before);
  const std::vector<std::byte> passed = new_kv_;
  const DecoderShape& shape = args_.shape;
  const std::vector<float> kv =
      test::to_floats(new_kv_.data(), batch_.num_rows() * 2 * shape.kv_size(), shape.dtype);
  slab_ = expected_slab;
  const std::vector<float> placed = gather();
  std::vector<float> taken;
  for (std::int64_t r = 0; r < batch_.num_rows(); ++r) {
    const auto row = placed.begin() + r * shape.qkv_size() + shape.q_size();
    taken.insert(taken.end(), row, row + 2 * shape.kv_size());
  }
  EXPECT_EQ(kv, taken);

  // Into both.
  slab_ = before;
  run({.slab = true, .new_kv = true});
  EXPECT_EQ(new_kv_, passed);
  EXPECT_EQ(slab_, expected_slab);
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaQkvTest, test::qkv_cases(),
                         [](const auto& case_info) { return test::qkv_name(case_info); });

}  // namespace
}  // namespace sluice
