#include "codelets/kv_store/kv_store.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/codelets/codelet_data.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

struct Shape {
  const char* name;
  std::int64_t num_kv_heads;
  std::int64_t head_dim;
};

std::ostream& operator<<(std::ostream& out, const Shape& shape) { return out << shape.name; }

/// Prompts, pieces that end within a page or at its end, and decode rows, in no order.
const std::vector<test::Part> ragged = {{0, 20}, {37, 1}, {16, 1},  {15, 18},
                                        {0, 1},  {31, 1}, {200, 30}};

class KvStoreTest : public ::testing::TestWithParam<std::tuple<DType, Shape>> {
 protected:
  KvStoreTest() {
    const auto& [dtype, from] = GetParam();
    DecoderShape& shape = args_.shape;
    shape.dtype = dtype;
    shape.num_heads = shape.num_kv_heads = from.num_kv_heads;
    shape.head_dim = from.head_dim;
    test::Random random(47);
    batch_ = test::make_batch(random, ragged, 9);
    args_.tag.num_tokens = batch_.num_rows();
    new_kv_ =
        test::make_operand(random.floats(batch_.num_rows() * 2 * shape.kv_size(), 2.0), dtype);
    slab_ = test::make_operand(random.floats(batch_.num_pages * shape.page_elements(), 2.0), dtype);
  }

  KvStoreOperands operands(std::vector<std::byte>& slab) const {
    return {.args = &args_, .batch = batch_.view(), .new_kv = new_kv_.data(), .slab = slab.data()};
  }
  /// What the slab holds afterwards.
  std::vector<std::byte> expected() const {
    std::vector<std::byte> slab = slab_.memory;
    kv_store_reference(operands(slab));
    return slab;
  }

  KvStoreArgs args_;
  test::RaggedBatch batch_;
  test::Operand new_kv_, slab_;
};

TEST_P(KvStoreTest, MatchesReferenceAndLeavesTheRestAlone) {
  std::vector<std::byte> slab = slab_.memory;
  kv_store_cpu(test::cpu(), operands(slab));
  EXPECT_EQ(slab, expected());
  EXPECT_NE(slab, slab_.memory);
}

TEST_P(KvStoreTest, GivesTheSameBitsAsAStarPuTask) {
  std::vector<std::byte> slab = slab_.memory;
  test::runtime();
  {
    const DataHandle batch = DataHandle::of_memory(batch_.words.data(), 4 * batch_.words.size());
    const DataHandle new_kv = DataHandle::of_memory(new_kv_.data(), new_kv_.memory.size());
    const DataHandle to_slab = DataHandle::of_memory(slab.data(), slab.size());
    submit_kv_store(args_, {batch, new_kv, to_slab});
  }
  EXPECT_FALSE(run_failure().happened());
  EXPECT_EQ(slab, expected());
}

TEST_P(KvStoreTest, RefusesNewKvOfAnotherSize) {
  test::runtime();
  std::vector<std::byte> slab = slab_.memory;
  const DataHandle batch = DataHandle::of_memory(batch_.words.data(), 4 * batch_.words.size());
  const DataHandle new_kv = DataHandle::of_memory(new_kv_.data(), new_kv_.memory.size() / 2);
  const DataHandle to_slab = DataHandle::of_memory(slab.data(), slab.size());
  EXPECT_THROW(submit_kv_store(args_, {batch, new_kv, to_slab}), Error);
}

INSTANTIATE_TEST_SUITE_P(Shapes, KvStoreTest,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16),
                                            ::testing::Values(Shape{"head_9", 7, 9},
                                                              Shape{"head_28_group", 2, 28},
                                                              Shape{"head_64_one", 1, 64})),
                         [](const auto& case_info) {
                           return test::name_of(std::get<0>(case_info.param)) + "_" +
                                  std::get<1>(case_info.param).name;
                         });

TEST(KvStoreHandComputedTest, OneTokenOfTwoHeads) {
  KvStoreArgs args;
  args.shape.dtype = DType::f32;
  args.shape.num_heads = args.shape.num_kv_heads = 2;
  args.shape.head_dim = 1;
  BatchBuilder builder;
  const std::vector<std::int32_t> tokens = {4};
  const std::vector<std::int32_t> pages = {1, 0};
  builder.add({.slot = 0, .context = 18, .tokens = tokens, .pages = pages, .sampling = {}},
              BatchBuilder::LogitRows::none);
  const std::vector<std::int32_t> words = builder.build();
  const std::vector<float> new_kv = {1, 2, 3, 4};  // k of both heads, then v
  // Two pages of two heads, each K [16 dims, 16 tokens], then V [16 tokens, 16 dims]; token 18 is
  // the third of the second page, which is the slab's first.
  std::vector<float> slab(2 * 4 * 256);
  std::vector<float> expected = slab;
  expected[2] = 1;
  expected[256 + 2 * 16] = 3;
  expected[512 + 2] = 2;
  expected[768 + 2 * 16] = 4;
  kv_store_cpu(test::cpu(),
               {&args, BatchView(words.data()), reinterpret_cast<const std::byte*>(new_kv.data()),
                reinterpret_cast<std::byte*>(slab.data())});
  EXPECT_EQ(slab, expected);
}

}  // namespace
}  // namespace sluice
