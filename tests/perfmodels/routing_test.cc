#include "perfmodels/routing.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "base/error.h"
#include "perfmodels/routing_file.h"
#include "perfmodels/work.h"

namespace sluice {
namespace {

using Experts = std::vector<std::int64_t>;

// ---- Uniform

TEST(RoutingTest, UniformIsTheFormulaToTheLastBit) {
  const Routing routing = Routing::uniform(128, 8);
  for (const double rows : {1.0, 2.0, 16.0, 37.0, 4096.0}) {
    EXPECT_EQ(routing.experts_touched(rows), 128 * (1 - std::pow(1 - 8.0 / 128, rows))) << rows;
    EXPECT_EQ(routing.rows_of_an_expert(rows), rows * 8 / routing.experts_touched(rows)) << rows;
  }
  EXPECT_EQ(routing.hottest(3, 2), (Experts{0, 1}));
  EXPECT_DOUBLE_EQ(routing.hot_share(16), 0.125);
  EXPECT_EQ(Routing::zipf(0, 128, 8), routing);
}

TEST(RoutingTest, AModelWithoutARoutingHasAUniformOne) {
  ModelDimensions model;
  EXPECT_EQ(experts_touched(model, 5), 1);
  EXPECT_EQ(rows_of_an_expert(model, 5), 5);
  model.num_experts = 4;
  model.experts_per_token = 2;
  EXPECT_EQ(experts_touched(model, 2), 3);  // each is missed by two rows with chance 1/4
  EXPECT_DOUBLE_EQ(rows_of_an_expert(model, 2), 4.0 / 3);
  const double even = experts_touched(model, 3);
  model.routing = Routing::uniform(4, 2);
  EXPECT_EQ(experts_touched(model, 3), even);
  model.routing = Routing::zipf(1, 4, 2);
  EXPECT_LT(experts_touched(model, 3), even);
}

// ---- Zipf

// Weights 6 : 3 : 2 of 11. Expert 0 is left out where 1 and 2 come first, in either order:
// 3/11 x 2/8 + 2/11 x 3/9; 1 by 6/11 x 2/5 + 2/11 x 6/9; 2 by 6/11 x 3/5 + 3/11 x 6/8.
TEST(RoutingTest, ZipfDrawsWithoutReplacement) {
  const Routing routing = Routing::zipf(1, 3, 2);
  const double left_out[] = {6.0 / 88 + 6.0 / 99, 12.0 / 55 + 12.0 / 99, 18.0 / 55 + 18.0 / 88};
  for (std::int64_t i = 0; i < 3; ++i)
    EXPECT_NEAR(routing.chance(0, i), 1 - left_out[i], 1e-11) << i;
  EXPECT_NEAR(routing.experts_touched(1), 2, 1e-11);
  double touched = 0;  // of three rows
  for (const double missed : left_out) touched += 1 - missed * missed * missed;
  EXPECT_NEAR(routing.experts_touched(3), touched, 1e-11);
  EXPECT_EQ(routing.hottest(7, 2), (Experts{0, 1}));
  EXPECT_NEAR(routing.hot_share(0, 1), (1 - left_out[0]) / 2, 1e-11);
}

TEST(RoutingTest, OneOfZipfsExpertsIsChosenByItsWeight) {
  const Routing routing = Routing::zipf(2, 3, 1);  // 36 : 9 : 4
  EXPECT_NEAR(routing.chance(0, 0), 36.0 / 49, 1e-11);
  EXPECT_NEAR(routing.chance(0, 1), 9.0 / 49, 1e-11);
  EXPECT_NEAR(routing.chance(0, 2), 4.0 / 49, 1e-11);
}

TEST(RoutingTest, ChancesOfEqualWeightsAreEqual) {
  for (const std::int64_t chosen : {1, 8, 127, 128}) {
    for (const double chance : inclusion_chances(std::vector<double>(128, 0.5), chosen))
      EXPECT_NEAR(chance, static_cast<double>(chosen) / 128, 1e-11) << chosen;
  }
}

TEST(RoutingTest, ARowsChancesSumToItsExperts) {
  for (const double exponent : {0.3, 1.0, 2.5, 8.0}) {
    for (const std::int64_t chosen : {1, 4, 8, 31}) {
      const Routing routing = Routing::zipf(exponent, 32, chosen);
      EXPECT_NEAR(routing.hot_share(32), 1, 1e-10) << exponent << " " << chosen;
      for (std::int64_t i = 1; i < 32; ++i)
        EXPECT_LE(routing.chance(0, i), routing.chance(0, i - 1) + 1e-12) << exponent << " " << i;
    }
  }
}

/// One row's experts, drawn as the definition has it.
std::vector<bool> draw_row(std::vector<double> weights, int chosen, std::mt19937& random) {
  std::vector<bool> is_in(weights.size(), false);
  for (int n = 0; n < chosen; ++n) {
    std::discrete_distribution<std::size_t> draw(weights.begin(), weights.end());
    const std::size_t expert = draw(random);
    is_in[expert] = true;
    weights[expert] = 0;
  }
  return is_in;
}

TEST(RoutingTest, ZipfAgreesWithDraws) {
  constexpr int num_experts = 16;
  constexpr int chosen = 4;
  constexpr int rows = 5;
  constexpr int iterations = 20000;
  std::vector<double> weights(num_experts);
  for (std::size_t i = 0; i < weights.size(); ++i)
    weights[i] = std::pow(static_cast<double>(i + 1), -1.2);
  std::mt19937 random(7);
  std::vector<double> times(num_experts, 0);
  double touched = 0;
  for (int iteration = 0; iteration < iterations; ++iteration) {
    std::vector<bool> any(num_experts, false);
    for (int row = 0; row < rows; ++row) {
      const std::vector<bool> drawn = draw_row(weights, chosen, random);
      for (std::size_t i = 0; i < num_experts; ++i) {
        if (!drawn[i]) continue;
        any[i] = true;
        ++times[i];
      }
    }
    for (const bool is_touched : any) touched += is_touched ? 1 : 0;
  }
  const Routing routing = Routing::zipf(1.2, num_experts, chosen);
  for (int i = 0; i < num_experts; ++i) {
    // 100,000 rows: five standard deviations are at most 0.008.
    EXPECT_NEAR(routing.chance(0, i), times[static_cast<std::size_t>(i)] / (rows * iterations),
                0.008)
        << i;
  }
  // An iteration's standard deviation is below 1.5 experts, of which the mean's is 1 / 141.
  EXPECT_NEAR(routing.experts_touched(rows), touched / iterations, 0.05);
}

// ---- Recorded

const RoutedModel toy = {.name = "toy", .num_layers = 2, .num_experts = 4, .experts_per_token = 2};

/// Ten rows of 2 of 4 experts.
RecordedRouting toy_recording() {
  return {
      .model = "toy", .rows = 10, .layers = {{10, 5, 5, 0}, {2, 8, 2, 8}}, .touched_by_rows = {}};
}

TEST(RoutingTest, CountsAreChances) {
  const Routing routing = Routing::recorded(toy_recording(), 2);
  EXPECT_EQ(routing.num_experts(), 4);
  EXPECT_DOUBLE_EQ(routing.chance(0, 0), 1);
  EXPECT_DOUBLE_EQ(routing.chance(1, 2), 0.2);
  // Two rows: 1 + 3/4 + 3/4 + 0 in layer 0; twice 1 - 0.8^2 and twice 1 - 0.2^2 in layer 1.
  EXPECT_NEAR(routing.experts_touched(2), (2.5 + 2 * 0.36 + 2 * 0.96) / 2, 1e-12);
  EXPECT_NEAR(routing.rows_of_an_expert(2), 4 / 2.57, 1e-12);
  EXPECT_NEAR(routing.experts_touched(1), 2, 1e-12);
  EXPECT_EQ(routing.hottest(0, 2), (Experts{0, 1}));  // of equal ones the lower number
  EXPECT_EQ(routing.hottest(1, 3), (Experts{1, 3, 0}));
  EXPECT_EQ(routing.hottest(1, 9).size(), 4U);
  EXPECT_DOUBLE_EQ(routing.hot_share(0, 2), 0.75);
  EXPECT_DOUBLE_EQ(routing.hot_share(1, 2), 0.8);
  EXPECT_DOUBLE_EQ(routing.hot_share(2), 0.775);
}

TEST(RoutingTest, TheLastLayerMayHaveFewerRows) {
  RecordedRouting recording = toy_recording();
  recording.layers[1] = {1, 4, 1, 4};  // five rows
  const Routing routing = Routing::recorded(recording, 2);
  EXPECT_DOUBLE_EQ(routing.chance(1, 2), 0.2);
  EXPECT_NO_THROW(parse_routing(format_routing(recording), "routing.json", toy));
}

TEST(RoutingTest, RecordedTouchesCountAsRecorded) {
  RecordedRouting recording = toy_recording();
  const Routing alone = Routing::recorded(recording, 2);
  recording.touched_by_rows = {{1, 2}, {2, 2.3}, {8, 3}};
  const Routing routing = Routing::recorded(recording, 2);
  EXPECT_NEAR(routing.experts_touched(1), 2, 1e-12);
  EXPECT_NEAR(routing.experts_touched(2), 2.3, 1e-12);
  EXPECT_NEAR(routing.experts_touched(8), 3, 1e-12);
  // Four rows are half way from two to eight, by logarithms: m is missed by independent ones.
  const auto missed = [&](double rows) { return 1 - alone.experts_touched(rows) / 4; };
  const double power =
      (std::log(1 - 2.3 / 4) / std::log(missed(2)) + std::log(1 - 3.0 / 4) / std::log(missed(8))) /
      2;
  EXPECT_NEAR(routing.experts_touched(4), 4 * (1 - std::pow(missed(4), power)), 1e-12);
  EXPECT_LT(routing.experts_touched(4), alone.experts_touched(4));
  // Behind the last one as there.
  EXPECT_NEAR(routing.experts_touched(64),
              4 * (1 - std::pow(missed(64), std::log(0.25) / std::log(missed(8)))), 1e-12);
  EXPECT_EQ(routing, Routing::recorded(recording, 2));
  EXPECT_FALSE(routing == alone);
}

TEST(RoutingTest, ARecordingThatTouchesAllIsNoDivisionByZero) {
  RecordedRouting recording = toy_recording();
  recording.layers = {{5, 5, 5, 5}, {5, 5, 5, 5}};
  recording.touched_by_rows = {{16, 4}, {1000, 4}};
  const Routing routing = Routing::recorded(recording, 2);
  EXPECT_NEAR(routing.experts_touched(16), 4, 1e-6);
  EXPECT_NEAR(routing.experts_touched(1000), 4, 1e-6);
  EXPECT_NEAR(routing.experts_touched(1), 2, 1e-12);
}

// ---- Files

TEST(RoutingFileTest, IsReadAsWritten) {
  RecordedRouting recording = toy_recording();
  recording.touched_by_rows = {{1, 2}, {16, 3.25}};
  const std::string text = format_routing(recording);
  const RecordedRouting read = parse_routing(text, "routing.json", toy);
  EXPECT_EQ(read.model, "toy");
  EXPECT_EQ(read.rows, 10);
  EXPECT_EQ(read.layers, recording.layers);
  ASSERT_EQ(read.touched_by_rows.size(), 2U);
  EXPECT_EQ(read.touched_by_rows[1].rows, 16);
  EXPECT_EQ(read.touched_by_rows[1].mean, 3.25);
  EXPECT_EQ(format_routing(read), text);
}

TEST(RoutingFileTest, AModelsNameIsThatOfItsFolder) {
  for (const char* name : {"Toy", "/models/toy", "/models/TOY/", "toy"}) {
    RoutedModel model = toy;
    model.name = name;
    EXPECT_NO_THROW(parse_routing(format_routing(toy_recording()), "routing.json", model)) << name;
  }
}

/// The line with which a text is refused.
std::string refusal(const std::string& text) {
  try {
    parse_routing(text, "routing.json", toy);
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing is wrong";
}

void expect_refused(const std::string& text, const std::vector<std::string>& parts) {
  const std::string line = refusal(text);
  EXPECT_TRUE(line.starts_with("routing.json: ")) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  for (const std::string& part : parts)
    EXPECT_NE(line.find(part), std::string::npos) << "\"" << part << "\" in: " << line;
}

std::string with_layers(const std::string& layers) {
  return R"({"model": "toy", "rows": 10, "touched_by_rows": [], "layers": )" + layers + "}";
}

std::string with_touched(const std::string& pairs) {
  return R"({"model": "toy", "rows": 10, "layers": [[10, 5, 5, 0], [2, 8, 2, 8]],)"
         R"( "touched_by_rows": )" +
         pairs + "}";
}

TEST(RoutingFileTest, AnotherModelsIsRefused) {
  RecordedRouting recording = toy_recording();
  recording.model = "doll";
  expect_refused(format_routing(recording), {"another model", "\"doll\"", "\"toy\"", "edit"});
  recording = toy_recording();
  recording.layers.pop_back();
  expect_refused(format_routing(recording), {"another model", "1 layers", "2 of toy"});
  recording = toy_recording();
  recording.layers[1] = {10, 5, 3, 1, 1};
  expect_refused(format_routing(recording), {"another model", "\"layers\"[1]", "5 experts", "4"});
  recording = toy_recording();
  recording.layers[0] = {10, 10, 5, 5};  // 3 a row
  expect_refused(format_routing(recording), {"\"layers\"[0]", "sum is 30", "expected 20", "2 exp"});
}

/// A layer with one FFN has no counts, and changes no mean.
TEST(RoutingFileTest, LayersWithoutExpertsHaveEmptyLists) {
  const RecordedRouting all = toy_recording();
  RecordedRouting some = toy_recording();
  some.layers.insert(some.layers.begin(), std::vector<std::int64_t>{});
  const RecordedRouting read =
      parse_routing(format_routing(some), "file",
                    {.name = "toy", .num_layers = 3, .num_experts = 4, .experts_per_token = 2});
  EXPECT_EQ(read.layers, some.layers);
  const Routing of_all = Routing::recorded(all, 2);
  const Routing of_some = Routing::recorded(read, 2);
  EXPECT_EQ(of_some.num_experts(), 4);
  for (const double rows : {1.0, 3.0, 17.0})
    EXPECT_DOUBLE_EQ(of_some.experts_touched(rows), of_all.experts_touched(rows)) << rows;
  EXPECT_DOUBLE_EQ(of_some.hot_share(2), of_all.hot_share(2));
  EXPECT_EQ(of_some.chance(0, 3), 0);
  EXPECT_EQ(of_some.chance(2, 3), of_all.chance(1, 3));
  EXPECT_TRUE(of_some.hottest(0, 2).empty());
  EXPECT_EQ(of_some.hottest(1, 2), of_all.hottest(0, 2));
}

TEST(RoutingFileTest, OneThatIsCutShortIsRefused) {
  const std::string whole = format_routing(toy_recording());
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, whole.size() / 2}) {
    expect_refused(whole.substr(0, length),
                   {"not valid JSON", "column " + std::to_string(length + 1)});
  }
}

TEST(RoutingFileTest, WrongCountsAreRefused) {
  expect_refused(with_layers("[[10, 5, 5, 0], [2, -8, 2, 8]]"), {"\"layers\"[1][1] is -8", "0 to"});
  expect_refused(with_layers("[[10, 5, 4.5, 0], [2, 8, 2, 8]]"), {"\"layers\"[0][2] is 4.5"});
  expect_refused(with_layers("[[10, 5, \"5\", 0], [2, 8, 2, 8]]"), {"[0][2] is \"5\""});
  expect_refused(with_layers("[[11, 5, 4, 0], [2, 8, 2, 8]]"), {"[0][0] is 11", "0 to 10"});
  expect_refused(with_layers("[[1e300, 5, 4, 0], [2, 8, 2, 8]]"), {"[0][0] is 1e+300"});
  expect_refused(with_layers("[]"), {"\"layers\" is empty", "no counts"});
  expect_refused(with_layers("[[], []]"), {"all of \"layers\" are empty", "no counts"});
  expect_refused(with_layers("[[0, 0, 0, 0], [2, 8, 2, 8]]"), {"\"layers\"[0]", "counts are 0"});
  expect_refused(with_layers("[[10, 5, 5, 0], [0, 0, 0, 0]]"), {"\"layers\"[1]", "counts are 0"});
  expect_refused(with_layers("[[10, 5, 4, 0], [2, 8, 2, 8]]"), {"[0]", "sum is 19", "20"});
  expect_refused(with_layers("[[10, 5, 5, 0], [2, 8, 2, 7]]"), {"[1]", "sum is 19", "most 20"});
  expect_refused(with_layers("[[10, 5, 5, 0], [6, 1, 1, 0]]"), {"[1]", "sum is 8"});  // 6 of 4 rows
  expect_refused(with_layers("7"), {"\"layers\" is 7", "a list"});
  expect_refused(with_layers("[7, 8]"), {"\"layers\"[0] is 7", "a list"});
}

TEST(RoutingFileTest, WrongFieldsAreRefused) {
  expect_refused("[]", {"expected an object", "--record-routing"});
  expect_refused("{}", {"\"model\" is missing"});
  expect_refused(R"({"model": "toy", "model": "toy"})", {"stands twice"});
  expect_refused(R"({"model": 3})", {"\"model\" is 3"});
  expect_refused(R"({"model": "toy", "rows": 0})", {"\"rows\" is 0", "from 1"});
  expect_refused(R"({"model": "toy", "rows": -3})", {"\"rows\" is -3"});
  expect_refused(R"({"model": "toy", "rows": 1.5})", {"\"rows\" is 1.5"});
  expect_refused(R"({"model": "toy", "rows": 9})", {"\"layers\" is missing"});
  expect_refused(R"({"model": "toy", "rows": 10, "layers": [[10, 5, 5, 0], [2, 8, 2, 8]]})",
                 {"\"touched_by_rows\" is missing"});
}

TEST(RoutingFileTest, WrongTouchesAreRefused) {
  expect_refused(with_touched("3"), {"\"touched_by_rows\" is 3"});
  expect_refused(with_touched("{\"2\": 3}"), {"\"touched_by_rows\" is an object", "a list"});
  expect_refused(with_touched("[[2, 3], 4]"), {"\"touched_by_rows\"[1] is 4", "a pair"});
  expect_refused(with_touched("[[2, 3, 4]]"), {"\"touched_by_rows\"[0]", "a pair"});
  expect_refused(with_touched("[[2, 3], [2, 3]]"), {"[1] is of 2 rows", "expected more"});
  expect_refused(with_touched("[[0, 3]]"), {"[0][0] is 0"});
  expect_refused(with_touched("[[2, 4.5]]"), {"[0][1] is 4.5", "2 to 4"});
  expect_refused(with_touched("[[1, 3]]"), {"[0][1] is 3", "2 to 2"});
  expect_refused(with_touched("[[2, null]]"), {"[0][1] is null"});
}

}  // namespace
}  // namespace sluice
