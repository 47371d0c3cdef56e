#include "engine/commands/options/compute_options.h"

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

}  // namespace sluice
