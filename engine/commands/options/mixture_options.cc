#include "engine/commands/options/mixture_options.h"

#include <charconv>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "base/files.h"
#include "models/model.h"
#include "perfmodels/routing.h"
#include "perfmodels/routing_file.h"

namespace sluice {
namespace {

constexpr const char* evenly = "uniform";
constexpr std::string_view zipf_prefix = "zipf:";
constexpr double steepest = 8;

/// All of a text as a number.
template <typename Number>
std::optional<Number> number_in(std::string_view text) {
  Number value = 0;
  const char* end = text.data() + text.size();
  const auto [read_to, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || read_to != end) return std::nullopt;
  return value;
}

/// "8", or "8:2".
MixtureChoice::Cut read_cut(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string_view view(text);
  const auto experts = number_in<std::int64_t>(view.substr(0, colon));
  const auto chosen = colon == std::string::npos ? std::optional<std::int64_t>(1)
                                                 : number_in<std::int64_t>(view.substr(colon + 1));
  const bool is_cut = experts && chosen && *experts >= 1 && *experts <= most_experts &&
                      *chosen >= 1 && *chosen <= *experts;
  if (is_cut) return {*experts, *chosen};
  throw UsageError(
      "--experts {}: expected N or N:K, such as 8 or 8:2: N experts from 1 to {}, and K of them a "
      "token",
      text, most_experts);
}

/// Of "zipf:S"; nothing: it is a file.
std::optional<double> zipf_exponent(const std::string& text) {
  if (!text.starts_with(zipf_prefix)) return std::nullopt;
  const auto exponent = number_in<double>(std::string_view(text).substr(zipf_prefix.size()));
  if (exponent && *exponent >= 0 && *exponent <= steepest) return exponent;
  throw UsageError("--routing {}: expected zipf:S with S from 0 to {}, such as zipf:1", text,
                   steepest);
}

std::string read_routing(const std::string& path) {
  try {
    return read_file(path);
  } catch (const Error& error) {
    throw Error("--routing {}: expected uniform, zipf:S such as zipf:1, or a routing file: {}",
                path, error.what());
  }
}

}  // namespace

void MixtureChoice::cut_ffn(const std::string& model, ModelConfig& config) const {
  if (!cut) return;
  if (names_model(model)) {
    throw UsageError("--experts is for shapes; {} is a model, whose layers are as they are", model);
  }
  if (config.num_experts > 0) {
    throw UsageError("--experts: {} has {} experts already; it cuts dense layers", model,
                     config.num_experts);
  }
  if (config.ffn_size % cut->num_experts != 0) {
    throw UsageError("--experts {}: {}'s FFN of {} does not divide by {}", cut->num_experts, model,
                     config.ffn_size, cut->num_experts);
  }
  config.ffn_size /= cut->num_experts;
  config.num_experts = cut->num_experts;
  config.experts_per_token = cut->experts_per_token;
}

void MixtureChoice::route(const std::string& model, ModelDimensions& dimensions) const {
  if (routing == evenly) return;
  if (dimensions.num_experts == 0) {
    throw UsageError("--routing {}: {} has no experts; leave it out", routing, model);
  }
  if (const std::optional<double> exponent = zipf_exponent(routing)) {
    dimensions.routing =
        Routing::zipf(*exponent, dimensions.num_experts, dimensions.experts_per_token);
    return;
  }
  const RecordedRouting recorded =
      parse_routing(read_routing(routing), routing,
                    {.name = model,
                     .num_layers = dimensions.num_layers,
                     .num_experts = dimensions.num_experts,
                     .experts_per_token = dimensions.experts_per_token});
  dimensions.routing = Routing::recorded(recorded, dimensions.experts_per_token);
}

std::vector<std::string> MixtureChoice::arguments() const {
  std::vector<std::string> arguments = {"--routing", routing};
  if (cut) {
    arguments.insert(arguments.end(),
                     {"--experts", fmt::format("{}:{}", cut->num_experts, cut->experts_per_token)});
  }
  return arguments;
}

void declare_record_routing(CommandLine& line) {
  line.options().add_options()(
      "record-routing", boost::program_options::value<std::string>(),
      "write which experts rows went through to this JSON file, which --routing of plan reads");
}

void check_records_routing(const std::string& path, const std::string& model,
                           const ModelConfig& config, bool has_device) {
  if (config.num_experts == 0)
    throw UsageError("--record-routing {}: {} has no experts", path, model);
  if (has_device) {
    throw UsageError(
        "--record-routing {} counts the rows whose experts the CPU computes; leave out --device: "
        "the same rows go through the same experts there",
        path);
  }
  check_writable(path);
}

void declare_mixture_options(CommandLine& line) {
  namespace po = boost::program_options;
  line.options().add_options()  //
      ("routing", po::value<std::string>()->default_value(evenly),
       "of a mixture of experts: which experts tokens choose: uniform, zipf:S (the chance falls as "
       "1 / number^S), or a routing file")  //
      ("experts", po::value<std::string>(),
       "of a dense shape, N or N:K: as if its FFN were cut into N experts, K of them a token "
       "(default: 1)");
}

MixtureChoice read_mixture_choice(const CommandLine& line) {
  MixtureChoice choice;
  choice.routing = line.get<std::string>("routing");
  if (choice.routing.empty() || choice.routing == "-")  // it is read more than once
    throw UsageError("--routing {}: expected uniform, zipf:S or the name of a routing file",
                     choice.routing);
  zipf_exponent(choice.routing);
  if (line.given("experts")) choice.cut = read_cut(line.get<std::string>("experts"));
  return choice;
}

}  // namespace sluice
