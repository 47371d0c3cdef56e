#include <algorithm>
#include <iostream>
#include <memory>

#include "base/files.h"
#include "engine/commands/machine_replays.h"
#include "engine/commands/options/command_line.h"
#include "engine/commands/options/compute_options.h"
#include "engine/commands/options/device_options.h"
#include "engine/commands/options/output_options.h"
#include "engine/commands/options/policy_options.h"
#include "engine/commands/options/replay_options.h"
#include "engine/commands/options/serving_options.h"
#include "engine/commands/options/simulated_host_options.h"
#include "engine/commands/options/tier_options.h"
#include "engine/commands/subcommands.h"
#include "engine/console/interrupt.h"
#include "engine/console/progress.h"
#include "engine/machine/compute.h"
#include "engine/plan/points.h"
#include "engine/replay/options.h"
#include "engine/replay/pictures.h"
#include "engine/replay/replay_run.h"
#include "engine/run/run_engine.h"
#include "engine/run/serving_plan.h"
#include "models/model.h"

namespace sluice {
namespace {

namespace po = boost::program_options;

void declare_options(CommandLine& line) {
  line.options().add_options()  //
      ("model,m", po::value<std::string>()->default_value("tiny"),
       "Hugging Face folder, or tiny: the embedded model; with --machine a shape's name, too")  //
      ("machine", po::value<std::string>(),
       "a described machine, simulated: a profile's name, a .json file, or this: the one at hand, "
       "as sluice calibrate has measured it; a list")  //
      ("estimate", po::bool_switch(),
       "with --machine: by the cost model alone, in seconds instead of minutes")  //
      ("slo", po::value<std::string>(),
       "ttft=SECONDS,tpot=SECONDS: what a request must keep to")                              //
      ("plot", po::value<std::string>(), "draw latency over load into this SVG or PNG file")  //
      ("plot-time", po::value<std::string>(),
       "draw queues, pools and busy shares over time into this SVG or PNG file");
  declare_compute_options(line);
  declare_replay_workloads(line);
  declare_serving_options(line);
  declare_policy_options(line);
  declare_device_options(line);
  declare_simulated_rates(line);
  declare_tier_options(line, DryRunJson::of_output_format);
  declare_format(line);
  line.options().add_options()("quiet,q", po::bool_switch(), "no progress on stderr");
}

class ReplayCommand {
 public:
  explicit ReplayCommand(const CommandLine& line)
      : line_(line),
        format_(read_format(line)),
        serving_(read_serving(line)),
        quiet_(line.get<bool>("quiet")) {
    if (line.given("slo")) slo_ = parse_slo(line.get<std::string>("slo"));
    for (const char* option : {"plot", "plot-time"}) {
      if (!line.given(option)) continue;
      picture_format(option, line.get<std::string>(option));
      check_writable(line.get<std::string>(option));
    }
  }

  int execute() {
    if (line_.given("machine")) return on_machines();
    for (const char* option : {"estimate", "rates", "link"}) {
      if (line_.given(option))
        throw UsageError("--{} needs --machine: a profile's name or file, or this", option);
    }
    return here();
  }

 private:
  int on_machines() {
    for (const char* option :
         {"dtype", "hbm", "cuda-graphs", "ddr", "disk", "cxl-nodes", "kv-tier"}) {
      if (line_.given(option))
        throw UsageError("--{} has no part in --machine, which says what there is", option);
    }
    if (line_.get<bool>("dry-run")) throw UsageError("--dry-run has no part in --machine");
    const auto by = line_.get<bool>("estimate") ? ReplayBy::estimate : ReplayBy::simulation;
    if (by == ReplayBy::simulation && line_.given("trace") &&
        line_.get<std::string>("trace") == "-")
      throw UsageError("--trace -: each simulation reads the trace anew; give a file");
    MachineReplays replays{.model = line_.get<std::string>("model"),
                           .machines = read_words(line_, "machine"),
                           .policies = {any_policy},
                           .policy_options = read_policy(line_).options,
                           .host = read_simulated_host(line_),
                           .serving = serving_,
                           .workloads = read_replay_workloads(line_),
                           .slo = slo_};
    if (line_.given("policy")) replays.policies = read_words(line_, "policy");
    set_max_model_len(find_model_config(replays.model), replays.workloads.longest_tokens());
    replays.serving = serving_;
    std::vector<ReplayPoint> points;
    const std::vector<ReplayedPoint> replayed = replay_on_machines(replays, by);
    points.reserve(replayed.size());
    for (const ReplayedPoint& one : replayed) points.push_back(one.point);
    report(points, replayed.back().timeline);
    return 0;
  }

  int here() {
    if (line_.given("policy") && read_words(line_, "policy").size() > 1)
      throw UsageError("--policy {}: here one policy runs at a time; several need --machine",
                       line_.get<std::string>("policy"));
    const TierSettings tiers = read_tier_settings(line_);
    const auto [dtype, cpu] = read_compute_settings(line_);
    const ReplayWorkloads workloads = read_replay_workloads(line_);
    RunPolicy policy(read_policy(line_));
    const Model model = open_model(line_.get<std::string>("model"));
    set_max_model_len(model.config, workloads.longest_tokens());
    const ServingDemand demand{.model = model,
                               .dtype = dtype,
                               .cpu = cpu,
                               .tiers = tiers,
                               .accelerator = find_accelerator(read_device(line_)),
                               .fusion = Fusion::layers,
                               .limits = serving_.limits};
    RunPlan plan = plan_serving(demand, policy);
    if (const std::string unused = unused_pool(serving_.limits.kv_tokens, plan.policy_run());
        !unused.empty())
      fmt::print(stderr, "sluice: {}\n", unused);
    if (tiers.dry_run) {
      std::cout << format_tiers(plan.uses(), format_);
      plan.check_disk();
      return 0;
    }
    return run(plan, workloads, model);
  }

  void set_max_model_len(const ModelConfig& config, std::int64_t longest) {
    std::int64_t& most = serving_.limits.max_model_len;
    most = serving_.max_model_len.value_or(std::min(longest, config.max_positions));
    if (most > config.max_positions)
      throw UsageError("--max-model-len {}: the model has {} positions", most,
                       config.max_positions);
    if (longest > most)
      throw Error(
          "a request has {} tokens, prompt and output, and {} are possible; leave it out, "
          "or take a model with more positions",
          longest, most);
  }

  int run(RunPlan& plan, const ReplayWorkloads& workloads, const Model& model) {
    LoadedRun loaded(plan);
    EngineOptions options = engine_options(model);
    serving_.apply_to(options);
    std::vector<ReplayPoint> points;
    std::optional<ReplayTimeline> timeline;
    for (std::size_t kind = 0; kind < workloads.num_kinds(); ++kind) {
      for (const Arrivals& arrivals : workloads.arrivals) {
        RunEngine engine(loaded.model(), loaded.kv(), plan.policy_run(), options,
                         {.sharing = serving_.sharing});
        ReplayRequests requests{.requests = workloads.requests(kind, arrivals),
                                .arrivals = arrivals,
                                .tokens = all_tokens(model.config),
                                .seed = workloads.seed};
        ReplayPoint& point =
            points.emplace_back(named_point(workloads, kind, arrivals, requests.requests));
        point.model = model.name;
        point.machine = this_machine;
        point.policy = plan.policy_run().name();
        const ReplayOutcome outcome = replay_once(engine, loaded, std::move(requests));
        if (interrupt_flag()) return interrupted_exit_code;
        add_outcome(point, outcome, slo_);
        timeline = outcome.timeline;
      }
    }
    report(points, *timeline);
    return 0;
  }

  ReplayOutcome replay_once(RunEngine& engine, LoadedRun& loaded, ReplayRequests requests) const {
    const auto total = static_cast<double>(requests.requests.size());
    ProgressBar bar("replaying");
    const ReplayEngine with{
        .engine = engine.engine(),
        .executor = engine.executor(),
        .pools = engine.pools(),
        .tiers = engine.tiers(),
        .resources = {"cpu"},
        .busy_s = [&] { return std::vector<double>{loaded.runtime().busy_seconds()}; },
        .progress =
            [&](std::int64_t finished) {
              bar.update(static_cast<double>(finished), total,
                         fmt::format("{} of {} requests", finished, total));
            }};
    ReplayOutcome outcome = replay(with, std::move(requests), interrupt_flag());
    bar.clear();
    return outcome;
  }

  /// `timeline`: the last point's.
  void report(std::vector<ReplayPoint>& points, const ReplayTimeline& timeline) const {
    set_goodput(points);
    std::cout << format_replay(format_, points);
    if (line_.given("plot")) {
      const std::string& path = line_.get<std::string>("plot");
      write_file(path, draw_load_latency(points, std::nullopt, picture_format("plot", path)));
    }
    if (line_.given("plot-time")) {
      const std::string& path = line_.get<std::string>("plot-time");
      write_file(path, draw_timeline(timeline, points.back().model + ", " + points.back().arrivals,
                                     picture_format("plot-time", path)));
    }
  }

  const CommandLine& line_;
  OutputFormat format_;
  ServingSettings serving_;
  bool quiet_;
  std::optional<Slo> slo_;
};

}  // namespace

int run_replay(const CommandLine::Arguments& arguments) {
  CommandLine line("sluice replay [options]",
                   "Runs requests as they arrive, of a trace or drawn, and reports latency and "
                   "throughput: here, or with --machine on a machine that is described.");
  declare_options(line);
  if (!line.parse(arguments)) return 0;
  return ReplayCommand(line).execute();
}

}  // namespace sluice
