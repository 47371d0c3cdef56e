#include "engine/commands/options/policy_options.h"

#include <vector>

#include "base/error.h"
#include "engine/commands/options/command_line.h"

namespace sluice {

namespace po = boost::program_options;

void declare_policy_options(CommandLine& line) {
  line.options().add_options()  //
      ("policy", po::value<std::string>(),
       "what runs where: a policy's name, or the file of one's own, e.g. ./mine.so; without it, "
       "the "
       "fastest by prediction")  //
      ("policy-option", po::value<std::vector<std::string>>(),
       "key=value for the policy; may be given again");
}

std::map<std::string, std::string> read_policy_options(const CommandLine& line) {
  std::map<std::string, std::string> options;
  if (!line.given("policy-option")) return options;
  for (const std::string& text : line.get<std::vector<std::string>>("policy-option")) {
    const std::size_t equals = text.find('=');
    if (equals == 0 || equals == std::string::npos || equals + 1 == text.size())
      throw UsageError("--policy-option {}: expected key=value", text);
    const auto [there, added] = options.emplace(text.substr(0, equals), text.substr(equals + 1));
    if (!added) throw UsageError("--policy-option {}: {} is given twice", text, there->first);
  }
  return options;
}

PolicySettings read_policy(const CommandLine& line) {
  PolicySettings settings;
  settings.options = read_policy_options(line);
  if (line.given("policy")) {
    settings.name = line.get<std::string>("policy");
  } else if (!settings.options.empty()) {
    throw UsageError("--policy-option {}=...: give the --policy that it is for",
                     settings.options.begin()->first);
  }
  return settings;
}

}  // namespace sluice
