#include "perfmodels/layer_run.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sluice {
namespace {

TEST(LayerRunTest, WeightsOfOneLayerHaveOneReaderOrNone) {
  EXPECT_EQ(reader_of_weights(LayerHomes::all(Tier::hbm, Tier::ddr)), Device::gpu);
  EXPECT_EQ(reader_of_weights(LayerHomes::all(Tier::cxl, Tier::hbm)), Device::cpu);
  EXPECT_EQ(reader_of_weights(LayerHomes::all(Tier::disk, Tier::ddr)), std::nullopt);
  LayerHomes homes = LayerHomes::all(Tier::ddr, Tier::ddr);
  homes[WeightKind::fc2] = Tier::cxl;
  EXPECT_EQ(reader_of_weights(homes), Device::cpu);  // both are the CPU's
  homes[WeightKind::fc2] = Tier::hbm;
  EXPECT_EQ(reader_of_weights(homes), std::nullopt);
}

TEST(LayerRunTest, NothingMayHaveToComeOrGo) {
  const Placement on_gpu(Device::gpu);
  const Placement on_cpu(Device::cpu);
  const auto gpu = Device::gpu;
  const auto cpu = Device::cpu;
  EXPECT_TRUE((LayerForm{on_gpu, gpu, gpu}.in_place()));
  EXPECT_TRUE((LayerForm{on_cpu, cpu, cpu}.in_place()));
  EXPECT_FALSE((LayerForm{on_gpu, gpu, cpu}.in_place()));
  EXPECT_FALSE((LayerForm{on_gpu, gpu, std::nullopt}.in_place()));
  EXPECT_FALSE((LayerForm{on_gpu, std::nullopt, std::nullopt}.in_place()));
  EXPECT_FALSE((LayerForm{on_gpu, cpu, cpu}.in_place()));
  EXPECT_FALSE((LayerForm{*Placement::parse("011000"), gpu, gpu}.in_place()));
}

using Lengths = std::vector<std::int64_t>;

/// The lengths of the tasks of layers: 'g' and 'c' are in place on the GPU and on the CPU, 's'
/// streams to the GPU, '/' is cut.
Lengths lengths(const std::string& layers, std::int64_t rows = 1) {
  const auto count = static_cast<std::int64_t>(layers.size());
  const auto form_of = [&](std::int64_t layer) -> std::optional<LayerForm> {
    const char kind = layers[static_cast<std::size_t>(layer)];
    if (kind == '/') return std::nullopt;
    const Device device = kind == 'c' ? Device::cpu : Device::gpu;
    const std::optional<Device> reader = kind == 's' ? std::nullopt : std::optional(device);
    return LayerForm{Placement(device), reader, device};
  };
  Lengths found;
  for (std::int64_t first = 0; first < count; first += found.back())
    found.push_back(layers_of_task(first, count, rows, form_of));
  return found;
}

TEST(LayerRunTest, EightLayersOfOneDeviceAreATaskAtMost) {
  EXPECT_EQ(lengths(std::string(20, 'g')), (Lengths{8, 8, 4}));
  EXPECT_EQ(lengths("cccccc"), (Lengths{6}));
  EXPECT_EQ(lengths("gggggggggggcccccccccc"), (Lengths{8, 3, 8, 2}));
  EXPECT_EQ(lengths("sggssgc/cc"), (Lengths{1, 2, 1, 1, 1, 1, 1, 2}));
  EXPECT_EQ(lengths("ggg", 64), (Lengths{3}));
  EXPECT_EQ(lengths("ggg", 65), (Lengths{1, 1, 1}));
}

TEST(LayerRunTest, ATaskIsNamedByItsLayers) {
  TaskTag tag;
  tag.layer = 8;
  EXPECT_EQ(layers_of(tag), "layer 8");
  tag.num_layers = 4;
  EXPECT_EQ(layers_of(tag), "layers 8 to 11");
}

}  // namespace
}  // namespace sluice
