#include "engine/commands/options/command_line.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/nearest_word.h"

namespace sluice {
namespace {

CommandLine example() {
  namespace po = boost::program_options;
  CommandLine line("sluice example [options]", "An example.");
  line.options().add_options()("batch", po::value<std::int64_t>()->default_value(1), "a number")(
      "prompt", po::value<std::string>(), "a text")("stop", po::value<std::vector<std::string>>(),
                                                    "several texts")("quiet,q", po::bool_switch(),
                                                                     "a switch");
  return line;
}

void expect_usage_error(const CommandLine::Arguments& arguments,
                        std::initializer_list<std::string_view> parts) {
  CommandLine line = example();
  try {
    line.parse(arguments);
    ADD_FAILURE() << "accepted: " << arguments.front();
  } catch (const UsageError& error) {
    const std::string message = error.what();
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    for (const std::string_view part : parts) {
      EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' is not in: " << message;
    }
  }
}

TEST(CommandLineTest, ReadsOptions) {
  CommandLine line = example();
  ASSERT_TRUE(line.parse({"--batch", "3", "--prompt=-x", "--stop", "a", "--stop", "b", "-q"}));
  EXPECT_EQ(line.get<std::int64_t>("batch"), 3);
  EXPECT_EQ(line.get<std::string>("prompt"), "-x");
  EXPECT_EQ(line.get<std::vector<std::string>>("stop"), (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(line.get<bool>("quiet"));
}

TEST(CommandLineTest, DefaultsAreNotGiven) {
  CommandLine line = example();
  ASSERT_TRUE(line.parse({}));
  EXPECT_FALSE(line.given("batch"));
  EXPECT_FALSE(line.given("prompt"));
  EXPECT_EQ(line.get<std::int64_t>("batch"), 1);
}

TEST(CommandLineTest, HelpIsPrintedAndNothingElseRead) {
  ::testing::internal::CaptureStdout();
  CommandLine line = example();
  EXPECT_FALSE(line.parse({"--help", "--batch", "2"}));
  const std::string help = ::testing::internal::GetCapturedStdout();
  for (const char* part : {"Usage: sluice example [options]", "An example.", "--batch", "--stop"}) {
    EXPECT_NE(help.find(part), std::string::npos) << part;
  }
}

TEST(CommandLineTest, UnknownOptionIsRefusedWithTheNearestOne) {
  expect_usage_error({"--bacth", "3"}, {"unknown option --bacth", "did you mean --batch?"});
  expect_usage_error({"--bacth=3"}, {"unknown option --bacth;", "did you mean --batch?"});
  expect_usage_error({"--zzzzzzzz"}, {"unknown option --zzzzzzzz", "--help"});
  expect_usage_error({"-z"}, {"unknown option -z", "--help"});
}

TEST(CommandLineTest, OptionsAreNotGuessedFromTheirBeginning) {
  expect_usage_error({"--bat", "3"}, {"unknown option --bat", "--batch"});
}

TEST(CommandLineTest, MissingAndMalformedValuesAreRefused) {
  expect_usage_error({"--batch"}, {"--batch", "missing"});
  expect_usage_error({"--prompt", "--batch", "2"}, {"--prompt is missing", "--prompt=--batch"});
  expect_usage_error({"--prompt", "--batch=2"}, {"--prompt is missing", "--prompt=--batch=2"});
  expect_usage_error({"--batch", "x"}, {"--batch", "'x'"});
  expect_usage_error({"--batch", "1.5"}, {"--batch", "'1.5'"});
  expect_usage_error({"--batch", "99999999999999999999"}, {"--batch", "99999999999999999999"});
  expect_usage_error({"--batch", "2", "--batch", "3"}, {"--batch", "more than once"});
}

TEST(CommandLineTest, ValueMayBeginWithDashes) {
  CommandLine line = example();
  ASSERT_TRUE(line.parse({"--prompt", "-- he said", "--stop=--batch"}));
  EXPECT_EQ(line.get<std::string>("prompt"), "-- he said");
  EXPECT_EQ(line.get<std::vector<std::string>>("stop"), std::vector<std::string>{"--batch"});
}

TEST(CommandLineTest, StrayArgumentIsNamed) {
  expect_usage_error({"--prompt", "Once", "upon"}, {"stray argument", "\"upon\""});
}

TEST(NearestWordTest, FindsSlipsOfThePen) {
  const std::vector<std::string> known = {"generate", "info", "make-model"};
  EXPECT_EQ(nearest_word("genrate", known), "generate");
  EXPECT_EQ(nearest_word("makemodel", known), "make-model");
  EXPECT_EQ(nearest_word("inf", known), "info");
  EXPECT_EQ(nearest_word("info", known), "info");
}

TEST(NearestWordTest, GivesNothingWhenNoneIsNear) {
  EXPECT_EQ(nearest_word("xyzzy", {"generate", "make-model"}), "");
  EXPECT_EQ(nearest_word("xyzzy", {}), "");
}

TEST(NearestWordTest, ListsAreInOrderBehindTheNearestWord) {
  using Words = std::vector<std::string>;
  const Words known = {"opt-13b", "llama-3-8b", "opt-6.7b", "opt-125m", "bloom-176b", "opt-1.3b"};
  EXPECT_EQ(nearest_first("zzzzzzzz", known),
            (Words{"bloom-176b", "llama-3-8b", "opt-1.3b", "opt-6.7b", "opt-13b", "opt-125m"}));
  EXPECT_EQ(nearest_first("opt-12b", known).front(), nearest_word("opt-12b", known));
  EXPECT_EQ(nearest_first("opt-6b", known),
            (Words{"opt-6.7b", "bloom-176b", "llama-3-8b", "opt-1.3b", "opt-13b", "opt-125m"}));
  EXPECT_EQ(nearest_first("a", {"a7", "a07", "a", "a7b"}), (Words{"a", "a07", "a7", "a7b"}));
  EXPECT_TRUE(nearest_first("a", {}).empty());
}

TEST(ParseSizeTest, ReadsUnits) {
  EXPECT_EQ(parse_size_bytes("123", "ddr"), 123U);
  EXPECT_EQ(parse_size_bytes("7B", "ddr"), 7U);
  EXPECT_EQ(parse_size_bytes("2KiB", "ddr"), 2048U);
  EXPECT_EQ(parse_size_bytes("3kB", "ddr"), 3000U);
  EXPECT_EQ(parse_size_bytes("512MiB", "ddr"), 512ULL << 20);
  EXPECT_EQ(parse_size_bytes("20GiB", "ddr"), 20ULL << 30);
  EXPECT_EQ(parse_size_bytes("1.5GB", "ddr"), 1500000000ULL);
  EXPECT_EQ(parse_size_bytes("0.5TiB", "ddr"), 1ULL << 39);
}

TEST(ParseSizeTest, RefusesWhatIsNoSize) {
  for (const char* text : {"", "GiB", "lots", "-1", "-1GiB", "5 GiB", "5GiBs", "5gib", "nan", "inf",
                           "infGiB", "1e30", "9999999999TiB", "1,5GB"}) {
    try {
      parse_size_bytes(text, "ddr");
      ADD_FAILURE() << "accepted '" << text << "'";
    } catch (const UsageError& error) {
      EXPECT_NE(std::string(error.what()).find(std::string("--ddr ") + text), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace sluice
