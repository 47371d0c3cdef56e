// Where new KV is stored, for all placements (LIA's equations 5, 7 and 9; docs/design/kv-cache.md).
#include "graphs/kv_plan.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

class KvPlanTest : public testing::TestWithParam<Device> {
 protected:
  template <typename Check>
  void for_each_placement(const Check& check) const {
    for (unsigned bits = 0; bits < num_placements; ++bits) {
      const Placement placement = Placement::from_bits(bits);
      SCOPED_TRACE(placement.to_string());
      check(placement);
    }
  }
  const Device home_ = GetParam();
  const Device away_ = home_ == Device::gpu ? Device::cpu : Device::gpu;
};

/// A slab that is written before attention could not cross before its layer's turn.
TEST_P(KvPlanTest, ASlabThatCrossesIsWrittenBehindAttention) {
  for_each_placement([&](const Placement& placement) {
    const KvPlan plan(placement, home_, CachedTokens::some);
    const bool crosses = placement[Sublayer::qk] == away_ || placement[Sublayer::sv] == away_;
    EXPECT_EQ(plan.store_after() == Sublayer::sv, crosses);
    if (!crosses) return;
    for (const Device device : {home_, away_})
      EXPECT_EQ(plan.path_on(device), KvPath::cached_and_new_kv);
  });
}

TEST_P(KvPlanTest, AtHomeTheSlabIsAllThatAttentionReads) {
  for_each_placement([&](const Placement& placement) {
    if (placement[Sublayer::qk] == away_ || placement[Sublayer::sv] == away_) return;
    const KvPlan plan(placement, home_, CachedTokens::some);
    const bool makes_here = placement[Sublayer::qkv] == home_;
    EXPECT_EQ(plan.path_on(home_), KvPath::slab);
    EXPECT_EQ(plan.passes_new_kv(), !makes_here);
    EXPECT_EQ(plan.store_after() == Sublayer::qkv, !makes_here);
  });
}

TEST_P(KvPlanTest, WithoutCachedTokensNoSlabCrosses) {
  for_each_placement([&](const Placement& placement) {
    EXPECT_EQ(KvPlan(placement, home_, CachedTokens::none).path_on(away_), KvPath::new_kv);
  });
}

INSTANTIATE_TEST_SUITE_P(Homes, KvPlanTest, testing::Values(Device::gpu, Device::cpu),
                         [](const auto& tested) {
                           return tested.param == Device::gpu ? "gpu" : "cpu";
                         });

}  // namespace
}  // namespace sluice
