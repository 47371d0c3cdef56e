#include "codelets/kv_store/kv_store.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "codelets/runtime/disk_node.h"
#include "tests/codelets/codelet_data.h"
#include "tests/codelets/kv_store_data.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

class KvStoreTest : public ::testing::TestWithParam<std::tuple<DType, test::KvStoreShape>> {
 protected:
  test::KvStoreData data_{std::get<0>(GetParam()), std::get<1>(GetParam())};
};

TEST_P(KvStoreTest, MatchesReferenceAndLeavesTheRestAlone) {
  std::vector<std::byte> slab = data_.slab.memory;
  kv_store_cpu(test::cpu(), data_.operands(slab));
  EXPECT_EQ(slab, data_.expected());
  EXPECT_NE(slab, data_.slab.memory);
}

TEST_P(KvStoreTest, GivesTheSameBitsAsAStarPuTask) {
  std::vector<std::byte> slab = data_.slab.memory;
  test::runtime();
  {
    const DataHandle batch =
        DataHandle::of_memory(data_.batch.words.data(), 4 * data_.batch.words.size());
    const DataHandle new_kv =
        DataHandle::of_memory(data_.new_kv.data(), data_.new_kv.memory.size());
    const DataHandle to_slab = DataHandle::of_memory(slab.data(), slab.size());
    submit_kv_store(data_.args, {batch, new_kv, to_slab});
  }
  EXPECT_FALSE(run_failure().happened());
  EXPECT_EQ(slab, data_.expected());
}

TEST_P(KvStoreTest, RefusesNewKvOfAnotherSize) {
  test::runtime();
  std::vector<std::byte> slab = data_.slab.memory;
  const DataHandle batch =
      DataHandle::of_memory(data_.batch.words.data(), 4 * data_.batch.words.size());
  const DataHandle new_kv =
      DataHandle::of_memory(data_.new_kv.data(), data_.new_kv.memory.size() / 2);
  const DataHandle to_slab = DataHandle::of_memory(slab.data(), slab.size());
  EXPECT_THROW(submit_kv_store(data_.args, {batch, new_kv, to_slab}), Error);
}

/// Pages lie in no order; where a sequence's new tokens begin a page, what it held before is gone.
TEST_P(KvStoreTest, WritesTheSamePagesToADisk) {
  const std::size_t page_bytes = data_.args.shape.page_bytes();
  const BatchView batch = data_.batch.view();
  std::vector<std::byte> expected = data_.slab.memory;
  std::uint64_t read_pages = 0;
  std::uint64_t written_pages = 0;
  for (const BatchSequence& sequence : batch.sequences()) {
    const std::int64_t end = (sequence.context + sequence.num_rows + page_tokens - 1) / page_tokens;
    for (std::int64_t i = sequence.context / page_tokens; i < end; ++i, ++written_pages) {
      if (i * page_tokens < sequence.context) {
        ++read_pages;
        continue;
      }
      const auto page =
          static_cast<std::size_t>(batch.pages(sequence)[static_cast<std::size_t>(i)]);
      std::fill_n(expected.begin() + static_cast<std::ptrdiff_t>(page * page_bytes), page_bytes,
                  std::byte{0});
    }
  }
  kv_store_reference(data_.operands(expected));

  DiskNode node(std::uint64_t{1} << 20);
  constexpr std::uint64_t offset = DirectFile::alignment;  // another slab lies before
  const std::size_t size = data_.slab.memory.size();
  const DirectFile file =
      DirectFile::temporary(std::filesystem::temp_directory_path(), offset + size);
  file.write(offset, size, data_.slab.memory.data());
  const DiskExtent slab(node, file, offset);
  kv_store_disk(
      test::cpu(),
      {.args = &data_.args, .batch = batch, .new_kv = data_.new_kv.data(), .slab = &slab});
  std::vector<std::byte> found(size);
  file.read(offset, size, found.data());
  EXPECT_EQ(found, expected);
  std::vector<std::byte> before(offset);
  file.read(0, offset, before.data());
  EXPECT_EQ(before, std::vector<std::byte>(offset));
  EXPECT_EQ(node.use().read_bytes, read_pages * page_bytes);
  EXPECT_EQ(node.use().written_bytes, written_pages * page_bytes);
}

INSTANTIATE_TEST_SUITE_P(Shapes, KvStoreTest,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16),
                                            ::testing::ValuesIn(test::kv_store_shapes)),
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
