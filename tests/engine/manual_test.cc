#include "engine/commands/manual.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <memory>

#include "base/files.h"
#include "tests/support/temporary_folder.h"

namespace sluice {
namespace {

namespace po = boost::program_options;

CommandHelp example_help() {
  const HelpCollector collector;
  CommandLine line("sluice example FILE [options]", "An example: it's short.");
  line.options().add_options()("batch", po::value<std::int64_t>()->default_value(4),
                               "a number [of rows]: any")("quiet,q", po::bool_switch(),
                                                          "don't speak");
  line.accept_operand();
  EXPECT_FALSE(line.parse({"--no-such-option"}));
  return collector.found();
}

std::vector<NamedCommand> example() { return {{"example", "what it's for: this", example_help()}}; }

TEST(ManualTest, ACommandLeavesItsHelpAndParsesNothing) {
  const CommandHelp help = example_help();
  EXPECT_EQ(help.usage, "sluice example FILE [options]");
  EXPECT_TRUE(help.takes_operand);
  ASSERT_EQ(help.options.size(), 3U);
  EXPECT_EQ(help.options[0].name, "batch");
  EXPECT_TRUE(help.options[0].takes_value);
  EXPECT_EQ(help.options[0].value, "arg (=4)");
  EXPECT_EQ(help.options[1].name, "quiet");
  EXPECT_EQ(help.options[1].letter, 'q');
  EXPECT_FALSE(help.options[1].takes_value);
  EXPECT_EQ(help.options[2].name, "help");
}

TEST(ManualTest, WithoutACollectorOptionsAreParsedAgain) {
  example_help();
  CommandLine line("sluice example", "An example.");
  EXPECT_TRUE(line.parse({}));
}

/// What bash prints after sourcing the completion.
std::string in_bash(const std::string& script) {
  const test::TemporaryFolder folder;
  write_file(folder.file("completion"), bash_completion(example()));
  const std::string command = "bash -c 'source " + folder.file("completion") + "; " + script + "'";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string out;
  for (int c = 0; (c = std::fgetc(pipe.get())) != EOF;) out += static_cast<char>(c);
  return out;
}

TEST(ManualTest, BashCompletesCommandsAndOptions) {
  EXPECT_EQ(in_bash("COMP_WORDS=(sluice ex); COMP_CWORD=1; _sluice; echo \"${COMPREPLY[@]}\""),
            "example\n");
  EXPECT_EQ(in_bash("COMP_WORDS=(sluice example --); COMP_CWORD=2; _sluice; "
                    "echo \"${COMPREPLY[@]}\""),
            "--batch --quiet --help\n");
}

TEST(ManualTest, ZshQuotesWhatItsOwnSyntaxUses) {
  const std::string text = zsh_completion(example());
  EXPECT_NE(text.find(R"('--batch[a number \[of rows\]\: any]:value:_files')"), std::string::npos)
      << text;
  EXPECT_NE(text.find(R"('--quiet[don'\''t speak]')"), std::string::npos) << text;
  EXPECT_NE(text.find(R"('example:what it'\''s for\: this')"), std::string::npos) << text;
}

TEST(ManualTest, TheManPageHasEveryCommandAndOption) {
  const std::string text = man_page(example(), "1.2.3");
  EXPECT_TRUE(text.starts_with(".TH SLUICE 1 \"\" \"sluice 1.2.3\"")) << text;
  EXPECT_NE(text.find(".SH example\n.B sluice example FILE [options]\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find(".B \\-\\-batch arg (=4)\na number [of rows]: any\n"), std::string::npos)
      << text;
  EXPECT_NE(text.find(".B \\-q, \\-\\-quiet\ndon't speak\n"), std::string::npos) << text;
}

TEST(ManualTest, TextAtTheStartOfALineIsNoMacro) {
  CommandHelp help{
      .usage = ".sluice", .description = "'a\n.b", .takes_operand = false, .options = {}};
  const std::vector<NamedCommand> commands = {{"x", "-", help}};
  const std::string text = man_page(commands, "1");
  EXPECT_NE(text.find("\\&'a\n\\&.b\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace sluice
