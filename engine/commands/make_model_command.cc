#include "base/error.h"
#include "base/units.h"
#include "engine/commands/options/command_line.h"
#include "engine/commands/options/weight_options.h"
#include "engine/commands/subcommands.h"
#include "engine/console/interrupt.h"
#include "engine/console/progress.h"
#include "models/model.h"
#include "models/quantized/compressed_tensors_writer.h"

namespace sluice {

int run_make_model(const CommandLine::Arguments& arguments) {
  namespace po = boost::program_options;
  std::string shapes;
  for (const NamedShape& shape : named_shapes())
    shapes += (shapes.empty() ? "" : ", ") + shape.name;
  CommandLine line(
      "sluice make-model --shape NAME --out DIR [options]",
      "Writes a Hugging Face folder with deterministic random weights. It has no tokenizer: give\n"
      "prompts as \"prompt_token_ids\" in a --prompts file.\n\nShapes: " +
          shapes);
  line.options().add_options()("shape", po::value<std::string>(), "one of the shapes above")  //
      ("out", po::value<std::string>(), "folder to make; must not exist, or be empty")        //
      ("dtype", po::value<std::string>()->default_value("bf16"), "f32, bf16 or f16")          //
      ("seed", po::value<std::int64_t>()->default_value(0), "another seed, other weights");
  declare_weight_options(line);
  if (!line.parse(arguments)) return 0;
  if (!line.given("shape")) throw UsageError("--shape is missing; --help lists the shapes");
  if (!line.given("out")) throw UsageError("--out is missing: the folder to make");
  const auto dtype = parse_dtype(line.get<std::string>("dtype"));
  if (!dtype)
    throw UsageError("--dtype {}: expected f32, bf16 or f16", line.get<std::string>("dtype"));
  const std::int64_t seed = line.get<std::int64_t>("seed");
  if (seed < 0) throw UsageError("--seed {}: expected 0 or more", seed);
  const WeightChoice weights = read_weight_choice(line);
  ProgressBar bar("writing");
  const auto progress = [&bar](std::uint64_t done, std::uint64_t total) {
    if (interrupt_flag()) throw Interrupted();
    bar.update(static_cast<double>(done), static_cast<double>(total), format_bytes(done));
  };
  const auto& shape = line.get<std::string>("shape");
  const auto& out = line.get<std::string>("out");
  const auto any_seed = static_cast<std::uint64_t>(seed);
  if (weights.layers || weights.head) {
    Model model;
    model.name = shape;
    model.config = find_shape(shape);
    model.config.stored_dtype = *dtype;
    model.weights = random_weights(model.config, *dtype, any_seed);
    write_compressed_tensors(model, out,
                             {.layers = weights.layers.value_or(WeightFormat()),
                              .head = weights.head,
                              .progress = progress});
  } else {
    make_model(shape, out, *dtype, any_seed, progress);
  }
  return 0;
}

}  // namespace sluice
