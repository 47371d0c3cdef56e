#include "engine/commands/options/simulated_host_options.h"

#include <sstream>
#include <utility>

#include "base/error.h"
#include "engine/commands/options/command_line.h"
#include "engine/commands/options/compute_options.h"
#include "engine/commands/options/device_options.h"

namespace sluice {
namespace {

namespace po = boost::program_options;

/// Two numbers above 0, in units of `scales`.
std::pair<double, double> read_pair(const CommandLine& line, const std::string& name,
                                    std::pair<double, double> scales, const char* expected) {
  const auto& text = line.get<std::string>(name);
  std::istringstream in(text);
  double first = 0;
  double second = 0;
  char comma = 0;
  const bool all = in >> first >> comma >> second && in.eof() && comma == ',';
  if (!all || !(first > 0) || !(second > 0))
    throw UsageError("--{} {}: expected {}", name, text, expected);
  return {first * scales.first, second * scales.second};
}

}  // namespace

void declare_simulated_rates(CommandLine& line) {
  line.options().add_options()  //
      ("rates", po::value<std::string>(),
       "with --machine this: GB/s,TFLOP/s of its memory and its GEMMs at the time, as generate "
       "--explain shows them; without it, the medians of the calibration")(
          "link", po::value<std::string>(),
          "with --machine this and --device standin:MEMORY: GB/s,us of its link, as its transfers "
          "have them in a trace; without it, the calibration's");
}

void declare_simulated_host(CommandLine& line) {
  declare_simulated_rates(line);
  line.options().add_options()  //
      ("threads", po::value<int>(),
       "with --machine this: processor threads of the run, each side's with an accelerator; "
       "without it, one a physical core")(
          "device", po::value<std::string>(),
          "cpu, or standin:MEMORY: with --machine this, the accelerator that generate's option of "
          "the same name plays")(
          "cpu-plan", po::value<std::string>(),
          "of a profile: how the CPU's cores are cut into groups, for prefill and for decode: "
          "interleaved (one group), static (a group for each NUMA node), auto (the fastest by the "
          "cost model), or a JSON file with a plan");
}

SimulatedHost read_simulated_host(const CommandLine& line) {
  SimulatedHost host;
  if (line.given("rates")) {
    const auto [bytes_per_s, flop_per_s] =
        read_pair(line, "rates", {1e9, 1e12}, "GB/s,TFLOP/s, e.g. 40,0.8");
    host.rates = {.read_bandwidth_bytes_per_s = bytes_per_s, .gemm_flop_per_s = flop_per_s};
  }
  host.threads = read_threads(line);
  if (line.given("cpu-plan")) host.cpu_plan = line.get<std::string>("cpu-plan");
  host.names_device = line.given("device");
  if (host.names_device && line.get<std::string>("device") != "cpu")
    host.stand_in = {.memory_bytes = read_stand_in_bytes(line.get<std::string>("device")),
                     .link = std::nullopt};
  if (line.given("link")) {
    if (!host.stand_in) throw UsageError("--link needs --device standin:MEMORY");
    const auto [bytes_per_s, latency_s] =
        read_pair(line, "link", {1e9, 1e-6}, "GB/s,us, e.g. 2,50");
    host.stand_in->link = {.bytes_per_s = bytes_per_s, .latency_s = latency_s};
  }
  return host;
}

std::vector<std::string> arguments_of(const SimulatedHost& host) {
  std::vector<std::string> arguments;
  if (host.rates) {
    arguments.emplace_back("--rates");
    arguments.push_back(fmt::format("{},{}", host.rates->read_bandwidth_bytes_per_s * 1e-9,
                                    host.rates->gemm_flop_per_s * 1e-12));
  }
  if (host.threads) {
    arguments.emplace_back("--threads");
    arguments.push_back(std::to_string(*host.threads));
  }
  if (host.cpu_plan) {
    arguments.emplace_back("--cpu-plan");
    arguments.push_back(*host.cpu_plan);
  }
  if (host.stand_in) {
    arguments.emplace_back("--device");
    arguments.push_back(fmt::format("standin:{}", host.stand_in->memory_bytes));
    if (const std::optional<LinkRate>& link = host.stand_in->link) {
      arguments.emplace_back("--link");
      arguments.push_back(fmt::format("{},{}", link->bytes_per_s * 1e-9, link->latency_s * 1e6));
    }
  }
  return arguments;
}

}  // namespace sluice
