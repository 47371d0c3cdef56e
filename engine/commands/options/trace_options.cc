#include "engine/commands/options/trace_options.h"

#include "engine/commands/options/command_line.h"

namespace sluice {

void declare_trace_option(CommandLine& line) {
  line.options().add_options()  //
      ("trace", boost::program_options::value<std::string>(),
       "record the run into this folder, for sluice trace, ViTE, pajeng and Perfetto");
}

std::optional<std::string> read_trace_folder(const CommandLine& line) {
  if (!line.given("trace")) return std::nullopt;
  return line.get<std::string>("trace");
}

}  // namespace sluice
