#include "engine/commands/options/sampling_options.h"

#include <limits>
#include <random>

#include "engine/commands/options/compute_options.h"
#include "models/tokenizer.h"

namespace sluice {

namespace po = boost::program_options;

void declare_sampling_options(CommandLine& line) {
  line.options().add_options()                                                                    //
      ("temperature", po::value<float>(), "0: greedy; without it, what the model's folder says")  //
      ("top-k", po::value<int>(), "draw among the k likeliest tokens; 0: off")                    //
      ("top-p", po::value<float>(),
       "draw among the likeliest tokens that make up this probability")  //
      ("min-p", po::value<float>(),
       "drop tokens below this share of the likeliest one's probability")  //
      ("repetition-penalty", po::value<float>(),
       "above 1: tokens that occurred are less likely")  //
      ("seed", po::value<std::int64_t>(),
       "of the random draws; without it, another one each run")  //
      ("stop", po::value<std::vector<std::string>>(),
       "text that ends the output; may be given again");
}

SamplingParams read_sampling(const CommandLine& line, SamplingParams otherwise) {
  SamplingParams params = otherwise;
  if (line.given("temperature")) params.temperature = in_range(line, "temperature", 0.0F, 100.0F);
  if (line.given("top-k")) params.top_k = in_range(line, "top-k", 0, 1 << 30);
  if (line.given("top-p")) params.top_p = in_range(line, "top-p", 1e-6F, 1.0F);
  if (line.given("min-p")) params.min_p = in_range(line, "min-p", 0.0F, 1.0F);
  if (line.given("repetition-penalty")) {
    params.repetition_penalty = in_range(line, "repetition-penalty", 0.01F, 100.0F);
  }
  params.seed = std::random_device()();
  if (line.given("seed")) {
    constexpr auto largest = std::numeric_limits<std::int64_t>::max();
    params.seed = static_cast<std::uint64_t>(in_range<std::int64_t>(line, "seed", 0, largest));
  }
  return params;
}

std::vector<std::string> read_stop(const CommandLine& line) {
  if (!line.given("stop")) return {};
  std::vector<std::string> stop = line.get<std::vector<std::string>>("stop");
  for (const std::string& text : stop) {
    if (text.empty()) throw UsageError("--stop: the text is empty; leave the option out");
    if (const auto bad = find_invalid_utf8(text)) {
      throw UsageError("--stop: invalid UTF-8 at byte {}; pass the text as UTF-8", *bad + 1);
    }
  }
  return stop;
}

}  // namespace sluice
