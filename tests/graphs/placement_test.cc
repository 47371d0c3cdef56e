#include <gtest/gtest.h>

#include "graphs/decoder_graph.h"
#include "tests/support/engine.h"
#include "tests/support/golden.h"
#include "tests/support/pages.h"
#include "tests/support/quantized_model.h"

namespace sluice {
namespace {

/// Logits of a prompt and of three decode steps after it, every layer cut as its placement says. On
/// a machine without a GPU all tasks run on the CPU; what changes is where a layer is cut.
std::vector<float> logits(const LoadedModel& model, const std::vector<Placement>& placements) {
  KvCache kv(model.shape(), model.config().num_layers, 1);
  const std::vector<std::int32_t> pages = test::pages(0, 1);
  DecoderGraph graph(model, {&kv, 1}, {.num_slots = 1});
  const std::vector<std::int32_t> prompt = {1, 2, 3, 4, 5};
  std::vector<PendingIteration> pending;
  for (std::int32_t context : {0, 5, 6, 7}) {
    BatchPart part;
    part.phase = context == 0 ? Phase::prefill : Phase::decode;
    part.placements = placements;
    const std::int32_t last_drawn = -1;
    part.batch.add({.slot = 0,
                    .context = context,
                    .fresh = context == 0,
                    .tokens = context == 0 ? std::span(prompt) : std::span(&last_drawn, 1),
                    .pages = pages,
                    .sampling = {}},
                   BatchBuilder::LogitRows::last);
    pending.push_back(graph.submit(part, DecoderGraph::Logits::keep));
  }
  std::vector<float> all;
  for (const PendingIteration& iteration : pending) {
    const std::vector<float> part = iteration.logits();
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

class PlacementTest : public testing::TestWithParam<const char*> {
 protected:
  /// Of the golden models, or one in 4 bits.
  static std::string folder() {
    static const test::QuantizedModel quantized("int4-g32", "int8-g64");
    const std::string name = GetParam();
    return name == "int4" ? quantized.path() : test::golden_folder(name);
  }
};

TEST_P(PlacementTest, EveryCutOfALayerGivesTheSameNumbers) {
  const test::TestModel model(folder(), DType::f32);
  const auto num_layers = static_cast<std::size_t>(model.loaded().config().num_layers);
  const std::vector<float> expected = logits(model.loaded(), {});
  for (unsigned bits = 0; bits < num_placements; ++bits) {
    std::vector<Placement> placements(num_layers, Placement::from_bits(bits));
    // Where sublayers 2 and 3 part, the scores are stored, and summed in another order.
    const bool same_bits = placements[0][Sublayer::qk] == placements[0][Sublayer::sv];
    const std::vector<float> found = logits(model.loaded(), placements);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      const float tolerance = same_bits ? 0 : 1e-4F * (1 + std::abs(expected[i]));
      ASSERT_NEAR(found[i], expected[i], tolerance) << placements[0].to_string() << " at " << i;
    }
  }
}

TEST_P(PlacementTest, LayersMayDiffer) {
  const test::TestModel model(folder(), DType::f32);
  const auto num_layers = static_cast<std::size_t>(model.loaded().config().num_layers);
  std::vector<Placement> placements(num_layers, Placement(Device::cpu));
  for (std::size_t layer = 0; layer < num_layers; layer += 2)
    placements[layer] = *Placement::parse("011010");
  EXPECT_EQ(logits(model.loaded(), placements), logits(model.loaded(), {}));
}

INSTANTIATE_TEST_SUITE_P(Models, PlacementTest, testing::Values("llama-3-gqa", "opt-pre", "int4"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::erase(name, '-');
                           return name;
                         });

}  // namespace
}  // namespace sluice
