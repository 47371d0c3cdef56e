#include "codelets/qkv/qkv.h"

#include <gtest/gtest.h>

#include "codelets/kv_store/kv_store.h"
#include "tests/codelets/qkv_fixture.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

class QkvTest : public test::QkvFixture {};

TEST_P(QkvTest, MatchesReferenceAndWritesItsTokensPagesOnly) {
  std::vector<double> expected(
      static_cast<std::size_t>(batch_.num_rows() * args_.shape.qkv_size()));
  qkv_reference(operands(), weight_.plain.values.data(), expected.data());
  qkv_cpu(test::cpu(), operands());
  const DType dtype = args_.shape.dtype;
  test::expect_close(gather(), expected, test::tolerance(dtype, test::GemmInput::rounded, dtype));
}

TEST_P(QkvTest, GivesTheSameBitsAsAStarPuTask) {
  std::vector<std::byte> slab = slab_;
  std::vector<std::byte> q(q_.size());
  qkv_cpu(test::cpu(), operands());
  test::runtime();
  {
    const DataHandle batch = DataHandle::of_memory(batch_.words.data(), 4 * batch_.words.size());
    const DataHandle x = DataHandle::of_memory(x_.data(), 4 * x_.size());
    const DataHandle rope =
        rope_.empty() ? DataHandle() : DataHandle::of_memory(rope_.data(), 4 * rope_.size());
    const DataHandle vectors =
        DataHandle::of_memory(vectors_.values.data(), 4 * vectors_.values.size());
    const DataHandle weight = DataHandle::of_memory(weight_.packed.data(), weight_.packed.size());
    const DataHandle to_q = DataHandle::of_memory(q.data(), q.size());
    const DataHandle to_slab = DataHandle::of_memory(slab.data(), slab.size());
    submit_qkv(args_, {batch, x, rope, vectors, weight, to_q, to_slab, DataHandle()});
  }
  EXPECT_FALSE(run_failure().happened());
  EXPECT_EQ(q, q_);
  EXPECT_EQ(slab, slab_);
}

TEST_P(QkvTest, PassesOnWhatTheSlabWouldHold) {
  const DecoderShape& shape = args_.shape;
  const std::vector<std::byte> before = slab_;
  qkv_cpu(test::cpu(), operands());
  const std::vector<std::byte> expected_q = q_;
  const std::vector<std::byte> expected_slab = slab_;

  // Into new_kv alone; storing that is what is left to do.
  std::vector<std::byte> new_kv(new_kv_bytes(shape, batch_.num_rows()));
  q_.assign(q_.size(), std::byte{0});
  slab_ = before;
  QkvOperands passing = operands();
  passing.new_kv = new_kv.data();
  passing.slab = nullptr;
  qkv_cpu(test::cpu(), passing);
  EXPECT_EQ(q_, expected_q);
  EXPECT_EQ(slab_, before);
  const KvStoreArgs store{{}, shape};
  kv_store_cpu(test::cpu(), {&store, batch_.view(), new_kv.data(), slab_.data()});
  EXPECT_EQ(slab_, expected_slab);

  // Into both.
  std::vector<std::byte> again(new_kv.size());
  slab_ = before;
  passing = operands();
  passing.new_kv = again.data();
  qkv_cpu(test::cpu(), passing);
  EXPECT_EQ(again, new_kv);
  EXPECT_EQ(slab_, expected_slab);
}

INSTANTIATE_TEST_SUITE_P(Shapes, QkvTest, test::qkv_cases(),
                         [](const auto& case_info) { return test::qkv_name(case_info); });

}  // namespace
}  // namespace sluice
