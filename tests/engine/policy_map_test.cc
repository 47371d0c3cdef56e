#include "engine/plan/policy_map.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <sstream>

namespace sluice {
namespace {

/// A cell for each of 64 placements, and some more; `width` neighbours are alike.
PolicyMap all_placements(std::size_t width) {
  PolicyMap map = {
      .model = "m", .machine = "h", .batches = {}, .input_tokens = {}, .placements = {}};
  for (std::size_t x = 0; x < 8 * width; ++x) map.batches.push_back(std::int64_t{1} << (x / width));
  for (unsigned y = 0; y < 8; ++y) {
    map.input_tokens.push_back(std::int64_t{1} << y);
    std::vector<Placement> row;
    for (unsigned x = 0; x < 8 * width; ++x)
      row.push_back(Placement::from_bits(8 * y + x / static_cast<unsigned>(width)));
    for (auto& rows : map.placements) rows.push_back(row);
  }
  return map;
}

std::set<std::string> fills_of(const std::string& svg) {
  std::set<std::string> fills;
  const std::string begin = "fill:rgb(";
  for (std::size_t at = svg.find(begin); at != std::string::npos; at = svg.find(begin, at + 1))
    fills.insert(svg.substr(at, svg.find(')', at) - at));
  return fills;
}

TEST(PolicyMapTest, EveryPlacementHasAColourOfItsOwn) {
  const std::set<std::string> fills =
      fills_of(draw_policy_maps({all_placements(1)}, PictureFormat::svg));
  EXPECT_GE(fills.size(), 64U + 2U) << "and black and white";
}

TEST(PolicyMapTest, EveryPlacementHasALetterOfItsOwn) {
  const std::string text = policy_maps_as_text({all_placements(1)});
  std::set<char> letters;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.size() > 9 && line[9] == ':') letters.insert(line[0]);
  }
  EXPECT_EQ(letters.size(), 64U) << text;
  for (const char letter : letters) EXPECT_TRUE(letter > ' ' && letter <= '~') << letter;
}

TEST(PolicyMapTest, TheFirstColoursDifferClearly) {
  std::vector<Colour> colours;
  for (std::size_t i = 0; i < 21; ++i) colours.push_back(colour_number(i));
  for (std::size_t a = 0; a < colours.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      const double apart = std::abs(colours[a].red - colours[b].red) +
                           std::abs(colours[a].green - colours[b].green) +
                           std::abs(colours[a].blue - colours[b].blue);
      EXPECT_GT(apart, 0.15) << a << " and " << b;
    }
  }
}

}  // namespace
}  // namespace sluice
