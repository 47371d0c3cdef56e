#include "engine/commands/options/weight_options.h"

#include "base/error.h"
#include "models/model.h"

namespace sluice {

void WeightChoice::use_on(const std::string& model, ModelConfig& config) const {
  if (!layers && !head) return;
  if (names_model(model)) {
    throw UsageError(
        "--{} is for shapes, which get random weights; {} has its own: sluice quantize writes a "
        "folder in another format",
        layers ? "weights" : "head-weights", model);
  }
  try {
    set_formats(layers.value_or(WeightFormat()), head.value_or(WeightFormat()), config);
  } catch (const Error& error) {
    throw UsageError("{}: {}", model, error.what());
  }
}

std::vector<std::string> WeightChoice::arguments() const {
  std::vector<std::string> arguments;
  if (layers) arguments.insert(arguments.end(), {"--weights", to_string(*layers)});
  if (head) arguments.insert(arguments.end(), {"--head-weights", to_string(*head)});
  return arguments;
}

void declare_weight_options(CommandLine& line) {
  namespace po = boost::program_options;
  line.options().add_options()  //
      ("weights", po::value<std::string>(),
       "of a shape: how its layers' weights are stored: int4-g32, int8-g128z, mxfp4... (default: "
       "plain)")  //
      ("head-weights", po::value<std::string>(), "the same of its LM head (default: plain)");
}

WeightFormat read_weight_format(const CommandLine& line, const std::string& option) {
  try {
    return parse_weight_format(line.get<std::string>(option));
  } catch (const Error& error) {
    throw UsageError("--{}: {}", option, error.what());
  }
}

WeightChoice read_weight_choice(const CommandLine& line) {
  WeightChoice choice;
  if (line.given("weights")) choice.layers = read_weight_format(line, "weights");
  if (line.given("head-weights")) choice.head = read_weight_format(line, "head-weights");
  return choice;
}

}  // namespace sluice
