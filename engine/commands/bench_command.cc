#include <algorithm>
#include <iostream>
#include <limits>

#include "base/files.h"
#include "base/json.h"
#include "base/memory.h"
#include "codelets/weights/plain.h"
#include "engine/commands/options/command_line.h"
#include "engine/commands/options/compute_options.h"
#include "engine/commands/options/device_options.h"
#include "engine/commands/options/mixture_options.h"
#include "engine/commands/options/output_options.h"
#include "engine/commands/options/policy_options.h"
#include "engine/commands/options/tier_options.h"
#include "engine/commands/options/trace_options.h"
#include "engine/commands/options/weight_options.h"
#include "engine/commands/subcommands.h"
#include "engine/console/interrupt.h"
#include "engine/console/progress.h"
#include "engine/machine/compute.h"
#include "engine/machine/gemm_schedule_store.h"
#include "engine/measure/bench.h"
#include "engine/measure/bench_demand.h"
#include "engine/measure/bench_report.h"
#include "engine/measure/sweep.h"
#include "engine/run/iteration_memory.h"
#include "engine/run/run_setup.h"
#include "engine/trace/trace_session.h"
#include "models/model.h"
#include "perfmodels/routing_file.h"

namespace sluice {
namespace {

namespace po = boost::program_options;

void declare_options(CommandLine& line) {
  line.options().add_options()  //
      ("model,m", po::value<std::string>()->default_value("tiny"),
       "Hugging Face folder; tiny: the embedded model; or the name of a shape, such as "
       "llama-3.2-1b, which gets random weights in memory")  //
      ("prompt-tokens,p", po::value<std::string>()->default_value("512"),
       "tokens of each prompt; a list 128,512 makes several tests, 0 none")  //
      ("gen-tokens,n", po::value<std::string>()->default_value("128"),
       "tokens to generate for each sequence; a list, 0: no such test")                       //
      ("batch,b", po::value<std::string>()->default_value("1"), "sequences at once; a list")  //
      ("depth", po::value<std::string>()->default_value("0"),
       "tokens in each sequence's KV cache before the test; a list")  //
      ("repeat", po::value<int>()->default_value(5), "repetitions of each test");
  declare_fusion_option(line);
  line.options().add_options()  //
      ("no-warmup", po::bool_switch(), "measure from the first run on");
  declare_weight_options(line);
  declare_compute_options(line);
  declare_policy_options(line);
  declare_device_options(line);
  declare_trace_option(line);
  declare_tier_options(line, DryRunJson::of_output_format);
  line.options().add_options()  //
      ("sweep", po::bool_switch(),
       "instead of the model: rates of its GEMMs and of decode attention over sizes")  //
      ("operations", po::value<std::string>(),
       "with --sweep: a list of what to measure, gemm, gemv and experts (default: all)")  //
      ("plot", po::value<std::string>(), "with --sweep: draw them into this .svg or .png file");
  declare_record_routing(line);
  declare_format(line);
}

struct Settings {
  std::string model;
  WeightChoice weights;
  bool sweep = false;
  std::vector<SweepPoint::Operation> operations = all_sweep_operations();
  std::optional<std::string> plot;
  std::optional<std::string> record_routing;
  std::vector<BenchTest> tests;
  int repeat = 5;
  bool warm_up = true;
  std::optional<DType> dtype;
  CpuUse cpu;
  Accelerator accelerator;
  TierSettings tiers;
  Fusion fusion = Fusion::layers;
  OutputFormat format = OutputFormat::table;
};

/// Weights that move to an accelerator do so once an iteration: all prompts share one, as generate
/// has it. On the CPU that gains nothing, and shorter ones leave time for probes and for Ctrl-C.
constexpr std::int64_t all_rows = std::numeric_limits<std::int64_t>::max();

/// Prefill before decode, and of each every batch at every depth.
std::vector<BenchTest> read_tests(const CommandLine& line) {
  constexpr std::int64_t most_tokens = std::int64_t{1} << 24;
  const auto prompts = read_list(line, "prompt-tokens", 0, most_tokens);
  const auto generated = read_list(line, "gen-tokens", 0, most_tokens);
  const auto batches = read_list(line, "batch", 1, 65536);
  const auto depths = read_list(line, "depth", 0, most_tokens);
  std::vector<BenchTest> tests;
  for (const Phase phase : {Phase::prefill, Phase::decode}) {
    for (const std::int64_t tokens : phase == Phase::prefill ? prompts : generated) {
      for (const std::int64_t depth : depths) {
        for (const std::int64_t batch : batches) {
          if (tokens > 0)
            tests.push_back({.phase = phase, .tokens = tokens, .batch = batch, .depth = depth});
        }
      }
    }
  }
  if (tests.empty())
    throw UsageError("--prompt-tokens 0 and --gen-tokens 0 leave nothing to measure");
  return tests;
}

std::vector<SweepPoint::Operation> read_operations(const std::string& text) {
  std::vector<SweepPoint::Operation> asked;
  std::istringstream names(text);
  for (std::string name; std::getline(names, name, ',');) {
    const auto all = all_sweep_operations();
    const auto found = std::find_if(all.begin(), all.end(),
                                    [&](auto operation) { return to_string(operation) == name; });
    if (found == all.end())
      throw UsageError("--operations: '{}'; expected some of gemm, gemv, experts", name);
    asked.push_back(*found);
  }
  return asked;
}

void read_sweep(const CommandLine& line, Settings& settings) {
  settings.sweep = line.get<bool>("sweep");
  if (line.given("record-routing"))
    settings.record_routing = line.get<std::string>("record-routing");
  if (line.given("plot")) {
    if (!settings.sweep) throw UsageError("--plot needs --sweep");
    settings.plot = line.get<std::string>("plot");
    picture_format("plot", *settings.plot);
  }
  if (line.given("operations")) {
    if (!settings.sweep) throw UsageError("--operations needs --sweep");
    settings.operations = read_operations(line.get<std::string>("operations"));
  }
  if (!settings.sweep) return;
  if (!line.given("model")) settings.model = "llama-3.2-1b";
  for (const char* name : {"prompt-tokens", "gen-tokens", "batch", "depth", "device", "trace",
                           "disk", "ddr", "dry-run", "cxl-nodes", "kv-tier"}) {
    if (line.given(name)) throw UsageError("--sweep measures on its own; leave out --{}", name);
  }
}

Settings read_settings(const CommandLine& line) {
  Settings settings;
  settings.model = line.get<std::string>("model");
  settings.weights = read_weight_choice(line);
  read_sweep(line, settings);
  settings.tests = read_tests(line);
  settings.repeat = in_range(line, "repeat", 1, 1000);
  settings.fusion = read_fusion(line);
  settings.warm_up = !line.get<bool>("no-warmup");
  settings.dtype = read_dtype(line);
  settings.cpu = read_cpu_use(line);
  if (!settings.sweep) settings.accelerator = find_accelerator(read_device(line));
  settings.tiers = read_tier_settings(line);
  if (settings.accelerator) {
    for (BenchTest& test : settings.tests) test.rows_at_once = all_rows;
  }
  settings.format = read_format(line);
  return settings;
}

/// What the probes read over and over: what each token reads of memory.
std::uint64_t working_set_bytes(const HostPlan& plan) {
  return plan.ddr().weights + plan.ddr().staging;
}

constexpr const char* smaller_tests = "use a smaller --batch, --depth or model";

/// Adds what the probes take. Throws Error when the tests do not fit. With a disk beside an
/// accelerator the plan is not the last one, and is not checked.
HostPlan check_memory(const ModelConfig& config, const Settings& settings, DType dtype,
                      HostNeed& need) {
  HostPlan plan(config, dtype, need, settings.tiers);
  const std::uint64_t of_kernels = need.workspace_bytes;
  // What the probes take depends on what stays in DDR, and less does beside it.
  for (int round = 0; round < 2; ++round) {
    need.workspace_bytes = of_kernels + ReadProbe::buffer_bytes(working_set_bytes(plan));
    plan = HostPlan(config, dtype, need, settings.tiers);
    if (plan.missing_bytes() == 0) return plan;
  }
  if (settings.accelerator && settings.tiers.disk) return plan;
  throw Error("{}", shortage_text(plan, settings.tiers, smaller_tests));
}

std::string describe(const BenchTest& test) {
  return fmt::format("{}, batch {}, depth {}", test.name(), test.batch, test.depth);
}

/// Every test once, then every test again: a machine that drifts does so for all of them.
std::vector<BenchResult> measure(const Settings& settings, const ModelDimensions& dimensions,
                                 BenchRunner& runner, RoutingRecorder* routing,
                                 MachineProbes& probes, TraceSession& trace) {
  std::vector<BenchResult> results;
  for (const BenchTest& test : settings.tests) {
    results.push_back({.test = test, .work = bench_work(test, dimensions), .samples = {}});
  }
  ProgressBar bar("measuring");
  const std::size_t rounds = static_cast<std::size_t>(settings.repeat) + (settings.warm_up ? 1 : 0);
  std::size_t done = 0;
  const auto progress = [&](const BenchTest& test) {
    bar.update(static_cast<double>(done++), static_cast<double>(rounds * results.size()),
               describe(test));
  };
  if (settings.warm_up) {
    for (const BenchTest& test : settings.tests) {
      progress(test);
      runner.warm_up(test);
    }
  }
  MachineRates before = probes.measure();
  if (routing != nullptr) routing->take();  // the warm-up's
  const TraceSession::Recording recording = trace.record();
  for (int repetition = 0; repetition < settings.repeat; ++repetition) {
    for (BenchResult& result : results) {
      progress(result.test);
      result.samples.push_back(runner.run(result.test, probes, before));
      if (routing != nullptr) result.routing += routing->take();
    }
  }
  // The limit is of the experts that rows really went through.
  for (BenchResult& result : results) {
    if (result.routing.empty()) continue;
    ModelDimensions routed = dimensions;
    routed.routing = Routing::recorded(result.routing.recorded("", dimensions.num_layers),
                                       dimensions.experts_per_token);
    result.work = bench_work(result.test, routed);
  }
  return results;
}

double probe_bf16(Runtime& runtime) {
  const PausedWorkers paused;
  return GemmProbe(runtime.setup_pool(), DType::bf16).measure();
}

/// Of the layers: "int4-g32"; "mixed" where they differ.
std::string weights_name(const ModelConfig& config, DType dtype) {
  const PackedWeights packed(config, dtype);
  const WeightFormat first = packed.layers.front()[LayerWeight::qkv].format;
  for (std::size_t i = 0; i < packed.layers.size(); ++i) {
    for (const WeightType& type : packed.types_of_layer(i)) {
      if (type.format != first) return "mixed";
    }
  }
  return to_string(first);
}

/// Of what a token reads of weights.
double mean_weight_bits(const ModelDimensions& model) {
  const double head = lm_head_elements(model);
  double bytes = model.head_bytes(head);
  double elements = head;
  const auto layers = static_cast<double>(model.num_layers);
  for (const WeightKind kind : {WeightKind::query, WeightKind::key, WeightKind::value,
                                WeightKind::out_proj, WeightKind::fc1, WeightKind::fc2}) {
    bytes += layers * model.weight_bytes(weight_elements(model, kind));
    elements += layers * weight_elements(model, kind);
  }
  return 8 * bytes / elements;
}

std::string backend_name(const Accelerator& accelerator) {
  std::string name = fmt::format("CPU ({})", onednn_isa_name());
  if (accelerator) name += " and " + accelerator.name();
  return name;
}

/// Of one expert in one layer.
double expert_bytes(const ModelDimensions& model) {
  if (model.num_experts == 0) return 0;
  return (sublayer_weight_bytes(model, Sublayer::fc1) +
          sublayer_weight_bytes(model, Sublayer::fc2)) /
         static_cast<double>(model.num_experts);
}

/// Of all tests together.
void write_routing(const std::string& path, const std::string& model, std::int64_t num_layers,
                   const std::vector<BenchResult>& results) {
  RoutingCounts all;
  for (const BenchResult& result : results) all += result.routing;
  write_file(path, format_routing(all.recorded(model, num_layers)));
}

std::optional<BenchDevice> bench_device(const RunPlan& plan, const Runtime& runtime) {
  if (plan.accelerated() == nullptr) return std::nullopt;
  const Accelerator& accelerator = plan.accelerator();
  BenchDevice device = {.resident_layers = plan.accelerated()->resident_layers(),
                        .copy_bytes_per_s = std::nullopt,
                        .graphs = runtime.graph_use()};
  if (accelerator.kind == Accelerator::Kind::cuda)
    device.copy_bytes_per_s = accelerator.copies.to_gpu_bytes_per_s;
  return device;
}

int run_tests(const Settings& settings, DType dtype, const BenchModel& opened, RunPolicy& policy,
              TraceSession& trace) {
  const ModelConfig& config = opened.model.config;
  check_context(settings.tests, config);
  RunDemand demand = bench_demand(opened, settings.tests,
                                  {.dtype = dtype,
                                   .cpu = settings.cpu,
                                   .tiers = settings.tiers,
                                   .accelerator = settings.accelerator,
                                   .fusion = settings.fusion,
                                   .smaller = smaller_tests});
  const HostPlan host = check_memory(config, settings, dtype, demand.need);
  RunPlan plan = [&] {
    const EndsSoonAfterInterrupt ends_soon;
    return plan_run(demand, host, policy);
  }();
  if (settings.tiers.dry_run) {
    std::cout << format_tiers(plan.uses(), settings.format);
    plan.check_disk();
    return 0;
  }
  if (settings.record_routing)
    check_records_routing(*settings.record_routing, opened.model.name, config,
                          static_cast<bool>(settings.accelerator));
  fmt::print(stderr, "{}", plan.slower_than_one_device());
  trace.computed_by(json_text(cpu_plan_as_json(settings.cpu)));
  trace.divide_stages_by(plan.costs().model, plan.policy_run().memory());
  LoadedRun run(plan);
  BenchRunner runner(run.model(), run.kv().front(), run.runtime(),
                     {.num_slots = max_batch(settings.tests), .fusion = settings.fusion},
                     &plan.policy_run());
  MachineProbes probes(run.runtime(), dtype, working_set_bytes(plan.host()));
  const ModelDimensions dimensions = model_dimensions(config, dtype);
  // Of rows whose experts a device computes nobody knows them.
  const bool counts_experts = config.num_experts > 0 && !settings.accelerator;
  RoutingRecorder* routing = counts_experts ? &run.runtime().record_routing() : nullptr;
  const std::vector<BenchResult> results =
      measure(settings, dimensions, runner, routing, probes, trace);
  const BenchContext context = {
      .model = opened.model.name,
      .weight_bytes = run.model().weight_bytes(),
      .weights = weights_name(config, dtype),
      .head_weights = to_string(PackedWeights(config, dtype).head.format),
      .weight_bits = mean_weight_bits(dimensions),
      .experts = config.num_experts,
      .experts_per_token = config.experts_per_token,
      .expert_bytes = expert_bytes(dimensions),
      .dtype = dtype,
      .backend = backend_name(plan.accelerator()),
      .policy = plan.policy().name(),
      .policy_reason = policy.describe(),
      .threads = run.runtime().num_threads(),
      .cpu_plan = cpu_plan_as_json(settings.cpu),
      .cut_text = settings.cpu.cut_text(),
      .tuned_gemm_shapes = run.tuned_gemm_shapes(),
      .load_s = run.load_s(),
      .gemm_bf16_flop_per_s =
          dtype == DType::bf16 ? std::nullopt : std::optional(probe_bf16(run.runtime())),
      .device = bench_device(plan, run.runtime())};
  std::cout << format_bench(settings.format, context, results);
  if (settings.record_routing)
    write_routing(*settings.record_routing, context.model, config.num_layers, results);
  fmt::print(stderr, "{}", run.summary());
  if (plan.host().cxl()) {
    fmt::print(stderr, "{}", LayerPlacement(run.model(), plan.host(), settings.tiers).summary());
  }
  return 0;
}

/// The architecture alone is needed, of a folder its config.json.
int run_sweep(const Settings& settings, DType dtype) {
  const std::string& name = settings.model;
  ModelConfig model = names_model(name) ? read_model_config(name) : find_shape(name);
  settings.weights.use_on(name, model);
  if (settings.plot) check_writable(*settings.plot);
  Runtime runtime({.cores = settings.cpu.cores, .groups = settings.cpu.groups()});
  follow_kept_gemm_schedules(dtype, settings.cpu);
  ProgressBar bar("measuring");
  const std::vector<SweepPoint> points =
      sweep(model, runtime,
            {.dtype = dtype,
             .repeat = settings.repeat,
             .operations = settings.operations,
             .progress = [&bar](std::int64_t done, std::int64_t total, const std::string& what) {
               bar.update(static_cast<double>(done), static_cast<double>(total), what);
             }});
  bar.clear();
  std::cout << format_sweep(settings.format, name, dtype, runtime.num_threads(), points);
  if (settings.plot) {
    write_file(*settings.plot, draw_plots(sweep_plots(name, dtype, points),
                                          picture_format("plot", *settings.plot)));
  }
  return 0;
}

}  // namespace

int run_bench(const CommandLine::Arguments& arguments) {
  CommandLine line("sluice bench [--model DIR|SHAPE] [options]",
                   "Measures tokens per second, beside the share of what this machine's memory and "
                   "arithmetic allow.");
  declare_options(line);
  if (!line.parse(arguments)) return 0;
  const Settings settings = read_settings(line);
  const DType dtype = choose_dtype(settings.dtype);
  RunPolicy policy(read_policy(line));
  if (settings.sweep) return run_sweep(settings, dtype);
  const BenchModel opened = open_bench_model(settings.model, dtype, [&](ModelConfig& config) {
    settings.weights.use_on(settings.model, config);
  });
  TraceSession trace(read_trace_folder(line));
  return trace.around([&] { return run_tests(settings, dtype, opened, policy, trace); }, false);
}

}  // namespace sluice
