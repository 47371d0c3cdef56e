#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/units.h"
#include "engine/commands/options/command_line.h"
#include "engine/commands/options/weight_options.h"
#include "engine/commands/subcommands.h"
#include "engine/console/interrupt.h"
#include "engine/console/progress.h"
#include "models/quantized/compressed_tensors_writer.h"

namespace sluice {
namespace {

using nlohmann::ordered_json;

/// The linear weights of a layer, as --keep names them.
std::vector<TensorRole> linear_roles() {
  return {TensorRole::q_weight,   TensorRole::k_weight,    TensorRole::v_weight,
          TensorRole::out_weight, TensorRole::gate_weight, TensorRole::fc1_weight,
          TensorRole::fc2_weight};
}

std::vector<TensorRole> read_kept(const std::string& list) {
  std::vector<TensorRole> kept;
  for (std::size_t begin = 0; begin <= list.size() && !list.empty();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::string name = list.substr(begin, end - begin);
    const std::vector<TensorRole> roles = linear_roles();
    const auto found = std::find_if(roles.begin(), roles.end(),
                                    [&](TensorRole role) { return to_string(role) == name; });
    if (found == roles.end()) {
      std::string names;
      for (const TensorRole role : roles)
        names += (names.empty() ? "" : ", ") + std::string(to_string(role));
      throw UsageError("--keep {}: expected some of {}", quote(name), names);
    }
    kept.push_back(*found);
    begin = end + 1;
  }
  return kept;
}

double bits_per_value(const QuantizedRole& role) {
  return 8 * static_cast<double>(role.bytes) / static_cast<double>(role.num_values);
}

double mean_bits(const std::vector<QuantizedRole>& roles) {
  double bytes = 0;
  double values = 0;
  for (const QuantizedRole& role : roles) {
    bytes += static_cast<double>(role.bytes);
    values += static_cast<double>(role.num_values);
  }
  return 8 * bytes / values;
}

void print_json(const std::vector<QuantizedRole>& roles) {
  ordered_json report = {{"bits_per_weight", mean_bits(roles)}, {"weights", ordered_json::array()}};
  for (const QuantizedRole& role : roles) {
    report["weights"].push_back({{"role", to_string(role.role)},
                                 {"format", to_string(role.format)},
                                 {"values", role.num_values},
                                 {"bytes", role.bytes},
                                 {"bits_per_weight", bits_per_value(role)},
                                 {"relative_error", role.relative_error()}});
  }
  fmt::print("{}\n", report.dump(2));
}

void print_table(const std::vector<QuantizedRole>& roles) {
  fmt::print("{:<12} {:<12} {:>14} {:>12} {:>15}\n", "weight", "format", "size", "bits/weight",
             "relative error");
  for (const QuantizedRole& role : roles) {
    fmt::print("{:<12} {:<12} {:>14} {:>12.3f} {:>15.5f}\n", to_string(role.role),
               to_string(role.format), format_bytes(role.bytes), bits_per_value(role),
               role.relative_error());
  }
  fmt::print("{:.3f} bits a quantised weight\n", mean_bits(roles));
}

}  // namespace

int run_quantize(const CommandLine::Arguments& arguments) {
  namespace po = boost::program_options;
  CommandLine line(
      "sluice quantize --model DIR --out DIR --weights FORMAT [options]",
      "Writes a model with its linear weights in 4 or 8 bits: a Hugging Face folder that\n"
      "Transformers reads with compressed-tensors, and every command here. The embedding, norms\n"
      "and biases stay as they are. Prints bits a weight, and how far the weights of each kind\n"
      "are from what they were: the root of squared differences over that of squares.");
  line.options().add_options()("model", po::value<std::string>(), "folder with plain weights")  //
      ("out", po::value<std::string>(), "folder to make; must not exist, or be empty")          //
      ("weights", po::value<std::string>(),
       "int4-g32, int8-g128z...: bits, inputs that share a scale (32, 64, 128, or 0 for all of a "
       "row), z: with zero points; or fp8-row, fp8-b128")                                        //
      ("head-weights", po::value<std::string>(), "the same of the LM head (default: as it is)")  //
      ("keep", po::value<std::string>()->default_value(""),
       "kinds that stay as they are, such as fc2_weight,v_weight")  //
      ("search", po::value<std::string>()->default_value("none"),
       "none: scales by the largest value; mse: those of the least squared error")  //
      ("json", po::bool_switch(), "print a JSON object");
  if (!line.parse(arguments)) return 0;
  for (const char* name : {"model", "out", "weights"}) {
    if (!line.given(name)) throw UsageError("--{} is missing; --help says what it is", name);
  }
  QuantizeModelOptions options;
  options.layers = read_weight_format(line, "weights");
  if (line.given("head-weights")) options.head = read_weight_format(line, "head-weights");
  options.keep = read_kept(line.get<std::string>("keep"));
  const std::string search = line.get<std::string>("search");
  if (search != "none" && search != "mse")
    throw UsageError("--search {}: expected none or mse", quote(search));
  options.search = search == "mse" ? ScaleSearch::mse : ScaleSearch::none;
  ProgressBar bar("quantising");
  options.progress = [&bar](std::uint64_t done, std::uint64_t total) {
    if (interrupt_flag()) throw Interrupted();
    bar.update(static_cast<double>(done), static_cast<double>(total), format_bytes(done));
  };
  const Model model = open_model(line.get<std::string>("model"));
  const std::vector<QuantizedRole> roles =
      write_compressed_tensors(model, line.get<std::string>("out"), options);
  bar.clear();
  if (line.get<bool>("json")) {
    print_json(roles);
  } else {
    print_table(roles);
  }
  return 0;
}

}  // namespace sluice
