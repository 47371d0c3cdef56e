#include "engine/commands/options/point_options.h"

#include "base/error.h"
#include "engine/commands/options/command_line.h"
#include "engine/commands/options/mixture_options.h"
#include "engine/commands/options/output_options.h"
#include "engine/commands/options/policy_options.h"
#include "engine/commands/options/tier_options.h"
#include "engine/commands/options/weight_options.h"
#include "engine/plan/policy_choice.h"

namespace sluice {

namespace po = boost::program_options;

void declare_points(CommandLine& line) {
  line.options().add_options()  //
      ("model,m", po::value<std::string>()->default_value("opt-30b"),
       "shape, or Hugging Face folder; a list")  //
      ("machine", po::value<std::string>()->default_value("spr-a100"),
       "profile of a machine: a known name, a .json file, or this: the one at hand, as sluice "
       "calibrate has measured it; a list")  //
      ("policy", po::value<std::string>()->default_value(any_policy),
       "name or shared object of a policy; a list; auto: the fastest of all that come with Sluice")(
          "policy-option", po::value<std::vector<std::string>>()->composing(),
          "KEY=VALUE for the policy; may be given several times")  //
      ("batch,b", po::value<std::string>()->default_value("1"),
       "sequences at once, or max: as many as fit; a list")  //
      ("input-tokens,p", po::value<std::string>()->default_value("512"),
       "tokens of each prompt; a list")  //
      ("output-tokens,n", po::value<std::string>()->default_value("128"),
       "tokens to generate for each sequence; a list")  //
      ("weight-bits", po::value<double>()->default_value(16),
       "16, or 4.5: groups of 4 bits with their scales, which are widened before they are "
       "multiplied");
  declare_weight_options(line);
  declare_mixture_options(line);
  declare_host_tiers(line);
}

PointLists read_points(const CommandLine& line) {
  constexpr std::int64_t most_tokens = std::int64_t{1} << 24;
  PointLists lists;
  lists.models = read_words(line, "model");
  lists.machines = read_words(line, "machine");
  lists.policies = read_words(line, "policy");
  lists.policy_options = read_policy_options(line);
  lists.batches = read_list(line, "batch", 1, most_sequences, NumberWord{"max", as_many_as_fit});
  lists.input_tokens = read_list(line, "input-tokens", 1, most_tokens);
  lists.output_tokens = read_list(line, "output-tokens", 1, most_tokens);
  lists.are_lengths_defaults = !line.given("input-tokens") && !line.given("output-tokens");
  lists.weight_bits = line.get<double>("weight-bits");
  if (lists.weight_bits != 16 && lists.weight_bits != 4.5)
    throw UsageError("--weight-bits {}: expected 16 or 4.5", lists.weight_bits);
  if (lists.weight_bits != 16 && line.given("weights"))
    throw UsageError("--weight-bits and --weights: give one of them");
  lists.host_tiers = read_host_tiers(line);
  return lists;
}

}  // namespace sluice
