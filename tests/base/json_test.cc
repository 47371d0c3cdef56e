#include "base/json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace sluice {
namespace {

using nlohmann::json;

std::string refusal(std::string_view text, DuplicateKeys duplicates, int deepest = 100) {
  try {
    parse_json(text, "a.json", duplicates, deepest);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ParseJsonTest, RefusesKeysThatStandTwiceWhereAsked) {
  // The same name in two objects is another matter.
  const char* apart = R"({"a": {"b": 1}, "c": [{"b": 2}, {"b": 3}], "b": 4})";
  const char* twice = R"({"a": [{"b": 1, "c": {}, "b": 2}]})";
  EXPECT_EQ(refusal(apart, DuplicateKeys::refuse), "no error");
  EXPECT_EQ(refusal(twice, DuplicateKeys::last_wins), "no error");
  EXPECT_EQ(refusal(twice, DuplicateKeys::refuse),
            "a.json: key \"b\" stands twice in one JSON object; keep one, or get the file again");
  EXPECT_EQ(parse_json(twice, "a.json", DuplicateKeys::last_wins)["a"][0]["b"], 2);
}

TEST(ParseJsonTest, RefusesNulBytes) {
  const std::string_view padded("{}\0\0", 4);
  for (const DuplicateKeys duplicates : {DuplicateKeys::refuse, DuplicateKeys::last_wins})
    EXPECT_EQ(refusal(padded, duplicates),
              "a.json: not valid JSON: there is a NUL byte at offset 2");
}

TEST(QuoteNonFiniteTest, QuotesWhatPythonWritesOutsideOfTexts) {
  EXPECT_EQ(quote_non_finite(R"({"a": NaN, "b": [-Infinity, Infinity]})"),
            R"({"a": "NaN", "b": ["-Infinity", "Infinity"]})");
  const std::string texts = R"({"NaN": "Infinity \" NaN \\", "b": "\\"})";
  EXPECT_EQ(quote_non_finite(texts), texts);
  EXPECT_EQ(quote_non_finite("\"\\"), "\"\\");
  EXPECT_EQ(quote_non_finite(""), "");
}

TEST(ParseJsonTest, RefusesWhatIsNestedTooDeep) {
  EXPECT_EQ(refusal("[[[1]]]", DuplicateKeys::refuse, 3), "no error");
  for (const DuplicateKeys duplicates : {DuplicateKeys::refuse, DuplicateKeys::last_wins}) {
    EXPECT_EQ(refusal("[[[[1]]]]", duplicates, 3),
              "a.json: nested deeper than 3 levels, which no such file is");
  }
}

TEST(ParseJsonTest, NothingIsNestedForEver) {
  const auto nested = [](std::size_t levels) {
    return std::string(levels, '[') + std::string(levels, ']');
  };
  EXPECT_NO_THROW(parse_json(nested(500), "a.json", DuplicateKeys::last_wins));
  for (const std::size_t levels : {std::size_t{501}, std::size_t{100000}})
    EXPECT_THROW(parse_json(nested(levels), "a.json", DuplicateKeys::last_wins), Error);
  // Brackets in texts are none, whatever quotes are in them.
  const std::string text = R"(["\\", "\"[[[[[[[[", "[[[\\"])";
  EXPECT_EQ(refusal(text, DuplicateKeys::last_wins, 1), "no error");
}

TEST(ParseJsonTest, SaysInOneLineWhatIsNoJson) {
  for (const char* text : {"", "{", "[1,]", "{\"a\": \n nul}", "\"\xff\"", "1e999"}) {
    const std::string complaint = refusal(text, DuplicateKeys::refuse);
    EXPECT_EQ(complaint.find("a.json: not valid JSON: "), 0U) << complaint;
    EXPECT_EQ(complaint.find('\n'), std::string::npos) << complaint;
  }
}

TEST(ParseJsonLineTest, NamesTheColumnOfALineThatItsPlaceNames) {
  EXPECT_EQ(parse_json_line(R"({"a": 1, "a": 2})", "x.jsonl, line 7")["a"], 2);
  try {
    (void)parse_json_line("{oops}", "x.jsonl, line 7");
    FAIL() << "it is no JSON";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find("x.jsonl, line 7: not valid JSON: "), 0U) << message;
    EXPECT_NE(message.find(" at column 2"), std::string::npos) << message;
    EXPECT_EQ(message.find("line 1"), std::string::npos) << message;
  }
}

TEST(ParseOrderedJsonTest, KeepsTheOrderOfKeys) {
  const std::string text = R"({"b":1,"a":[{"z":[],"y":{}},-2,2.5,"x",null,true],"C":{"b":{}}})";
  EXPECT_EQ(json_text(parse_ordered_json(text, "a.json")), text);
  EXPECT_EQ(json_text(parse_ordered_json(" 7 ", "a.json")), "7");
}

TEST(ParseOrderedJsonTest, LastOfEqualKeysCountsAtTheFirstOnesPlace) {
  const char* twice = R"({"a": {"x": 1}, "b": 2, "a": [3], "c": 4, "b": 5, "a": 6})";
  EXPECT_EQ(json_text(parse_ordered_json(twice, "a.json")), R"({"a":6,"b":5,"c":4})");
}

TEST(ParseOrderedJsonTest, TakesManyKeys) {
  std::string text = "{\"k\":0";
  constexpr int num_keys = 300'000;  // a search for each would take minutes
  for (int i = 1; i < num_keys; ++i) text += fmt::format(",\"k{}\":{}", i, i);
  const auto parsed = parse_ordered_json(text + "}", "a.json");
  EXPECT_EQ(parsed.size(), num_keys);
  EXPECT_EQ(parsed.back(), num_keys - 1);
}

TEST(ParseOrderedJsonTest, RefusesWhatTheOtherParserRefuses) {
  const auto refused = [](std::string_view text) {
    try {
      parse_ordered_json(text, "a.json", 2);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  for (const char* text :
       {"", "{", "[1,]", "{\"a\": \n nul}", "\"\xff\"", "1e999", "[[[1]]]", "1 2"})
    EXPECT_EQ(refused(text), refusal(text, DuplicateKeys::last_wins, 2)) << text;
  EXPECT_EQ(refused(std::string_view("{}\0", 3)),
            "a.json: not valid JSON: there is a NUL byte at offset 2");
}

TEST(JsonTextTest, ReplacesWhatIsNoUtf8) {
  EXPECT_EQ(json_text(json{{"a", "x\xff"}}), "{\"a\":\"x\xEF\xBF\xBD\"}");
  EXPECT_EQ(json_text(nlohmann::ordered_json{{"b", 1}, {"a", 2}}, 1),
            "{\n \"b\": 1,\n \"a\": 2\n}");
}

TEST(DescribeTest, ShowsWhatIsShort) {
  EXPECT_EQ(describe(json{{"a", 1}}), "an object");
  EXPECT_EQ(describe(json{1, 2}), "[1,2]");
  EXPECT_EQ(describe(json{1, 2, 3, 4, 5}), "a list of 5");
  EXPECT_EQ(describe(json{1, json::array()}), "a list of 2");
  EXPECT_EQ(describe("a\nb"), "\"a\\nb\"");
  EXPECT_EQ(describe(std::string(1000, 'a')),
            "\"" + std::string(60, 'a') + "...[1000 bytes]..." + std::string(20, 'a') + "\"");
  EXPECT_EQ(describe(json()), "null");
}

}  // namespace
}  // namespace sluice
