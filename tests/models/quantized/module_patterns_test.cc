#include "models/quantized/module_patterns.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace sluice {
namespace {

using testing::expect_error;

TEST(MatchesNameTest, ComparesWholeNames) {
  EXPECT_TRUE(matches_name("lm_head", "lm_head"));
  EXPECT_FALSE(matches_name("lm_head", "lm"));
  EXPECT_FALSE(matches_name("model.lm_head", "lm_head"));
}

TEST(MatchesNameTest, MatchesExpressionsFromTheFirstCharacterOn) {  // as Python's re.match
  EXPECT_TRUE(matches_name("lm_head", "re:lm"));
  EXPECT_TRUE(matches_name("model.layers.11.mlp", "re:.*mlp"));
  EXPECT_FALSE(matches_name("model.layers.11.mlp", "re:mlp"));
  EXPECT_TRUE(matches_name("model.layers.11.mlp", R"(re:model\.layers\.(1|11)\.)"));
  EXPECT_FALSE(matches_name("model.layers.11.mlp", R"(re:.*\.1\.)"));
  EXPECT_FALSE(matches_name("model.layers.11.mlp", "re:.*mlp.+"));
  EXPECT_FALSE(matches_name("b", "re:a|^c"));
}

TEST(MatchesNameTest, RefusesWhatIsNoExpression) {
  expect_error(
      [] {
        check_patterns({"Linear", "re:(a"}, "config.json: ignore");
      },
      {"config.json: ignore: \"(a\" is no regular expression", "at character 2"});
  EXPECT_NO_THROW(check_patterns({"(a", "re:(a)"}, "config.json"));
}

TEST(MatchesNameTest, GivesUpOnAnExpressionThatTakesForEver) {
  expect_error([] { matches_name(std::string(60, 'a'), "re:(a+)+[bc]"); },
               {"gave up on the name \"aaa"});
}

/// A scheme that is told by its group.
QuantizationScheme scheme(std::uint16_t group, std::vector<std::string> targets) {
  return {.format = {.codes = WeightFormat::Codes::int4, .group = group},
          .targets = std::move(targets)};
}

int group_of(const QuantizationConfig& config, std::string_view module,
             std::string_view of_class = "Linear") {
  const QuantizationScheme* found = scheme_of(config, module, of_class);
  return found == nullptr ? -1 : found->format.group;
}

TEST(SchemeOfTest, PrefersNamesThenExpressionsThenClasses) {
  QuantizationConfig config;
  config.schemes = {scheme(1, {"Linear"}), scheme(2, {"re:a.*"}), scheme(3, {"a.b", "Embedding"}),
                    scheme(4, {"re:a.b.*"})};
  EXPECT_EQ(group_of(config, "c"), 1);
  EXPECT_EQ(group_of(config, "a.c"), 2);
  EXPECT_EQ(group_of(config, "a.b"), 3);
  EXPECT_EQ(group_of(config, "a.b.c"), 2);  // "re:a.*" stands in front by the alphabet
  EXPECT_EQ(group_of(config, "c", "Embedding"), 3);
  EXPECT_EQ(group_of(config, "c", "Conv1d"), -1);
}

TEST(SchemeOfTest, LeavesOutWhatIsIgnoredByNameExpressionOrClass) {
  QuantizationConfig config;
  config.schemes = {scheme(1, {"Linear", "Embedding", "lm_head"})};
  config.ignored = {"lm_head", "re:.*mlp", "Embedding"};
  EXPECT_EQ(group_of(config, "lm_head"), -1);
  EXPECT_EQ(group_of(config, "a.mlp.up"), -1);
  EXPECT_EQ(group_of(config, "embed", "Embedding"), -1);
  EXPECT_EQ(group_of(config, "a.attn"), 1);
}

TEST(SchemeOfTest, TakesTheLastOfEqualTargets) {
  QuantizationConfig config;
  config.schemes = {scheme(1, {"Linear"}), scheme(2, {"Linear"})};
  EXPECT_EQ(group_of(config, "a"), 2);
}

/// The cases of Transformers' own comment, and some more.
TEST(IsConvertedTest, ComparesAsTransformersDoes) {
  EXPECT_FALSE(is_converted("layer.1.attn", {"layer.1"}));
  EXPECT_TRUE(is_converted("layer.11.attn", {"layer.1"}));
  EXPECT_FALSE(is_converted("layer.11.attn", {"layer.*"}));
  EXPECT_TRUE(is_converted("mlp.gate_proj", {"mlp.gate"}));
  EXPECT_FALSE(is_converted("model.decoder.layers.23.fc1", {"fc1"}));
  EXPECT_FALSE(is_converted("lm_head", {"a", "lm_head"}));
  EXPECT_FALSE(is_converted("b.c", {"a|b"}));
  EXPECT_TRUE(is_converted("lm_head", {}));
}

}  // namespace
}  // namespace sluice
