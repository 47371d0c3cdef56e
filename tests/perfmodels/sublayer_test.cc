#include "perfmodels/sublayer.h"

#include <gtest/gtest.h>

#include <set>
#include <string_view>
#include <vector>

namespace sluice {
namespace {

TEST(SublayerTest, EachHasOneLineAndItsOwnName) {
  std::set<std::string_view> names;
  std::set<Sublayer> listed;
  for (const SublayerProperties& properties : all_sublayers()) {
    EXPECT_EQ(&properties_of(properties.sublayer), &properties);
    EXPECT_TRUE(names.insert(properties.name).second) << properties.name;
    listed.insert(properties.sublayer);
    for (const double part : properties.colour) {
      EXPECT_GE(part, 0) << properties.name;
      EXPECT_LE(part, 1) << properties.name;
    }
  }
  EXPECT_EQ(listed.size(), static_cast<std::size_t>(last_sublayer_value) + 1);
}

/// As the graph submits a layer of a mixture.
TEST(SublayerTest, PlacesRiseAlongALayer) {
  const std::vector<Sublayer> order = {
      Sublayer::kv_move,  Sublayer::qkv,      Sublayer::qk,          Sublayer::sv,
      Sublayer::kv_store, Sublayer::out_proj, Sublayer::router,      Sublayer::shared_ffn,
      Sublayer::fc1,      Sublayer::fc2,      Sublayer::expert_join, Sublayer::lm_head,
      Sublayer::sampling, Sublayer::logprobs};
  for (std::size_t i = 1; i < order.size(); ++i) {
    const SublayerProperties& before = properties_of(order[i - 1]);
    const SublayerProperties& after = properties_of(order[i]);
    EXPECT_LT(before.place, after.place) << before.name << " and " << after.name;
    EXPECT_LE(before.part, after.part) << before.name << " and " << after.name;
  }
  EXPECT_EQ(properties_of(Sublayer::attention).place, properties_of(Sublayer::qk).place);
}

TEST(SublayerTest, LiasSixHaveTheWeightsOfItsTableOne) {
  EXPECT_EQ(weights_of(Sublayer::qkv).size(), 3U);
  EXPECT_TRUE(weights_of(Sublayer::qk).empty());
  EXPECT_TRUE(weights_of(Sublayer::sv).empty());
  EXPECT_EQ(weights_of(Sublayer::out_proj).front(), WeightKind::out_proj);
  EXPECT_EQ(weights_of(Sublayer::fc1).front(), WeightKind::fc1);
  EXPECT_EQ(weights_of(Sublayer::fc2).front(), WeightKind::fc2);
}

}  // namespace
}  // namespace sluice
