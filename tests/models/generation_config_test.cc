#include "models/generation_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "tests/support/expect_error.h"

namespace sluice {
namespace {

using nlohmann::json;
using testing::expect_error;
using Ids = std::vector<std::int32_t>;

GenerationConfig parse(const std::string& text) {
  return parse_generation_config(text, "dir/generation_config.json");
}

std::vector<std::string> warnings(const std::string& text, bool samples = true) {
  return warnings_of(parse(text), samples);
}

TEST(GenerationConfigTest, ReadsWhatIsThere) {
  const auto defaults = parse(
      R"({"do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05,
          "repetition_penalty": 1.1, "eos_token_id": [3, 4], "min_new_tokens": 5,
          "suppress_tokens": [7, 2], "begin_suppress_tokens": [9], "stop_strings": ["a", "b"],
          "transformers_version": "4.40.0"})");
  EXPECT_EQ(defaults.do_sample, true);
  EXPECT_EQ(defaults.temperature, 0.6F);
  EXPECT_EQ(defaults.top_p, 0.9F);
  EXPECT_EQ(defaults.top_k, 20);
  EXPECT_EQ(defaults.min_p, 0.05F);
  EXPECT_EQ(defaults.repetition_penalty, 1.1F);
  EXPECT_EQ(defaults.eos_token_ids, (Ids{3, 4}));
  EXPECT_EQ(defaults.min_new_tokens, 5);
  EXPECT_EQ(defaults.suppress_tokens, (Ids{7, 2}));
  EXPECT_EQ(defaults.begin_suppress_tokens, (Ids{9}));
  EXPECT_EQ(defaults.stop_strings, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(warnings_of(defaults, true).empty());
}

TEST(GenerationConfigTest, LeavesOutWhatIsMissingOrNull) {
  const json golden = json::parse(read_file(SLUICE_TEST_DATA_DIR "/golden/generation.json"));
  for (const auto& [name, value] : golden.at("fields").items()) {
    const auto defaults = parse(json{{value.get<std::string>(), nullptr}}.dump());
    EXPECT_FALSE(defaults.do_sample || defaults.temperature || defaults.top_p || defaults.top_k ||
                 defaults.min_p || defaults.repetition_penalty || defaults.min_new_tokens)
        << value;
    EXPECT_TRUE(defaults.eos_token_ids.empty() && defaults.suppress_tokens.empty() &&
                defaults.begin_suppress_tokens.empty() && defaults.stop_strings.empty())
        << value;
    EXPECT_TRUE(warnings_of(defaults, true).empty()) << value;
  }
}

TEST(GenerationConfigTest, RefusesValuesOutOfRange) {
  const auto refused = [](const std::string& text, std::initializer_list<std::string_view> parts) {
    expect_error([&] { parse(text); }, parts);
  };
  refused(R"({"temperature": -1})", {"generation_config.json", "temperature is -1"});
  refused(R"({"top_p": 1.5})", {"top_p is 1.5"});
  refused(R"({"top_k": "many"})", {"top_k is \"many\""});
  refused(R"({"top_k": 2.5})", {"top_k is 2.5"});
  refused(R"({"do_sample": "yes"})", {"do_sample is \"yes\""});
  refused(R"({"repetition_penalty": 0})", {"repetition_penalty is 0"});
  refused(R"({"eos_token_id": "x"})", {"eos_token_id is \"x\""});
  refused(R"({"min_new_tokens": 1e300})", {"min_new_tokens is 1e+300"});
  refused(R"({"stop_strings": ["a", ""]})", {"stop_strings", "not empty"});
  refused(R"({"stop_strings": ""})", {"stop_strings", "not empty"});
  refused(R"({"stop_strings": [1]})", {"stop_strings"});
}

// What people write for "off", and numbers as another program writes them.
TEST(GenerationConfigTest, TakesNumbersHoweverTheyAreWritten) {
  EXPECT_EQ(parse(R"({"top_k": -1})").top_k, 0);
  EXPECT_EQ(parse(R"({"top_k": 0})").top_k, 0);
  EXPECT_EQ(parse(R"({"top_k": 50.0})").top_k, 50);
  EXPECT_EQ(parse(R"({"temperature": 1, "top_p": 1})").temperature, 1.0F);
  EXPECT_EQ(parse(R"({"top_p": 1})").top_p, 1.0F);
  EXPECT_EQ(parse(R"({"min_new_tokens": 5.0})").min_new_tokens, 5);
  EXPECT_EQ(parse(R"({"eos_token_id": -1})").eos_token_ids, Ids{});
  EXPECT_EQ(parse(R"({"eos_token_id": [-1, 4, 5.0]})").eos_token_ids, (Ids{4, 5}));
  EXPECT_EQ(parse(R"({"suppress_tokens": [-1]})").suppress_tokens, Ids{});
  EXPECT_NO_THROW(parse(R"({"max_length": 20.0, "max_new_tokens": -1, "pad_token_id": -1})"));
}

TEST(GenerationConfigTest, MinimumCountsNewTokens) {
  EXPECT_EQ(parse(R"({})").min_new_tokens_after(7), 0);
  EXPECT_EQ(parse(R"({"min_length": 10})").min_new_tokens_after(7), 3);
  EXPECT_EQ(parse(R"({"min_length": 10})").min_new_tokens_after(12), 0);
  EXPECT_EQ(parse(R"({"min_length": 10, "min_new_tokens": 1})").min_new_tokens_after(7), 1);
  EXPECT_EQ(parse(R"({"min_new_tokens": -4})").min_new_tokens_after(7), 0);
}

TEST(GenerationConfigTest, EveryFieldOfTransformersHasAPlaceInTheTable) {
  const json golden = json::parse(read_file(SLUICE_TEST_DATA_DIR "/golden/generation.json"));
  EXPECT_GT(golden["fields"].size(), 60U);
  for (const auto& name : golden["fields"])
    EXPECT_TRUE(effect_of_field(name.get<std::string>()).has_value()) << name;
  EXPECT_EQ(effect_of_field("chat_format"), std::nullopt);
}

// Values that change what Transformers generates, and values that do not.
TEST(GenerationConfigTest, FieldsThatAreNotDoneAreNamedUnlessTheyAreNeutral) {
  struct Case {
    std::string field;
    std::string changes;
    std::vector<std::string> neutral;
  };
  const std::vector<Case> cases = {{"num_beams", "4", {"1", "1.0"}},
                                   {"num_beam_groups", "2", {"1"}},
                                   {"penalty_alpha", "0.6", {"0", "0.0"}},
                                   {"encoder_repetition_penalty", "1.2", {"1.0"}},
                                   {"no_repeat_ngram_size", "3", {"0"}},
                                   {"encoder_no_repeat_ngram_size", "2", {"0"}},
                                   {"bad_words_ids", "[[5, 6]]", {"[]"}},
                                   {"sequence_bias", "[[[5], -1.0]]", {"[]", "{}"}},
                                   {"forced_bos_token_id", "0", {}},
                                   {"forced_eos_token_id", "2", {}},
                                   {"guidance_scale", "1.5", {"1", "1.0"}},
                                   {"exponential_decay_length_penalty", "[5, 1.1]", {}},
                                   {"watermarking_config", "{\"bias\": 2.0}", {}},
                                   {"token_healing", "true", {"false"}},
                                   {"max_time", "3.5", {}},
                                   {"num_return_sequences", "2", {"1"}},
                                   {"dola_layers", "\"low\"", {}},
                                   {"constraints", "[1]", {"[]"}},
                                   {"force_words_ids", "[[1]]", {"[]"}},
                                   {"typical_p", "0.9", {"1.0", "1"}},
                                   {"epsilon_cutoff", "3e-4", {"0.0"}},
                                   {"eta_cutoff", "3e-4", {"0.0"}},
                                   {"top_h", "0.4", {}}};
  const auto warnings_with = [](const std::string& field, const std::string& value) {
    return warnings("{\"" + field + "\": " + value + "}");
  };
  for (const Case& one : cases) {
    const auto found = warnings_with(one.field, one.changes);
    ASSERT_EQ(found.size(), 1U) << one.field;
    for (const std::string& part : {std::string("dir/generation_config.json"), one.field + " is "})
      EXPECT_NE(found[0].find(part), std::string::npos) << found[0];
    for (const std::string& value : one.neutral)
      EXPECT_TRUE(warnings_with(one.field, value).empty()) << one.field << " " << value;
  }
}

TEST(GenerationConfigTest, FieldsOfRandomDrawsMatterOnlyToThem) {
  const std::string text = R"({"typical_p": 0.9, "num_beams": 2})";
  EXPECT_EQ(warnings(text, true).size(), 2U);
  ASSERT_EQ(warnings(text, false).size(), 1U);
  EXPECT_NE(warnings(text, false)[0].find("num_beams is 2"), std::string::npos);
}

TEST(GenerationConfigTest, LongValuesAreCut) {
  const json words(500, json::array({1, 2, 3}));
  const auto found = warnings(json{{"bad_words_ids", words}}.dump());
  ASSERT_EQ(found.size(), 1U);
  EXPECT_LT(found[0].size(), 300U);
}

}  // namespace
}  // namespace sluice
