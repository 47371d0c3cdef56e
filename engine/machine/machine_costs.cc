#include "engine/machine/machine_costs.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/cpu.h"
#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "codelets/weights/plain.h"
#include "engine/machine/calibration_store.h"
#include "engine/machine/compute.h"
#include "models/model.h"
#include "perfmodels/accelerated_model.h"
#include "perfmodels/analytic_model.h"
#include "perfmodels/calibration_transfer.h"
#include "perfmodels/measured_model.h"

namespace sluice {
namespace {

/// Of a desktop processor.
constexpr MachineRates nominal_rates = {.read_bandwidth_bytes_per_s = 50e9,
                                        .gemm_flop_per_s = 1e12};

/// A calibration's layers, by a shape that has them.
std::string name_of(const ModelDimensions& calibrated, DType dtype) {
  for (const NamedShape& shape : named_shapes()) {
    if (same_layers(calibrated, model_dimensions(shape.config, dtype))) return shape.name;
  }
  return fmt::format("a model of {} wide layers", calibrated.hidden_size);
}

struct FoundCalibration {
  Calibration calibration;
  std::string carried_from;  ///< MachineCosts::carried_from
};

/// The model's own, or the nearest other one, carried over.
std::optional<FoundCalibration> find_calibration(const CalibrationSetup& setup,
                                                 const ModelDimensions& model, DType dtype) {
  if (auto own = read_calibration(setup, model); own && own->complete())
    return FoundCalibration{std::move(*own), ""};
  const std::optional<Calibration> nearest = nearest_calibration(setup, model);
  if (!nearest) return std::nullopt;
  return FoundCalibration{transferred(*nearest, model), name_of(nearest->model, dtype)};
}

}  // namespace

std::string rates_text(const MachineRates& rates) {
  return fmt::format("{:.1f} GB/s, {:.3f} TFLOP/s", rates.read_bandwidth_bytes_per_s * 1e-9,
                     rates.gemm_flop_per_s * 1e-12);
}

std::optional<MachineCosts> calibrated_costs(const ModelDimensions& model, const HostUse& use,
                                             const std::optional<MachineRates>& rates,
                                             const std::string& device) {
  CalibrationSetup setup = calibration_setup(use.dtype, use.threads, device, use.cpu_plan);
  std::optional<FoundCalibration> found = find_calibration(setup, model, use.dtype);
  if (!found && !setup.cpu_plan.empty()) {
    setup.cpu_plan.clear();
    found = find_calibration(setup, model, use.dtype);
  }
  if (!found) return std::nullopt;
  auto costs = std::make_unique<MeasuredModel>(found->calibration, model);
  std::string source = fmt::format("calibrated at {}", rates_text(costs->rates()));
  if (setup.cpu_plan != use.cpu_plan) source += " without the CPU plan";
  if (rates) *costs = costs->at_rates(*rates);
  if (!found->carried_from.empty())
    source = fmt::format("carried over from {}, {}", found->carried_from, source);
  return MachineCosts{this_machine, std::move(source), true, std::move(found->carried_from),
                      std::move(costs)};
}

void say_if_carried(const MachineCosts& costs, const std::string& model_name) {
  if (costs.carried_from.empty()) return;
  fmt::print(stderr,
             "sluice: {} is not calibrated here, predicting by the rates of {}; sluice calibrate "
             "--model {} does better\n",
             model_name, costs.carried_from, model_name);
}

MachineCosts analytic_costs(const ModelDimensions& model, const MachineRates& rates,
                            const std::string& source) {
  return {this_machine, fmt::format("{}: {}", source, rates_text(rates)), false, "",
          std::make_unique<AnalyticModel>(host_profile(rates, source), model)};
}

MachineProfile host_profile(const MachineRates& rates, const std::string& source) {
  constexpr double gib = static_cast<double>(std::uint64_t{1} << 30);
  const double gb_per_s = rates.read_bandwidth_bytes_per_s * 1e-9;
  const double tflop_per_s = rates.gemm_flop_per_s * 1e-12;
  const CpuTopology topology = read_cpu_topology();
  const auto cores = static_cast<double>(topology.cores.size());
  const auto from = [&](double value) { return Sourced<double>{value, source}; };
  MachineProfile profile = {
      .name = this_machine,
      .description = "the machine at hand",
      .causal_attention = {1, "ours: masked keys are skipped"},
      .cpu = {.name = topology.model_name,
              .cores = Sourced<double>{cores, "measured: number of cores"},
              .memory_bandwidth_gb_per_s = from(gb_per_s),
              .gemm_tflop_per_s = {Curve::constant(tflop_per_s), source},
              .attention_bandwidth_gb_per_s = {Surface::constant(gb_per_s), source},
              .attention_tflop_per_s = {Curve::constant(tflop_per_s), source},
              .combine = Combine::max,
              .task_overhead_us = {2.5, "measured: an empty task takes 2 to 3 us"},
              .dequantize_gb_per_s = std::nullopt,
              .idle_watts = std::nullopt,
              .busy_watts = std::nullopt,
              .price_usd = std::nullopt},
      .gpu = std::nullopt,
      .num_gpus = std::nullopt,
      .all_reduce = std::nullopt,
      .tiers = {},
      .links = {},
      .system = {}};
  profile.tiers[static_cast<std::size_t>(Tier::ddr)] = {
      .capacity_gib = {static_cast<double>(total_memory_bytes()) / gib, "measured: total memory"},
      .reserved_gib = std::nullopt,
      .cpu_bandwidth_gb_per_s = std::nullopt};
  return profile;
}

MachineProfile profile_of_host(const MachineCosts& costs) {
  const auto* analytic = dynamic_cast<const AnalyticModel*>(costs.model.get());
  if (analytic != nullptr) return analytic->profile();
  const auto* measured = dynamic_cast<const MeasuredModel*>(costs.model.get());
  return host_profile(measured != nullptr ? measured->rates() : nominal_rates, costs.source);
}

namespace {

/// calibrated_costs() with its error said, and left.
std::optional<MachineCosts> usable_calibration(const ModelDimensions& model, const HostUse& use,
                                               const std::string& device) {
  try {
    return calibrated_costs(model, use, std::nullopt, device);
  } catch (const Error& error) {
    if (is_first_time(error.what()))
      fmt::print(stderr, "sluice: {}; going on without the calibration\n", error.what());
    return std::nullopt;
  }
}

}  // namespace

namespace {

double in_gib(std::uint64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(std::uint64_t{1} << 30);
}

TierProfile accelerator_memory(std::uint64_t bytes, double reserved_gib, const char* why) {
  return {.capacity_gib = {in_gib(bytes), "asked for"},
          .reserved_gib = Sourced<double>{reserved_gib, why},
          .cpu_bandwidth_gb_per_s = std::nullopt};
}

LinkProfile link(Tier from, Tier to, double gb_per_s, double latency_us,
                 const std::string& source) {
  return {.from = from,
          .to = to,
          .bandwidth_gb_per_s = {Curve::constant(gb_per_s), source},
          .latency_us = {latency_us, source}};
}

/// Dense bf16 (f16 on 7.5) operations a clock and multiprocessor, by NVIDIA's data sheets.
double flops_per_clock(int compute_capability) {
  if (compute_capability >= 100) return 8192;
  if (compute_capability >= 90) return 4096;
  if (compute_capability == 80) return 2048;
  return compute_capability >= 86 ? 512 : 1024;
}

DeviceProfile gpu_profile(const GpuDevice& gpu) {
  // What GEMMs and attention reach of it.
  constexpr double share_of_peak = 0.6;
  constexpr double share_of_bandwidth = 0.8;
  const std::string source = "assumed: of what CUDA says of the device";
  const double tflop_per_s = share_of_peak * 1e-12 * gpu.clock_hz * gpu.num_multiprocessors *
                             flops_per_clock(gpu.compute_capability);
  const double gb_per_s = share_of_bandwidth * 1e-9 * gpu.memory_bandwidth_bytes_per_s;
  return {.name = gpu.name,
          .cores = std::nullopt,
          .memory_bandwidth_gb_per_s = {gb_per_s, source},
          .gemm_tflop_per_s = {Curve::constant(tflop_per_s), source},
          .attention_bandwidth_gb_per_s = {Surface::constant(gb_per_s), source},
          .attention_tflop_per_s = {Curve::constant(tflop_per_s), source},
          .combine = Combine::max,
          .task_overhead_us = {10, "assumed: launching a task's kernels"},
          .dequantize_gb_per_s = std::nullopt,
          .idle_watts = std::nullopt,
          .busy_watts = std::nullopt,
          .price_usd = std::nullopt};
}

/// `host`, and CXL memory.
MachineCosts with_cxl(const MachineCosts& host, const ModelDimensions& model,
                      const CxlMemory& cxl) {
  MachineProfile profile = profile_of_host(host);
  const std::string source = cxl.is_emulated ? "emulated in DDR" : "assumed: half of DDR's rate";
  const double ddr_gb_per_s = profile.cpu.memory_bandwidth_gb_per_s.value;
  const double gb_per_s = cxl.is_emulated ? ddr_gb_per_s : ddr_gb_per_s / 2;
  profile.tiers[static_cast<std::size_t>(Tier::cxl)] = {
      .capacity_gib = {in_gib(cxl.bytes), "asked for"},
      .reserved_gib = std::nullopt,
      .cpu_bandwidth_gb_per_s = Sourced<double>{gb_per_s, source}};
  for (const auto& [from, to] : {std::pair(Tier::cxl, Tier::ddr), {Tier::ddr, Tier::cxl}})
    profile.links.push_back(link(from, to, gb_per_s, 0, source));
  return {host.machine, fmt::format("{}, and CXL memory", host.source), false, "",
          std::make_unique<AnalyticModel>(std::move(profile), model)};
}

/// `host`, and the stand-in accelerator: as `measured` knows it, else as fast as the CPU.
MachineCosts with_stand_in(MachineCosts host, std::optional<MachineCosts> measured,
                           const SimulatedStandIn& stand_in) {
  /// Of a local socket on a desktop processor.
  constexpr LinkRate nominal_link = {.bytes_per_s = 2e9, .latency_s = 50e-6};
  constexpr std::uint64_t padding_share = 16;
  host.source += fmt::format(", and a stand-in accelerator {}",
                             measured ? measured->source : "of the same speed");
  host.calibrated = false;
  AcceleratedModel::Parts parts = {
      .cpu = std::move(host.model),
      .accelerator = measured ? std::move(measured->model) : nullptr,
      .hbm_bytes = stand_in.memory_bytes - stand_in.memory_bytes / padding_share,
      .link = stand_in.link,
      .shares_cores = true};
  if (!measured && !parts.link) parts.link = nominal_link;
  host.model = std::make_unique<AcceleratedModel>(std::move(parts));
  return host;
}

}  // namespace

MachineCosts host_costs(const ModelDimensions& model, const HostUse& use) {
  std::optional<MachineCosts> host = usable_calibration(model, use, "");
  if (!host) host = analytic_costs(model, nominal_rates, "assumed: a desktop processor");
  return use.cxl ? with_cxl(*host, model, *use.cxl) : std::move(*host);
}

MachineCosts stand_in_costs(const ModelDimensions& model, const HostUse& use,
                            const Accelerator& accelerator) {
  return with_stand_in(host_costs(model, use),
                       usable_calibration(model, use, accelerator.calibration_name()),
                       {.memory_bytes = accelerator.memory_bytes, .link = std::nullopt});
}

MachineRates gpu_rates(const GpuDevice& gpu) {
  const DeviceProfile profile = gpu_profile(gpu);
  return {.read_bandwidth_bytes_per_s = 1e9 * profile.memory_bandwidth_gb_per_s.value,
          .gemm_flop_per_s = 1e12 * profile.gemm_tflop_per_s.value.at(1)};
}

MachineCosts gpu_costs(const ModelDimensions& model, const HostUse& use,
                       const Accelerator& accelerator) {
  constexpr std::uint64_t most_padding_bytes = std::uint64_t{2} << 30;
  constexpr double latency_us = 10;
  const std::uint64_t memory_bytes = accelerator.memory_bytes;
  const std::uint64_t reserved_bytes = std::min(
      memory_bytes, std::min(memory_bytes / 16, most_padding_bytes) + accelerator.scratch.total());
  MachineCosts host = host_costs(model, use);
  std::string source = fmt::format("{}, and {}", host.source, accelerator.name());
  if (auto measured = usable_calibration(model, use, accelerator.calibration_name())) {
    return {this_machine, fmt::format("{} {}", source, measured->source), false, "",
            std::make_unique<AcceleratedModel>(
                AcceleratedModel::Parts{.cpu = std::move(host.model),
                                        .accelerator = std::move(measured->model),
                                        .hbm_bytes = memory_bytes - reserved_bytes,
                                        .link = std::nullopt})};
  }
  MachineProfile profile = profile_of_host(host);
  profile.gpu = gpu_profile(accelerator.gpu);
  profile.tiers[static_cast<std::size_t>(Tier::hbm)] = accelerator_memory(
      memory_bytes, in_gib(reserved_bytes), "ours: padding, and kernels' scratch memory");
  const std::string copies = "measured: copies of pinned memory";
  const auto gb_per_s = [](double bytes_per_s) { return 1e-9 * bytes_per_s; };
  profile.links.push_back(link(
      Tier::ddr, Tier::hbm, gb_per_s(accelerator.copies.to_gpu_bytes_per_s), latency_us, copies));
  profile.links.push_back(link(
      Tier::hbm, Tier::ddr, gb_per_s(accelerator.copies.from_gpu_bytes_per_s), latency_us, copies));
  return {this_machine, std::move(source), false, "",
          std::make_unique<AnalyticModel>(std::move(profile), model)};
}

MachineCosts run_costs(const ModelDimensions& model, const HostUse& use,
                       const Accelerator& accelerator) {
  switch (accelerator.kind) {
    case Accelerator::Kind::cuda:
      return gpu_costs(model, use, accelerator);
    case Accelerator::Kind::stand_in:
      return stand_in_costs(model, use, accelerator);
    default:
      return host_costs(model, use);
  }
}

MachineCosts profile_costs(const std::string& machine, const ModelDimensions& model) {
  auto costs = std::make_unique<AnalyticModel>(load_profile(machine), model);
  std::string name = costs->profile().name;
  RunningCosts running_costs(costs->profile());
  return {std::move(name), "profile", false, "", std::move(costs), std::move(running_costs)};
}

MachineCosts simulated_costs(const std::string& machine, const ModelDimensions& model,
                             const std::string& model_name, const SimulatedHost& host) {
  if (machine != this_machine) {
    if (host.rates) throw Error("--rates are of --machine this; {} has its profile's", machine);
    if (host.threads) throw Error("--threads are of --machine this; {} has its own", machine);
    if (host.names_device) throw Error("--device is of --machine this; {} has its own", machine);
    return profile_costs(machine, model);
  }
  if (host.cpu_plan)
    throw Error(
        "--cpu-plan: --machine this is predicted by what was measured without a plan; leave it "
        "out, or give a profile that describes its cores with --machine");
  HostUse use = default_host_use();
  if (host.threads) use.threads = *host.threads;
  std::optional<MachineCosts> found = calibrated_costs(model, use, host.rates);
  if (!found) {
    const std::string threads = host.threads ? fmt::format(" --threads {}", use.threads) : "";
    throw Error("{} is not calibrated here{}; sluice calibrate --model {}{} does it", model_name,
                host.threads ? " with so many threads" : "", model_name, threads);
  }
  if (host.stand_in) {
    Accelerator accelerator;
    accelerator.kind = Accelerator::Kind::stand_in;
    return with_stand_in(std::move(*found),
                         calibrated_costs(model, use, host.rates, accelerator.calibration_name()),
                         *host.stand_in);
  }
  return std::move(*found);
}

HostUse default_host_use() {
  return {.dtype = default_dtype, .threads = default_num_threads(read_cpu_topology())};
}

}  // namespace sluice
