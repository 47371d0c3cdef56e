#pragma once

#include <optional>
#include <string>

namespace sluice {

class CommandLine;

/// --trace of the commands that run a model.
void declare_trace_option(CommandLine& line);
/// The folder that it names, as it was given; nothing without it.
std::optional<std::string> read_trace_folder(const CommandLine& line);

}  // namespace sluice
