#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/median.h"
#include "base/memory.h"
#include "base/units.h"
#include "engine/commands/options/command_line.h"
#include "engine/commands/options/compute_options.h"
#include "engine/commands/options/device_options.h"
#include "engine/commands/options/output_options.h"
#include "engine/commands/subcommands.h"
#include "engine/console/interrupt.h"
#include "engine/console/progress.h"
#include "engine/machine/calibration_store.h"
#include "engine/machine/compute.h"
#include "engine/machine/gemm_schedule_store.h"
#include "engine/machine/machine_costs.h"
#include "engine/measure/calibrate.h"
#include "engine/run/device.h"
#include "perfmodels/measured_model.h"
#include "schedulers/loader.h"

namespace sluice {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;
namespace po = boost::program_options;

void declare_options(CommandLine& line) {
  line.options().add_options()  //
      ("model,m", po::value<std::string>()->default_value("tiny"),
       "Hugging Face folder; tiny: the embedded model; or the name of a shape. Only the sizes of "
       "its "
       "layers matter");
  declare_compute_options(line);
  line.options().add_options()                                                           //
      ("repeat", po::value<int>()->default_value(3), "repetitions of each measurement")  //
      ("force", po::bool_switch(), "measure again what was measured before")             //
      ("check", po::bool_switch(),
       "measure batches between the calibrated ones and compare them with what is predicted");
  declare_device_options(line);
  declare_format(line);
}

struct Settings {
  std::string model;
  ModelConfig config;
  DType dtype = DType::bf16;
  CpuUse cpu;
  Accelerator accelerator;  ///< that is measured; none: the CPU
  std::string cpu_plan;     ///< as --cpu-plan says it; empty: it does not
  CalibrationSetup setup;
  int repeat = 3;
  OutputFormat format = OutputFormat::table;

  ModelDimensions dimensions() const { return model_dimensions(config, dtype); }
  Device device() const { return accelerator ? Device::gpu : Device::cpu; }
  /// Standard output is for programs to read.
  bool has_objects() const { return format == OutputFormat::json || format == OutputFormat::csv; }
  /// "--model tiny", and what else names the calibration.
  std::string options() const {
    std::string text = "--model " + model;
    if (accelerator.kind == Accelerator::Kind::cuda) text += " --device cuda";
    if (accelerator.kind == Accelerator::Kind::stand_in)
      text += fmt::format(" --device standin:{}MiB", accelerator.memory_bytes >> 20);
    if (!cpu_plan.empty()) text += " --cpu-plan " + cpu_plan;
    return text;
  }
};

Settings read_settings(const CommandLine& line) {
  if (line.get<bool>("check") && line.get<bool>("force"))
    throw UsageError("--check measures nothing that is kept; leave out --force");
  Settings settings;
  settings.model = line.get<std::string>("model");
  settings.repeat = in_range(line, "repeat", 1, 100);
  settings.format = read_format(line);
  const std::optional<DType> dtype = read_dtype(line);
  settings.config = find_model_config(settings.model);
  settings.dtype = choose_dtype(dtype);
  decoder_shape(settings.config, settings.dtype);  // throws for shapes that cannot run
  settings.cpu = read_cpu_use(line);
  if (line.given("cpu-plan")) settings.cpu_plan = line.get<std::string>("cpu-plan");
  if (line.given("device") || line.given("hbm")) {
    settings.accelerator =
        find_accelerator(read_device(line))
            .sized_for(settings.config, settings.dtype,
                       largest_calibration_iteration(settings.config, settings.dtype));
  }
  settings.setup =
      calibration_setup(settings.dtype, settings.cpu.num_threads(),
                        settings.accelerator.calibration_name(), settings.cpu.cut_text());
  return settings;
}

/// Everything on an accelerator, as a run has it.
struct AcceleratedPart {
  MachineCosts costs;
  AcceleratorRun run;
  PolicyRun policy;

  /// What is planned is where things live: any workload does.
  static constexpr Workload workload = {.batch = 1, .input_tokens = 1, .output_tokens = 1};

  AcceleratedPart(const Settings& settings, std::int64_t num_layers, LoadedPolicy& loaded)
      : costs(run_costs(model_dimensions(with_layers(settings.config, num_layers), settings.dtype),
                        {.dtype = settings.dtype,
                         .threads = static_cast<int>(settings.setup.threads),
                         .cpu_plan = settings.setup.cpu_plan},
                        settings.accelerator)),
        run(settings.accelerator, loaded, *costs.model, workload, {}),
        policy(loaded.policy(), *costs.model, workload, {}) {}
};

/// The machine as a run uses it, and what of a calibration fits it.
struct Machine {
  LoadedPolicy policy;
  CalibrationLimits limits;
  std::optional<AcceleratedPart> accelerated;
  Runtime runtime;
  std::optional<MachineRates> gpu;  ///< of a GPU only

  explicit Machine(const Settings& settings)
      : policy(settings.accelerator ? "gpu-only" : "cpu-only", {}),
        limits(limits_of(settings)),
        runtime(planned(settings)) {
    follow_kept_gemm_schedules(settings.dtype, settings.cpu);
    if (settings.accelerator.kind == Accelerator::Kind::cuda)
      gpu = gpu_rates(settings.accelerator.gpu);
    limits.rates = gpu ? *gpu
                       : MachineProbes(runtime, settings.dtype,
                                       packed_weight_bytes(settings.config, settings.dtype))
                             .measure();
  }

  BatchMeter meter(const Settings& settings, const std::vector<CalibrationBatch>& batches) {
    const auto metered =
        accelerated ? std::optional(MeteredAccelerator{accelerated->run, accelerated->policy, gpu})
                    : std::nullopt;
    return {settings.config, settings.dtype, runtime, limits.num_layers, batches, metered};
  }

 private:
  static CalibrationLimits limits_of(const Settings& settings) {
    if (settings.accelerator)
      return limits_on(settings.accelerator, settings.config, settings.dtype);
    CalibrationLimits limits;
    limits.num_layers = calibration_layers(settings.config, settings.dtype);
    return limits;
  }
  /// What StarPU starts with, once what runs on an accelerator is planned.
  RuntimeOptions planned(const Settings& settings) {
    if (settings.accelerator) accelerated.emplace(settings, limits.num_layers, policy);
    return settings.accelerator.runtime_options({.cores = settings.cpu.cores,
                                                 .groups = settings.cpu.groups(),
                                                 .scheduler = policy.scheduler(),
                                                 .stand_in_bytes = 0,
                                                 .gpu_bytes = 0,
                                                 .gpu_launches = GpuWorker::Launches::timed});
  }
};

std::string file_of(const Settings& settings) {
  return calibration_path(settings.setup, settings.dimensions()).string();
}

Calibration started(const Settings& settings, bool force) {
  if (!force) {
    if (auto found = read_calibration(settings.setup, settings.dimensions())) {
      found->repetitions = std::max<std::int64_t>(found->repetitions, settings.repeat);
      return *found;
    }
  }
  Calibration calibration;
  calibration.setup = settings.setup;
  calibration.model = settings.dimensions();
  calibration.ddr_bytes = total_memory_bytes();
  calibration.repetitions = settings.repeat;
  return calibration;
}

/// What is shown of a calibration.
constexpr std::array<std::int64_t, 4> shown_rows = {1, 8, 64, 512};
constexpr std::int64_t shown_context = 2048;
constexpr std::array<Sublayer, 6> shown_sublayers = {Sublayer::qkv,     Sublayer::out_proj,
                                                     Sublayer::fc1,     Sublayer::fc2,
                                                     Sublayer::lm_head, Sublayer::attention};

/// Seconds of one of them in a decode iteration of so many rows.
double predicted_s(const MeasuredModel& costs, Device device, Sublayer sublayer,
                   std::int64_t rows) {
  if (sublayer == Sublayer::lm_head) return costs.lm_head_s(device, rows);
  return costs.compute_s(device, sublayer, BatchShape::decode(rows, shown_context));
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::lround(seconds));
  return whole < 60 ? fmt::format("{} s", whole)
                    : fmt::format("{} min {:02} s", whole / 60, whole % 60);
}

/// Seconds of a measurement beside the batch itself: two probes.
constexpr double probe_s = 0.08;

/// "62.0 GB/s (33.1 to 66.3)"
std::string range_text(const Calibration& calibration, double median, double MachineRates::*rate,
                       double unit, const char* name) {
  double least = median;
  double most = median;
  for (const CalibrationPoint& point : calibration.points) {
    for (const CalibrationSample& sample : point.samples) {
      least = std::min(least, sample.rates.*rate);
      most = std::max(most, sample.rates.*rate);
    }
  }
  return fmt::format("{:.3g} {} ({:.3g} to {:.3g})", median / unit, name, least / unit,
                     most / unit);
}

/// A line for each: latency is the smallest piece's time, the rate the largest one's.
std::string links_text(const Calibration& calibration, const MeasuredModel& costs) {
  std::string text;
  std::set<std::array<Tier, 2>> said;
  for (const CalibrationLink& link : calibration.links) {
    if (!said.insert({link.from, link.to}).second) continue;
    const double small = link.points.front().bytes;
    const double large = link.points.back().bytes;
    text += fmt::format("{} to {}: {:.0f} us for {}, {:.3g} GB/s for {}\n", to_string(link.from),
                        to_string(link.to), costs.transfer_s(link.from, link.to, small) * 1e6,
                        format_bytes(static_cast<std::uint64_t>(small)),
                        large / costs.transfer_s(link.from, link.to, large) * 1e-9,
                        format_bytes(static_cast<std::uint64_t>(large)));
  }
  return text;
}

/// The same figures as objects, in seconds and bytes per second: CSV has the predictions alone.
std::string describe_objects(const Settings& settings, const Calibration& calibration,
                             const MeasuredModel& costs) {
  Json predicted = Json::array();
  for (const std::int64_t count : shown_rows) {
    Json& row = predicted.emplace_back();
    row["rows"] = count;
    row["context_tokens"] = shown_context;
    for (const Sublayer sublayer : shown_sublayers)
      row[fmt::format("{}_s", to_string(sublayer))] =
          predicted_s(costs, settings.device(), sublayer, count);
  }
  if (settings.format == OutputFormat::csv) return format_objects(settings.format, predicted);
  Json json;
  json["model"] = settings.model;
  json["device"] = to_string(settings.device());
  json["dtype"] = settings.setup.dtype;
  json["threads"] = settings.setup.threads;
  json["cpu_plan"] = Json(cpu_plan_as_json(settings.cpu));
  json["file"] = file_of(settings);
  json["batches"] = calibration.points.size();
  json["repetitions"] = calibration.repetitions;
  json["read_bandwidth_bytes_per_s"] = costs.rates().read_bandwidth_bytes_per_s;
  json["gemm_flop_per_s"] = costs.rates().gemm_flop_per_s;
  json["task_overhead_s"] = costs.task_overhead_s(settings.device(), 1);
  json["predicted"] = std::move(predicted);
  json["links"] = Json::array();
  for (const CalibrationLink& link : calibration.links) {
    for (const auto& point : link.points) {
      json["links"].push_back({{"from", to_string(link.from)},
                               {"to", to_string(link.to)},
                               {"bytes", point.bytes},
                               {"seconds", costs.transfer_s(link.from, link.to, point.bytes)}});
    }
  }
  return format_objects(settings.format, Json::array({json}));
}

/// What is predicted at some of the buckets, and the rates that it is for.
std::string describe(const Settings& settings, const Calibration& calibration) {
  const MeasuredModel costs(calibration, settings.dimensions());
  if (settings.has_objects()) return describe_objects(settings, calibration, costs);
  TableRows rows = {{"rows"}};
  for (const Sublayer sublayer : shown_sublayers) rows.front().emplace_back(to_string(sublayer));
  rows.front().back() += fmt::format(", context {}", shown_context);
  for (const std::int64_t count : shown_rows) {
    std::vector<std::string>& row = rows.emplace_back();
    row.push_back(fmt::format("{}", count));
    for (const Sublayer sublayer : shown_sublayers)
      row.push_back(format_seconds(predicted_s(costs, settings.device(), sublayer, count)));
  }
  const auto table = settings.format == OutputFormat::markdown ? format_markdown : format_table;
  const MachineRates& rates = costs.rates();
  return table(rows) +
         fmt::format("\none layer in {}, {} threads{}, at {}, {}; task overhead {:.1f} us\n",
                     settings.setup.dtype, settings.setup.threads,
                     settings.setup.cpu_plan.empty() ? "" : ", " + settings.setup.cpu_plan,
                     range_text(calibration, rates.read_bandwidth_bytes_per_s,
                                &MachineRates::read_bandwidth_bytes_per_s, 1e9, "GB/s"),
                     range_text(calibration, rates.gemm_flop_per_s, &MachineRates::gemm_flop_per_s,
                                1e12, "TFLOP/s"),
                     costs.task_overhead_s(settings.device(), 1) * 1e6) +
         links_text(calibration, costs);
}

int run_measurements(const Settings& settings, bool force) {
  Calibration calibration = started(settings, force);
  if (calibration.complete()) {
    fmt::print(stderr, "sluice: {} is calibrated already; --force measures again\n",
               settings.model);
    std::cout << describe(settings, calibration);
    if (!settings.has_objects()) std::cout << file_of(settings) << "\n";
    return 0;
  }
  if (!calibration.points.empty())
    fmt::print(stderr, "sluice: going on with {}\n", file_of(settings));
  write_calibration(calibration);  // while nothing is lost yet
  const Clock::time_point start = Clock::now();
  Machine machine(settings);
  const std::vector<CalibrationBatch> batches =
      calibration_batches(settings.config, settings.dtype, machine.limits);
  ProgressBar bar("calibrating");
  bar.update(0, 1, "loading");
  BatchMeter meter = machine.meter(settings, batches);
  const ModelDimensions model = settings.dimensions();
  calibrate(
      calibration, meter, batches,
      [&](const CalibrationBatch& batch) {
        return probe_s + foreseen_s(batch, model, machine.limits.num_layers, machine.limits.rates);
      },
      [&](double done_s, double total_s, const std::string& what) {
        const double spent_s = std::chrono::duration<double>(Clock::now() - start).count();
        const double left_s = done_s > 0 ? spent_s * (total_s - done_s) / done_s : total_s;
        bar.update(done_s, total_s, fmt::format("{} left, {}", duration_text(left_s), what));
      },
      [&] { write_calibration(calibration); });
  bar.clear();
  const double spent_s = std::chrono::duration<double>(Clock::now() - start).count();
  std::cout << describe(settings, calibration);
  if (settings.has_objects()) return 0;
  const auto [fewest, most] = std::minmax_element(
      calibration.points.begin(), calibration.points.end(),
      [](const auto& a, const auto& b) { return a.samples.size() < b.samples.size(); });
  const std::size_t least = fewest->samples.size();
  const std::string at_least = least < most->samples.size() ? fmt::format("{} to ", least) : "";
  std::cout << fmt::format("{} batches, measured {}{} times, {}: {}\n", batches.size(), at_least,
                           most->samples.size(), duration_text(spent_s), file_of(settings));
  return 0;
}

/// One sublayer of one batch: medians over the repetitions.
struct Compared {
  CalibrationBatch batch;
  Sublayer sublayer = Sublayer::qkv;
  double measured_s = 0;
  double predicted_s = 0;  ///< at the calibration's rates
  double at_rates_s = 0;   ///< at the rates probed beside the measurement
  double error = 0;        ///< predicted over measured, less 1; median
  double error_at_rates = 0;
  /// Of the measurement: the middle half of its repetitions, each over what is predicted at its
  /// rates, lies within this share around their middle.
  double spread = 0;
};

/// Half of the distance between the quartiles, over their middle; of fewer than four values the
/// whole range counts.
double spread_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t quarter = values.size() / 4;
  const double low = values[quarter];
  const double high = values[values.size() - 1 - quarter];
  return (high - low) / (high + low);
}

double predicted_s(const MeasuredModel& costs, const CalibrationBatch& batch, Sublayer sublayer) {
  return sublayer == Sublayer::lm_head ? costs.lm_head_s(costs.device(), batch.logit_rows)
                                       : costs.compute_s(costs.device(), sublayer, batch.shape);
}

/// `beside`: the costs at each sample's rates.
Compared compare(const MeasuredModel& costs, const std::vector<MeasuredModel>& beside,
                 const CalibrationPoint& point, Sublayer sublayer) {
  Compared compared = {.batch = point.batch, .sublayer = sublayer};
  compared.predicted_s = predicted_s(costs, point.batch, sublayer);
  std::vector<double> measured;
  std::vector<double> at_rates;
  std::vector<double> errors;
  std::vector<double> errors_at_rates;
  std::vector<double> ratios;
  for (std::size_t i = 0; i < point.samples.size(); ++i) {
    const double seconds = point.samples[i].seconds[timed_index(sublayer)];
    measured.push_back(seconds);
    at_rates.push_back(predicted_s(beside[i], point.batch, sublayer));
    errors.push_back(compared.predicted_s / seconds - 1);
    errors_at_rates.push_back(at_rates.back() / seconds - 1);
    ratios.push_back(seconds / at_rates.back());
  }
  compared.measured_s = median(measured);
  compared.at_rates_s = median(at_rates);
  compared.error = median(errors);
  compared.error_at_rates = median(errors_at_rates);
  compared.spread = spread_of(ratios);
  return compared;
}

constexpr double wanted_error = 0.1;
bool is_within(double error) { return std::abs(error) <= wanted_error; }

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

/// Median and worst of the absolute errors of a sublayer, and how many are within 10%.
void add_summary(TableRows& rows, const std::vector<Compared>& all, Sublayer sublayer,
                 double Compared::*error, const char* what) {
  std::vector<double> errors;
  const Compared* worst = nullptr;
  for (const Compared& each : all) {
    if (each.sublayer != sublayer) continue;
    errors.push_back(std::abs(each.*error));
    if (worst == nullptr || std::abs(each.*error) > std::abs(worst->*error)) worst = &each;
  }
  if (worst == nullptr) return;
  const auto within = std::count_if(errors.begin(), errors.end(), is_within);
  rows.push_back({std::string(to_string(sublayer)), what, percent(median(errors)),
                  percent(worst->*error), fmt::format("{} of {}", within, errors.size()),
                  describe(worst->batch)});
}

/// How many predictions are true, and of those that are not, how many measurements say no better
/// themselves how long it takes.
std::string verdict(const std::vector<Compared>& all, int repeat) {
  const auto is_true = [](const Compared& each) { return is_within(each.error_at_rates); };
  const auto near = std::count_if(all.begin(), all.end(), is_true);
  const auto unsteady = std::count_if(all.begin(), all.end(), [&](const Compared& each) {
    return !is_true(each) && !is_within(each.spread);
  });
  std::string text =
      fmt::format("{} of {} are within 10 % at the rates probed beside", near, all.size());
  if (near < std::ssize(all) && repeat > 1) {
    text += fmt::format("; of the other {}, {} do not repeat within 10 % themselves",
                        std::ssize(all) - near, unsteady);
  }
  return text;
}

std::string format_check(const Settings& settings, const std::vector<Compared>& all) {
  if (settings.format == OutputFormat::table || settings.format == OutputFormat::markdown) {
    TableRows rows = {{"sublayer", "against", "median", "worst", "within 10 %", "worst at"}};
    for (const Sublayer sublayer : timed_sublayers) {
      add_summary(rows, all, sublayer, &Compared::error, "calibrated rates");
      add_summary(rows, all, sublayer, &Compared::error_at_rates, "rates probed beside");
      if (settings.repeat > 1)
        add_summary(rows, all, sublayer, &Compared::spread, "its repetitions");
    }
    const auto table = settings.format == OutputFormat::table ? format_table : format_markdown;
    return fmt::format("{}\n{}\n", table(rows), verdict(all, settings.repeat));
  }
  Json objects = Json::array();
  for (const Compared& each : all) {
    const BatchShape& shape = each.batch.shape;
    objects.push_back({{"phase", to_string(shape.phase)},
                       {"batch", shape.batch},
                       {"rows", shape.rows},
                       {"context", shape.context},
                       {"sublayer", to_string(each.sublayer)},
                       {"measured_s", each.measured_s},
                       {"predicted_s", each.predicted_s},
                       {"predicted_at_rates_s", each.at_rates_s},
                       {"error", each.error},
                       {"error_at_rates", each.error_at_rates},
                       {"spread", settings.repeat > 1 ? Json(each.spread) : Json()}});
  }
  return format_objects(settings.format, objects);
}

int run_check(const Settings& settings) {
  const std::optional<Calibration> calibration =
      read_calibration(settings.setup, settings.dimensions());
  if (!calibration || !calibration->complete())
    throw Error("{} is not calibrated; run sluice calibrate {} first", settings.model,
                settings.options());
  const MeasuredModel costs(*calibration, settings.dimensions());
  Machine machine(settings);
  std::vector<CalibrationBatch> batches =
      check_batches(settings.config, settings.dtype, machine.limits);
  std::erase_if(batches, [&](const auto& batch) { return calibration->find(batch) != nullptr; });
  if (batches.empty())
    throw Error("{} is too small to check: no batch lies between", settings.model);
  ProgressBar bar("checking");
  BatchMeter meter = machine.meter(settings, batches);
  Calibration measured;
  measured.repetitions = settings.repeat;
  calibrate(
      measured, meter, batches, [](const CalibrationBatch&) { return 1.0; },
      [&](double done, double total, const std::string& what) { bar.update(done, total, what); },
      [] {});
  bar.clear();
  std::vector<Compared> all;
  for (const CalibrationPoint& point : measured.points) {
    std::vector<MeasuredModel> beside;
    beside.reserve(point.samples.size());
    for (const CalibrationSample& sample : point.samples)
      beside.push_back(costs.at_rates(sample.rates));
    for (const Sublayer sublayer : timed_sublayers) {
      if (point.samples.front().seconds[timed_index(sublayer)] > 0)
        all.push_back(compare(costs, beside, point, sublayer));
    }
  }
  std::cout << format_check(settings, all);
  return 0;
}

}  // namespace

int run_calibrate(const CommandLine::Arguments& arguments) {
  CommandLine line(
      "sluice calibrate --model DIR|SHAPE [options]",
      "Measures how long each sublayer of a model takes here, over tokens and context. "
      "What it finds is kept for plan, generate and bench; interrupted, it goes on "
      "where it was.");
  declare_options(line);
  if (!line.parse(arguments)) return 0;
  const Settings settings = read_settings(line);
  return line.get<bool>("check") ? run_check(settings)
                                 : run_measurements(settings, line.get<bool>("force"));
}

}  // namespace sluice
