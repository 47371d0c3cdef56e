#include "engine/commands/options/tier_options.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <string_view>

#include "base/error.h"
#include "engine/commands/options/command_line.h"

namespace sluice {
namespace {

namespace po = boost::program_options;

constexpr std::string_view emulate_prefix = "emulate:";

/// Of "16", in GiB, or of "16GiB"; 0: it is no size.
std::uint64_t emulated_bytes(const std::string& text) {
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  if (text.empty() || !is_digit(text.front())) return 0;
  try {
    return parse_size_bytes(is_digit(text.back()) ? text + "GiB" : text, "cxl-nodes");
  } catch (const UsageError&) {
    return 0;
  }
}

CxlSettings read_cxl(const std::string& text) {
  CxlSettings settings;
  const auto refuse = [&] {
    return UsageError(
        "--cxl-nodes {}: expected NUMA nodes such as 2,3, or emulate:SIZE such as emulate:16GiB",
        text);
  };
  const auto number = [&](std::string_view digits) {
    int value = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < 0) throw refuse();
    return value;
  };
  if (text.starts_with(emulate_prefix)) {
    settings.emulated_bytes = emulated_bytes(text.substr(emulate_prefix.size()));
    if (settings.emulated_bytes == 0) throw refuse();
    return settings;
  }
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const int node = number(std::string_view(text).substr(begin, end - begin));
    if (std::find(settings.nodes.begin(), settings.nodes.end(), node) != settings.nodes.end())
      throw refuse();
    settings.nodes.push_back(node);
    begin = end + 1;
  }
  return settings;
}

/// One of `tiers`; `expected` names them.
std::optional<Tier> read_tier(const CommandLine& line, const std::string& option,
                              std::initializer_list<Tier> tiers, const char* expected) {
  if (!line.given(option)) return std::nullopt;
  const std::string& name = line.get<std::string>(option);
  const std::optional<Tier> tier = parse_tier(name);
  if (!tier || std::find(tiers.begin(), tiers.end(), *tier) == tiers.end())
    throw UsageError("--{} {}: expected {}", option, name, expected);
  return tier;
}

/// --kv-tier: DDR, CXL memory or a disk; empty when it was not given.
std::optional<Tier> read_kv_tier(const CommandLine& line) {
  return read_tier(line, "kv-tier", {Tier::ddr, Tier::cxl, Tier::disk}, "ddr, cxl or disk");
}

}  // namespace

void declare_tier_options(CommandLine& line, DryRunJson json) {
  line.options().add_options()  //
      ("ddr", po::value<std::string>(),
       "memory that the run's data may take, e.g. 20GiB; default: what is free, less 256 MiB")  //
      ("disk", po::value<std::string>(),
       "folder for packed weights that DDR has no room for, and for KV with --kv-tier disk; they "
       "are read from there ahead of use")  //
      ("cxl-nodes", po::value<std::string>(),
       "NUMA nodes without processors, e.g. 2,3, that the layers' weights are spread over; or "
       "emulate:SIZE, to test with")  //
      ("kv-tier", po::value<std::string>(),
       "ddr, with --cxl-nodes cxl, with --disk disk: where KV lives that is not in HBM; default: "
       "ddr, whatever the policy says")  //
      ("dry-run", po::bool_switch(), "print what the run would take of each tier, and end");
  if (json == DryRunJson::own_option)
    line.options().add_options()("json", po::bool_switch(), "with --dry-run: as JSON");
}

bool read_dry_run_json(const CommandLine& line, const TierSettings& tiers) {
  const bool json = line.get<bool>("json");
  if (json && !tiers.dry_run) throw UsageError("--json needs --dry-run");
  return json;
}

TierSettings read_tier_settings(const CommandLine& line) {
  TierSettings settings;
  if (line.given("ddr")) settings.ddr_bytes = parse_size_bytes(line.get<std::string>("ddr"), "ddr");
  if (line.given("disk")) {
    settings.disk = line.get<std::string>("disk");
    if (settings.disk->empty()) throw UsageError("--disk: give a folder");
  }
  if (line.given("cxl-nodes")) settings.cxl = read_cxl(line.get<std::string>("cxl-nodes"));
  settings.kv_tier = read_kv_tier(line).value_or(Tier::ddr);
  if (settings.kv_tier == Tier::cxl && !settings.cxl)
    throw UsageError("--kv-tier cxl: say with --cxl-nodes where CXL memory is");
  if (settings.kv_tier == Tier::disk && !settings.disk)
    throw UsageError("--kv-tier disk: say with --disk in which folder");
  settings.dry_run = line.get<bool>("dry-run");
  return settings;
}

void declare_host_tiers(CommandLine& line) {
  line.options().add_options()  //
      ("parameters-tier", po::value<std::string>(),
       "ddr or cxl: where layers' weights live that the policy leaves in either of them")  //
      ("kv-tier", po::value<std::string>(),
       "ddr, cxl or disk: where KV lives that the policy leaves in either of the first two");
}

HostTiers read_host_tiers(const CommandLine& line) {
  return {.parameters = read_tier(line, "parameters-tier", {Tier::ddr, Tier::cxl}, "ddr or cxl"),
          .kv = read_kv_tier(line)};
}

std::vector<std::string> arguments_of(const HostTiers& tiers) {
  std::vector<std::string> arguments;
  const auto add = [&](const char* option, std::optional<Tier> tier) {
    if (tier) arguments.insert(arguments.end(), {option, std::string(to_string(*tier))});
  };
  add("--parameters-tier", tiers.parameters);
  add("--kv-tier", tiers.kv);
  return arguments;
}

}  // namespace sluice
