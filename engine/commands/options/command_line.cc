#include "engine/commands/options/command_line.h"

#include <cmath>
#include <iostream>

#include "base/error.h"
#include "base/json.h"
#include "base/nearest_word.h"

namespace sluice {
namespace po = boost::program_options;

namespace {

/// Refuses what Boost lets pass: values of no option, and options taken for the value of the one
/// before them.
void check_values(const po::option& option, const po::options_description& known) {
  if (option.position_key >= 0) {
    throw UsageError("stray argument {}; every value belongs to an option, --help lists them",
                     quote(option.value.front()));
  }
  if (option.original_tokens.size() < 2) return;
  const std::string& value = option.original_tokens[1];
  if (!value.starts_with("--")) return;
  if (known.find_nothrow(value.substr(2, value.find('=') - 2), false) == nullptr) return;
  throw UsageError("the value of {0} is missing before {1}; if {1} is the value, write {0}={1}",
                   option.original_tokens[0], value);
}

/// `-batch 8` would be the letter b with the value "atch".
void check_dashes(const CommandLine::Arguments& arguments, const po::options_description& known) {
  for (const std::string& argument : arguments) {
    if (argument.size() <= 2 || argument[0] != '-' || argument[1] == '-') continue;
    const std::string name = argument.substr(1, argument.find('=') - 1);
    if (name.size() > 1 && known.find_nothrow(name, false) != nullptr)
      throw UsageError("unknown option -{0}; did you mean --{0}?", name);
  }
}

thread_local HelpCollector* collector = nullptr;

}  // namespace

HelpCollector::HelpCollector() { collector = this; }
HelpCollector::~HelpCollector() { collector = nullptr; }

CommandLine::CommandLine(std::string usage, std::string description)
    : usage_(std::move(usage)),
      description_(std::move(description)),
      options_("Options", 100, 60) {}

CommandHelp CommandLine::help() const {
  CommandHelp help{usage_, description_, accepts_operand_, {}};
  for (const auto& option : options_.options()) {
    const bool takes_value = option->semantic()->max_tokens() > 0;
    const std::string names = option->format_name();  // "-h [ --help ]"
    const bool has_letter = names.size() > 2 && names[0] == '-' && names[1] != '-';
    help.options.push_back({option->long_name(), has_letter ? names[1] : '\0',
                            option->description(), takes_value,
                            takes_value ? option->format_parameter() : ""});
  }
  return help;
}

bool CommandLine::parse(const Arguments& arguments) {
  options_.add_options()("help,h", "print this help");
  if (collector != nullptr) {
    collector->set(help());
    return false;
  }
  check_dashes(arguments, options_);
  try {
    const po::parsed_options parsed =
        po::command_line_parser(arguments)
            .options(options_)
            .style(po::command_line_style::default_style & ~po::command_line_style::allow_guessing)
            .run();
    for (const po::option& option : parsed.options) {
      if (option.position_key == 0 && accepts_operand_) {
        operand_ = option.value.front();
      } else {
        check_values(option, options_);
      }
    }
    po::store(parsed, values_);
    if (values_.count("help") != 0) {
      std::cout << "Usage: " << usage_ << "\n\n" << description_ << "\n\n" << options_;
      return false;
    }
    po::notify(values_);
  } catch (const po::unknown_option& error) {
    const std::string given = error.get_option_name().substr(0, error.get_option_name().find('='));
    std::string word = given;
    word.erase(0, word.find_first_not_of('-'));
    std::vector<std::string> known;
    for (const auto& option : options_.options()) known.push_back(option->long_name());
    if (word == "domains")
      throw UsageError("--domains is gone; --cpu-plan static has a group for each NUMA node");
    const std::string nearest = nearest_word(word, known);
    const std::string hint =
        nearest.empty() ? "--help lists the options" : "did you mean --" + nearest + "?";
    throw UsageError("unknown option {}; {}", given, hint);
  } catch (const po::error& error) {
    throw UsageError("{}; --help lists the options", error.what());
  }
  return true;
}

std::uint64_t parse_size_bytes(const std::string& text, const std::string& option) {
  std::size_t used = 0;
  double number = -1;
  try {
    number = std::stod(text, &used);
  } catch (const std::exception&) {
    number = -1;
  }
  const std::string unit = text.substr(used);
  constexpr double kibi = 1024;
  constexpr double kilo = 1000;
  double factor = 0;
  if (unit.empty() || unit == "B") factor = 1;
  if (unit == "KiB") factor = kibi;
  if (unit == "MiB") factor = kibi * kibi;
  if (unit == "GiB") factor = kibi * kibi * kibi;
  if (unit == "TiB") factor = kibi * kibi * kibi * kibi;
  if (unit == "KB" || unit == "kB") factor = kilo;
  if (unit == "MB") factor = kilo * kilo;
  if (unit == "GB") factor = kilo * kilo * kilo;
  if (unit == "TB") factor = kilo * kilo * kilo * kilo;
  if (!std::isfinite(number) || number < 0 || factor == 0 || number * factor > 1e18) {
    throw UsageError("--{} {}: expected a size like 20GiB or 512MiB", option, text);
  }
  return static_cast<std::uint64_t>(number * factor);
}

}  // namespace sluice
