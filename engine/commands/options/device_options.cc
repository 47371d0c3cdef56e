#include "engine/commands/options/device_options.h"

#include <string_view>

#include "base/error.h"
#include "base/memory.h"
#include "base/units.h"
#include "engine/commands/options/command_line.h"

namespace sluice {
namespace {

constexpr std::string_view stand_in_prefix = "standin:";

bool read_graphs(const CommandLine& line) {
  if (!line.given("cuda-graphs")) return true;
  const std::string& text = line.get<std::string>("cuda-graphs");
  if (text != "on" && text != "off") throw UsageError("--cuda-graphs {}: expected on or off", text);
  return text == "on";
}

}  // namespace

void declare_device_options(CommandLine& line) {
  namespace po = boost::program_options;
  line.options().add_options()  //
      ("device", po::value<std::string>(),
       "cuda, cpu, or standin:MEMORY, e.g. standin:64MiB: a second process plays a GPU with so "
       "much memory, to test with; default: cuda where there is a GPU")  //
      ("hbm", po::value<std::string>(),
       "memory of the GPU that the run may take, e.g. 20GiB; default: what is free")  //
      ("cuda-graphs", po::value<std::string>(),
       "on or off: whether the GPU's kernels that come again are launched as CUDA graphs; default: "
       "on");
}

DeviceSettings read_device(const CommandLine& line) {
  const std::string text = line.given("device") ? line.get<std::string>("device") : "";
  for (const char* option : {"hbm", "cuda-graphs"}) {
    if (!text.empty() && text != "cuda" && line.given(option))
      throw UsageError("--{} is of the GPU; leave it out with --device {}", option, text);
  }
  DeviceSettings settings;
  settings.graphs = read_graphs(line);
  if (line.given("hbm")) {
    const std::string& size = line.get<std::string>("hbm");
    settings.hbm = {.bytes = parse_size_bytes(size, "hbm"), .text = size};
  }
  if (text.starts_with(stand_in_prefix)) {
    settings.kind = DeviceSettings::Kind::stand_in;
    settings.stand_in_bytes = read_stand_in_bytes(text);
  } else if (text == "cpu") {
    settings.kind = DeviceSettings::Kind::cpu;
  } else if (text == "cuda") {
    settings.kind = DeviceSettings::Kind::cuda;
  } else if (!text.empty()) {
    throw UsageError("--device {}: expected cuda, cpu, or standin:MEMORY such as standin:64MiB",
                     text);
  }
  return settings;
}

std::uint64_t read_stand_in_bytes(const std::string& text) {
  constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;
  if (!text.starts_with(stand_in_prefix))
    throw UsageError("--device {}: expected standin:MEMORY such as standin:64MiB", text);
  std::uint64_t bytes = 0;
  try {
    bytes = parse_size_bytes(text.substr(stand_in_prefix.size()), "device");
  } catch (const UsageError&) {
    throw UsageError("--device {} names no size; expected one as in standin:64MiB", text);
  }
  if (bytes < mebibyte || bytes >= total_memory_bytes()) {
    throw UsageError("--device {}: from 1MiB to less than this machine's memory of {}", text,
                     format_bytes(total_memory_bytes()));
  }
  return bytes / mebibyte * mebibyte;
}

}  // namespace sluice
