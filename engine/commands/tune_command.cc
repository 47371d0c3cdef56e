#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/json.h"
#include "base/median.h"
#include "base/topology.h"
#include "codelets/weights/plain.h"
#include "engine/commands/options/command_line.h"
#include "engine/commands/options/compute_options.h"
#include "engine/commands/options/output_options.h"
#include "engine/commands/options/weight_options.h"
#include "engine/commands/subcommands.h"
#include "engine/commands/tune_kernels.h"
#include "engine/console/core_list.h"
#include "engine/console/interrupt.h"
#include "engine/console/progress.h"
#include "engine/console/tables.h"
#include "engine/machine/compute.h"
#include "engine/machine/cpu_plan_store.h"
#include "engine/measure/bench_demand.h"
#include "engine/measure/core_rates.h"
#include "engine/measure/tune.h"
#include "engine/run/run_setup.h"
#include "graphs/model_weights.h"
#include "perfmodels/cpu_plan_search.h"

namespace sluice {
namespace {

namespace po = boost::program_options;

void declare_options(CommandLine& line) {
  line.options().add_options()  //
      ("model,m", po::value<std::string>()->default_value("tiny"),
       "Hugging Face folder; tiny: the embedded model; or the name of a shape, such as "
       "llama-3.2-1b, which gets random weights in memory");
  declare_weight_options(line);
  declare_dtype_option(line);
  line.options().add_options()  //
      ("top", po::value<int>()->default_value(10),
       "so many plans of each phase run for real, the fastest by prediction")                //
      ("repeat", po::value<int>()->default_value(5), "rounds in which each of them runs")    //
      ("force", po::bool_switch(), "measure again what was measured before")                 //
      ("dry-run", po::bool_switch(), "show the plans that would run, and run none of them")  //
      ("topology", po::value<std::string>(),
       "with --dry-run: another machine's processors, a file that lstopo --of xml has written or "
       "hwloc's synthetic text; predicted by this machine's rates")  //
      ("json", po::bool_switch(),
       "print one JSON object, which --cpu-plan can read once a plan is chosen")  //
      ("kernels", po::bool_switch(),
       "find schedules of matrix products instead of plans: kernels, and how rows and columns are "
       "dealt out, for each number of rows")  //
      ("rows", po::value<int>()->default_value(2048),
       "with --kernels: up to so many rows, such as the tokens of a batch's prompts");
  declare_cpu_options(line);
}

struct Settings {
  std::string model;
  WeightChoice weights;
  DType dtype = DType::bf16;
  int top = 10;
  int rounds = 5;
  bool force = false;
  bool dry_run = false;
  bool json = false;
  bool kernels = false;
  std::int64_t most_rows = 2048;
  CpuUse cpu;  ///< of kernels
  Topology topology;
};

Settings read_settings(const CommandLine& line) {
  Settings settings{.model = line.get<std::string>("model"),
                    .weights = read_weight_choice(line),
                    .dtype = choose_dtype(read_dtype(line)),
                    .top = in_range(line, "top", 1, 1000),
                    .rounds = in_range(line, "repeat", 1, 1000),
                    .force = line.get<bool>("force"),
                    .dry_run = line.get<bool>("dry-run"),
                    .json = line.get<bool>("json"),
                    .kernels = line.get<bool>("kernels"),
                    .most_rows = in_range(line, "rows", 1, 1 << 20),
                    .cpu = {},
                    .topology = Topology::of_this_machine()};
  for (const char* option : {"rows", "threads", "cpu-plan"}) {
    if (line.given(option) && !settings.kernels)
      throw UsageError("--{} is of --kernels; plans have all cores to choose from", option);
  }
  if (settings.kernels) {
    for (const char* option : {"top", "repeat", "topology"}) {
      if (line.given(option)) throw UsageError("--{} is of plans; leave out --kernels", option);
    }
    settings.cpu = read_cpu_use(line);
  }
  if (line.given("topology")) {
    if (!settings.dry_run)
      throw UsageError(
          "--topology describes another machine, where nothing can run; add --dry-run");
    settings.topology = Topology::described_by(line.get<std::string>("topology"));
  }
  return settings;
}

/// Tokens in the KV cache of the sequence that decodes.
constexpr std::int64_t decode_context = 128;
/// Tokens that one sample of it decodes at least.
constexpr std::int64_t decode_tokens = 8;
/// How long a sample should take.
constexpr double decode_sample_s = 0.4;
constexpr double prefill_sample_s = 1;
constexpr std::int64_t most_prompt_rows = 512;
constexpr std::int64_t fewest_prompt_rows = 32;

PlanWork prefill_work(const ModelDimensions& model, std::int64_t rows) {
  return plan_work(model, {{.rows = rows, .context = 0, .logit_rows = 1}});
}

/// Rows of a prompt whose iteration takes about a second on all cores.
std::int64_t prompt_rows(const ModelDimensions& model, const ModelConfig& config,
                         const CoreRates& rates, std::size_t cores) {
  const double flop_per_s = rates.core_flop_per_s * static_cast<double>(cores);
  std::int64_t rows = most_prompt_rows;
  while (rows > fewest_prompt_rows &&
         prefill_work(model, rows).flops() > prefill_sample_s * flop_per_s)
    rows /= 2;
  return std::min(rows, config.max_positions);
}

/// What the search finds, before anything runs.
struct Searched {
  CpuTuning tuning;
  std::int64_t num_trees = 0;
  std::int64_t num_plans = 0;
};

PhaseTuning plans_of(const PlanSearch& search) {
  PhaseTuning phase;
  for (const FoundPlan& found : search.best) phase.plans.push_back({.plan = found.plan});
  return phase;
}

/// Plans that have weights in the same places stand beside each other, so that these seldom move.
void sort_by_places(PhaseTuning& phase) {
  std::vector<std::vector<NodeShare>> places;
  const auto place_of = [&](const TunedPlan& tuned) {
    const CpuPlan plan = {.prefill = tuned.plan, .decode = tuned.plan};
    const std::vector<NodeShare> shares = CpuUse{.cores = {}, .plan = plan}.node_shares();
    const auto found = std::find(places.begin(), places.end(), shares);
    if (found != places.end()) return found - places.begin();
    places.push_back(shares);
    return std::ssize(places) - 1;
  };
  std::vector<std::pair<std::ptrdiff_t, TunedPlan>> placed;
  for (TunedPlan& tuned : phase.plans) {
    const std::ptrdiff_t place = place_of(tuned);
    placed.emplace_back(place, std::move(tuned));
  }
  std::stable_sort(placed.begin(), placed.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (std::size_t i = 0; i < placed.size(); ++i) phase.plans[i] = std::move(placed[i].second);
}

Searched search(const Settings& settings, const ModelConfig& config) {
  const ModelDimensions model = model_dimensions(config, settings.dtype);
  const CoreRates rates = measure_core_rates(Topology::of_this_machine(), settings.dtype,
                                             packed_weight_bytes(config, settings.dtype));
  const Topology& topology = settings.topology;
  const std::int64_t rows = prompt_rows(model, config, rates, topology.cores().size());
  const std::int64_t context =
      std::clamp<std::int64_t>(config.max_positions - decode_tokens, 0, decode_context);
  const PlanSearchOptions options{.top = settings.top};
  const CpuPlanCost prefill(topology, rates, prefill_work(model, rows));
  const CpuPlanCost decode(topology, rates,
                           plan_work(model, {{.rows = 1, .context = context, .logit_rows = 1}}));
  const PlanSearch full = search_full_plans(topology, prefill, options);
  const PlanSearch any = search_plans(topology, decode, options);
  Searched searched{.tuning = {.model = settings.model,
                               .rounds = settings.rounds,
                               .prefill = plans_of(full),
                               .decode = plans_of(any)},
                    .num_trees = full.num_trees + any.num_trees,
                    .num_plans = full.num_plans + any.num_plans};
  sort_by_places(searched.tuning.decode);
  searched.tuning.prefill.rows = rows;
  searched.tuning.decode.context = context;
  return searched;
}

/// What an earlier call has left of a tuning with the same plans to run.
std::optional<CpuTuning> left_over(const Settings& settings, const std::string& file) {
  std::error_code error;
  if (settings.force || settings.dry_run || !std::filesystem::exists(file, error))
    return std::nullopt;
  try {
    CpuTuning tuning = read_cpu_tuning(parse_json(read_file(file), file, DuplicateKeys::refuse),
                                       file, settings.topology);
    tuning.rounds = std::max(tuning.rounds, settings.rounds);
    return tuning;
  } catch (const Error& problem) {
    throw Error("{}; --force begins anew", problem.what());
  }
}

/// What an earlier call has found, which holds until this one is over.
std::optional<CpuPlan> previous_plan(const Settings& settings, const ModelConfig& config) {
  try {
    return tuned_cpu_plan(settings.dtype, model_dimensions(config, settings.dtype),
                          Topology::of_this_machine());
  } catch (const Error&) {
    return std::nullopt;  // is written over
  }
}

/// The model with all that its plans need, loaded once for all of them.
class PlanRunner {
 public:
  PlanRunner(const Settings& settings, const CpuTuning& tuning, const BenchModel& opened)
      : cores_(settings.topology.cores()),
        prefill_{.phase = Phase::prefill, .tokens = tuning.prefill.rows},
        decode_{.phase = Phase::decode, .tokens = decode_tokens, .depth = tuning.decode.context},
        policy_({.name = "cpu-only", .options = {}}),
        plan_(plan(settings, opened)),
        run_(plan_),
        runner_(run_.model(), run_.kv().front(), run_.runtime(), {.num_slots = 1},
                &plan_.policy_run()) {
    runner_.warm_up(prefill_);
    runner_.warm_up(decode_);
    decode_times_ = std::max<std::int64_t>(
        1, std::llround(decode_sample_s / runner_.run_whole(decode_, 1).seconds));
  }

  /// Of an iteration.
  double seconds(TunedPhase phase, const CpuPhasePlan& plan) {
    const CpuUse use{.cores = cores_, .plan = CpuPlan{.prefill = plan, .decode = plan}};
    run_.runtime().compute_by(*use.groups());
    // A run has its weights where decode's groups read them, in both phases.
    if (phase == TunedPhase::decode && plan_.host().homes().ddr_nodes.size() > 1)
      run_.model().move_parts(use.node_shares());
    if (phase == TunedPhase::prefill) return runner_.run_whole(prefill_, 1).seconds;
    return runner_.run_whole(decode_, decode_times_).seconds /
           static_cast<double>(decode_times_ * decode_tokens);
  }

 private:
  RunPlan plan(const Settings& settings, const BenchModel& opened) {
    constexpr const char* smaller_model = "use a smaller model";
    const RunDemand demand = bench_demand(opened, {prefill_, decode_},
                                          {.dtype = settings.dtype,
                                           .cpu = {.cores = cores_},
                                           .tiers = tiers_,
                                           .accelerator = {},
                                           .smaller = smaller_model});
    const HostPlan host(opened.model.config, settings.dtype, demand.need, tiers_);
    if (host.missing_bytes() > 0) throw Error("{}", shortage_text(host, tiers_, smaller_model));
    return plan_run(demand, host, policy_);
  }

  std::vector<int> cores_;
  BenchTest prefill_;
  BenchTest decode_;
  std::int64_t decode_times_ = 1;
  TierSettings tiers_;
  RunPolicy policy_;
  RunPlan plan_;
  LoadedRun run_;
  BenchRunner runner_;
};

void measure(const Settings& settings, const BenchModel& opened, const std::string& file,
             CpuTuning& tuning) {
  const auto save = [&] {
    write_file(file, json_text(as_json(tuning, settings.topology), 1) + "\n");
  };
  if (const std::error_code error = make_private_folders(std::filesystem::path(file).parent_path()))
    throw Error("cannot make the folder of {}: {}", file, error.message());
  save();  // while nothing is lost yet
  PlanRunner runner(settings, tuning, opened);
  ProgressBar bar("tuning");
  run_tuning(tuning,
             {.measure = [&](TunedPhase phase,
                             const CpuPhasePlan& plan) { return runner.seconds(phase, plan); },
              .progress = [&](double done, double total) { bar.update(done, total); },
              .save = save});
  save();
}

std::string milliseconds(std::optional<double> seconds) {
  return seconds ? fmt::format("{:.2f} ms", *seconds * 1e3) : "-";
}

void add_rows(TableRows& rows, const char* name, const PhaseTuning& phase, bool is_complete) {
  const std::optional<CpuPhasePlan> chosen =
      is_complete ? std::optional(phase.chosen()) : std::nullopt;
  for (const TunedPlan& tuned : phase.plans) {
    const CpuPhasePlan& plan = tuned.plan;
    std::string verdict;
    if (phase.is_out(tuned)) verdict = fmt::format("out after {}", tuned.samples_s.size());
    if (chosen && chosen->groups == plan.groups) verdict = "chosen";
    rows.push_back(
        {name, groups_text(plan), plan.left_out.empty() ? "-" : cores_text(plan.left_out),
         milliseconds(plan.predicted_s),
         tuned.samples_s.empty() ? "-" : milliseconds(median(tuned.samples_s)), verdict});
  }
}

void print(const Settings& settings, const CpuTuning& tuning, const Searched* searched,
           const std::string& file) {
  const bool is_complete = !settings.dry_run;
  if (settings.json) {
    nlohmann::json json = as_json(tuning, settings.topology);
    if (searched != nullptr)
      json["searched"] = {{"trees", searched->num_trees}, {"plans", searched->num_plans}};
    std::cout << json_text(json, 2) << "\n";
    return;
  }
  TableRows rows = {{"phase", "groups", "left out", "predicted", "measured", ""}};
  add_rows(rows, "prefill", tuning.prefill, is_complete);
  add_rows(rows, "decode", tuning.decode, is_complete);
  std::cout << format_table(rows);
  std::cout << fmt::format(
      "\nan iteration: prefill of {} tokens; decode of one sequence behind {} tokens\n",
      tuning.prefill.rows, tuning.decode.context);
  if (searched != nullptr)
    std::cout << fmt::format("searched {} trees and {} plans\n", searched->num_trees,
                             searched->num_plans);
  if (is_complete) std::cout << fmt::format("{}; use it with --cpu-plan auto\n", file);
}

}  // namespace

int run_tune(const CommandLine::Arguments& arguments) {
  CommandLine line("sluice tune --model DIR|SHAPE [options]",
                   "Finds how this machine's cores are best cut into groups, for prompts and for "
                   "decoding. What it finds is kept for --cpu-plan auto; interrupted, it goes on "
                   "where it was.");
  declare_options(line);
  if (!line.parse(arguments)) return 0;
  const Settings settings = read_settings(line);
  ModelConfig config = find_model_config(settings.model);
  settings.weights.use_on(settings.model, config);
  decoder_shape(config, settings.dtype);  // throws for shapes that cannot run
  if (settings.kernels) {
    tune_kernels({.model = settings.model,
                  .config = std::move(config),
                  .dtype = settings.dtype,
                  .cpu = settings.cpu,
                  .most_rows = settings.most_rows,
                  .force = settings.force,
                  .dry_run = settings.dry_run,
                  .json = settings.json});
    return 0;
  }
  const std::string file = cpu_plan_path(settings.dtype, model_dimensions(config, settings.dtype),
                                         Topology::of_this_machine())
                               .string();
  std::optional<CpuTuning> tuning = left_over(settings, file);
  std::optional<Searched> searched;
  if (!tuning) {
    searched = search(settings, config);
    tuning = searched->tuning;
  } else if (!tuning->is_complete()) {
    fmt::print(stderr, "sluice: going on with {}\n", file);
  }
  if (!settings.dry_run) tuning->previous = previous_plan(settings, config);
  if (!settings.dry_run && tuning->is_complete()) {
    fmt::print(stderr, "sluice: {} is tuned already; --force measures again\n", settings.model);
  } else if (!settings.dry_run) {
    const BenchModel opened =
        open_bench_model(settings.model, settings.dtype,
                         [&](ModelConfig& of) { settings.weights.use_on(settings.model, of); });
    measure(settings, opened, file, *tuning);
  }
  print(settings, *tuning, searched ? &*searched : nullptr, file);
  return 0;
}

}  // namespace sluice
