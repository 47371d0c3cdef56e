#pragma once

#include <span>
#include <string>

#include "engine/commands/options/command_line.h"

namespace sluice {

/// A subcommand, as the overview lists it.
struct NamedCommand {
  std::string name;
  std::string summary;
  CommandHelp help;
};

/// What `bash` or `zsh` sources to complete sluice's commands, options and files.
std::string bash_completion(std::span<const NamedCommand> commands);
std::string zsh_completion(std::span<const NamedCommand> commands);
/// sluice(1), in man's macros.
std::string man_page(std::span<const NamedCommand> commands, const std::string& version);

}  // namespace sluice
