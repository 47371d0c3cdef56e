// kv_store_cuda, and the copies of attention_parts.
#include "codelets/kv_store/kv_store.h"

#include <gtest/gtest.h>

#include <numeric>

#include "codelets/attention_parts/attention_parts.h"
#include "tests/codelets/codelet_data.h"
#include "tests/codelets/cuda/device_data.h"
#include "tests/codelets/kv_store_data.h"

namespace sluice {
namespace {

using test::OnDevice;

class CudaKvStoreTest : public ::testing::TestWithParam<std::tuple<DType, test::KvStoreShape>> {};

TEST_P(CudaKvStoreTest, MatchesReferenceAndLeavesTheRestAlone) {
  const test::KvStoreData data(std::get<0>(GetParam()), std::get<1>(GetParam()));
  const OnDevice<std::int32_t> words(data.batch.words);
  const OnDevice<std::byte> new_kv(data.new_kv.memory);
  OnDevice<std::byte> slab(data.slab.memory);
  kv_store_cuda(test::gpu(), {.args = &data.args,
                              .batch = BatchView(words.get()),
                              .new_kv = new_kv.get(),
                              .slab = slab.get()});
  EXPECT_EQ(slab.read(), data.expected());
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaKvStoreTest,
                         ::testing::Combine(::testing::Values(DType::f32, DType::bf16),
                                            ::testing::ValuesIn(test::kv_store_shapes)),
                         [](const auto& case_info) {
                           return test::name_of(std::get<0>(case_info.param)) + "_" +
                                  std::get<1>(case_info.param).name;
                         });

/// `count` bytes, each after `first`.
std::vector<std::byte> numbered(std::size_t count, int first) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) {
    bytes[i] = static_cast<std::byte>((static_cast<std::size_t>(first) + i) % 251);
  }
  return bytes;
}

std::vector<std::byte> behind_one_another(const std::vector<std::vector<std::byte>>& parts) {
  std::vector<std::byte> all;
  for (const std::vector<std::byte>& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

class CudaAttentionPartsTest : public ::testing::TestWithParam<DType> {
 protected:
  CudaAttentionPartsTest() {
    shape_.dtype = GetParam();
    shape_.num_heads = 6;
    shape_.num_kv_heads = 2;
    shape_.head_dim = 9;
    for (const std::int64_t rows : part_rows_) parts_.add(rows);
  }
  std::size_t bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * size_bytes(shape_.dtype);
  }

  const std::vector<std::int64_t> part_rows_ = {3, 1, 5};
  DecoderShape shape_;
  PartRows parts_;
};

TEST_P(CudaAttentionPartsTest, SplitGivesEachPartItsRows) {
  const QkvSplitArgs args{.tag = {}, .shape = shape_, .vectors = {}, .parts = parts_};
  const OnDevice<std::byte> q(numbered(bytes(9 * shape_.q_size()), 0));
  const OnDevice<std::byte> new_kv(numbered(bytes(9 * 2 * shape_.kv_size()), 7));
  OnDevice<std::byte> q_0(bytes(3 * shape_.q_size())), q_1(bytes(shape_.q_size()));
  OnDevice<std::byte> q_2(bytes(5 * shape_.q_size()));
  OnDevice<std::byte> kv_0(bytes(6 * shape_.kv_size())), kv_1(bytes(2 * shape_.kv_size()));
  OnDevice<std::byte> kv_2(bytes(10 * shape_.kv_size()));
  split_rows_cuda(test::gpu(),
                  {.args = &args,
                   .q = {q_0.get(), q_1.get(), q_2.get()},
                   .new_kv = {kv_0.get(), kv_1.get(), kv_2.get()}},
                  q.get(), new_kv.get());
  EXPECT_EQ(behind_one_another({q_0.read(), q_1.read(), q_2.read()}), q.read());
  EXPECT_EQ(behind_one_another({kv_0.read(), kv_1.read(), kv_2.read()}), new_kv.read());
}

TEST_P(CudaAttentionPartsTest, JoinPutsThePartsBehindOneAnother) {
  const AttentionJoinArgs args{.tag = {}, .shape = shape_, .parts = parts_};
  const std::int64_t stride = activation_stride(shape_.q_size(), shape_.dtype);
  const OnDevice<std::byte> first(numbered(bytes(3 * stride), 0));
  const OnDevice<std::byte> second(numbered(bytes(stride), 100));
  const OnDevice<std::byte> third(numbered(bytes(5 * stride), 200));
  OnDevice<std::byte> out(bytes(9 * stride));
  attention_join_cuda(test::gpu(), args, {first.get(), second.get(), third.get()}, out.get());
  EXPECT_EQ(out.read(), behind_one_another({first.read(), second.read(), third.read()}));
}

INSTANTIATE_TEST_SUITE_P(Types, CudaAttentionPartsTest, ::testing::Values(DType::f32, DType::bf16),
                         [](const auto& case_info) { return test::name_of(case_info.param); });

TEST(CudaWorkspaceTest, InnerOneLeavesTheOuterAlone) {
  cuda::Workspace& outer = test::gpu().workspace;
  std::byte* memory = outer.reserve(1000);
  EXPECT_NE(outer.inner().reserve(1000), memory);
  EXPECT_EQ(outer.reserve(1000), memory);
  EXPECT_EQ(&outer.inner(), &outer.inner());
}

}  // namespace
}  // namespace sluice
