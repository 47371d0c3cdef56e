#include "engine/commands/options/compute_options.h"

#include "engine/machine/compute.h"

namespace sluice {

void declare_compute_options(CommandLine& line) {
  namespace po = boost::program_options;
  line.options().add_options()  //
      ("dtype", po::value<std::string>(),
       "f32, bf16 or f16, which is computed as bf16; without it bf16")                       //
      ("threads,t", po::value<int>(), "processor threads; without it, one a physical core")  //
      ("domains", po::value<int>()->default_value(1),
       "cut the threads into so many compute domains");
}

std::optional<DType> read_dtype(const CommandLine& line) {
  if (!line.given("dtype")) return std::nullopt;
  const std::string& text = line.get<std::string>("dtype");
  const std::optional<DType> dtype = parse_dtype(text);
  if (!dtype) throw UsageError("--dtype {}: expected f32, bf16 or f16", text);
  return dtype;
}

std::optional<int> read_threads(const CommandLine& line) {
  if (!line.given("threads")) return std::nullopt;
  return in_range(line, "threads", 1, 512);
}

ComputeSettings read_compute_settings(const CommandLine& line) {
  const DType dtype = choose_dtype(read_dtype(line));
  return {dtype,
          cut_into_domains(choose_cores(read_threads(line)), in_range(line, "domains", 1, 64))};
}

void declare_fusion_option(CommandLine& line) {
  line.options().add_options()  //
      ("no-fuse", boost::program_options::bool_switch(),
       "every sublayer a task of its own, instead of stages");
}

Fusion read_fusion(const CommandLine& line) {
  return line.get<bool>("no-fuse") ? Fusion::sublayers : Fusion::layers;
}

}  // namespace sluice
