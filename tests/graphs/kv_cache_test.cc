// Where the KV cache's memory lies. One NUMA node is enough: it may stand for several parts.
#include "graphs/kv_cache.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/support/engine.h"

namespace sluice {
namespace {

/// A head's part of a page is two pages of the system's, in f32.
DecoderShape shape_of(std::int64_t heads, std::int64_t head_dim = 64) {
  DecoderShape shape;
  shape.num_heads = heads;
  shape.num_kv_heads = heads;
  shape.head_dim = head_dim;
  shape.dtype = DType::f32;
  return shape;
}

const std::vector<NodeShare> two_parts = {{.node = 0, .share = 0.5}, {.node = 0, .share = 0.5}};

class KvPlacesTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t num_layers = 2;
  static constexpr std::int64_t num_pages = 70;

  static KvCache kv_of(const DecoderShape& shape, const std::vector<NodeShare>& parts) {
    return {
        shape, num_layers, num_pages, {}, {.cxl_nodes = {}, .ddr_nodes = {}, .ddr_shares = parts}};
  }
  /// Skips where a container forbids it.
  void require_placing() {
    try {
      const PreferredNode allowed(0);
      const Buffer buffer(4096);
      pages_by_node(buffer);
    } catch (const Error& error) {
      GTEST_SKIP() << error.what();
    }
  }

  ThreadPool& pool_ = test::runtime(2).setup_pool();
};

TEST_F(KvPlacesTest, EachPartHasItsHeadsOfEveryPage) {
  require_placing();
  const DecoderShape shape = shape_of(5);
  const KvCache kv = kv_of(shape, two_parts);
  kv.place_by_heads(pool_);
  const std::vector<KvCache::PartHeads> parts = kv.pages_by_part();
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].num_heads, 3);
  EXPECT_EQ(parts[1].num_heads, 2);
  const std::uint64_t pages_of_a_head = shape.page_bytes() / 5 / 4096;
  ASSERT_GE(pages_of_a_head, 1U);
  for (const KvCache::PartHeads& part : parts) {
    EXPECT_EQ(part.asked, static_cast<std::uint64_t>(part.num_heads * num_layers * num_pages) *
                              pages_of_a_head);
    EXPECT_EQ(part.found, part.asked);
  }
  kv.fill(0, [](std::span<std::byte> bytes) {
    for (const std::byte each : bytes) ASSERT_EQ(each, std::byte{0});
  });
}

TEST_F(KvPlacesTest, FewHeadsAndSmallOnesLieInTurn) {
  for (const DecoderShape& shape : {shape_of(1), shape_of(5, 1)}) {
    const KvCache kv = kv_of(shape, two_parts);
    kv.place_by_heads(pool_);
    EXPECT_TRUE(kv.pages_by_part().empty()) << shape.num_kv_heads << " heads";
  }
  EXPECT_TRUE(kv_of(shape_of(5), {}).pages_by_part().empty()) << "no parts";
}

}  // namespace
}  // namespace sluice
