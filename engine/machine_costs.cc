#include "engine/machine_costs.h"

#include <fmt/core.h>

#include "base/cpu.h"
#include "base/error.h"
#include "base/memory.h"
#include "codelets/kernels/linear.h"
#include "engine/calibration_store.h"
#include "engine/compute_options.h"
#include "models/model.h"
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

}  // namespace

std::string rates_text(const MachineRates& rates) {
  return fmt::format("{:.1f} GB/s, {:.3f} TFLOP/s", rates.read_bandwidth_bytes_per_s * 1e-9,
                     rates.gemm_flop_per_s * 1e-12);
}

std::optional<MachineCosts> calibrated_costs(const ModelDimensions& model, const HostUse& use,
                                             const std::optional<MachineRates>& rates) {
  const CalibrationSetup setup = calibration_setup(use.dtype, use.threads, use.domains);
  std::optional<Calibration> found = read_calibration(setup, model);
  std::string carried_from;
  if (!found || !found->complete()) {
    found = nearest_calibration(setup, model);
    if (!found) return std::nullopt;
    carried_from = name_of(found->model, use.dtype);
    found = transferred(*found, model);
  }
  auto costs = std::make_unique<MeasuredModel>(*found, model);
  if (rates) *costs = costs->at_rates(*rates);
  std::string source = fmt::format("calibrated at {}", rates_text(costs->rates()));
  if (!carried_from.empty()) source = fmt::format("carried over from {}, {}", carried_from, source);
  return MachineCosts{this_machine, std::move(source), true, std::move(carried_from),
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

MachineCosts host_costs(const ModelDimensions& model, const HostUse& use) {
  try {
    if (std::optional<MachineCosts> found = calibrated_costs(model, use)) return std::move(*found);
  } catch (const Error& error) {
    fmt::print(stderr, "sluice: {}; going on without the calibration\n", error.what());
  }
  return analytic_costs(model, nominal_rates, "assumed: a desktop processor");
}

MachineCosts stand_in_costs(const ModelDimensions& model, const HostUse& use,
                            std::uint64_t memory_bytes) {
  const MachineCosts host = host_costs(model, use);
  const auto* measured = dynamic_cast<const MeasuredModel*>(host.model.get());
  const std::string source = "assumed: a second process on the same processor";
  MachineProfile profile =
      host_profile(measured != nullptr ? measured->rates() : nominal_rates, host.source);
  profile.gpu = profile.cpu;
  profile.gpu->name = "stand-in accelerator";
  const double gib = static_cast<double>(memory_bytes) / static_cast<double>(1U << 30);
  profile.tiers[static_cast<std::size_t>(Tier::hbm)] = {
      .capacity_gib = {gib, "asked for"},
      .reserved_gib = Sourced<double>{gib / 16, "ours: padding"},
      .cpu_bandwidth_gb_per_s = std::nullopt};
  const auto link = [&](Tier from, Tier to) {
    return LinkProfile{.from = from,
                       .to = to,
                       .bandwidth_gb_per_s = {Curve::constant(2), source},
                       .latency_us = {50, source}};
  };
  profile.links = {link(Tier::ddr, Tier::hbm), link(Tier::hbm, Tier::ddr)};
  return {this_machine, fmt::format("{}, and a stand-in accelerator", host.source), false, "",
          std::make_unique<AnalyticModel>(std::move(profile), model)};
}

MachineCosts run_costs(const ModelDimensions& model, const HostUse& use,
                       std::uint64_t stand_in_bytes) {
  return stand_in_bytes > 0 ? stand_in_costs(model, use, stand_in_bytes) : host_costs(model, use);
}

MachineCosts profile_costs(const std::string& machine, const ModelDimensions& model) {
  auto costs = std::make_unique<AnalyticModel>(load_profile(machine), model);
  std::string name = costs->profile().name;
  RunningCosts running_costs(costs->profile());
  return {std::move(name), "profile", false, "", std::move(costs), std::move(running_costs)};
}

MachineCosts simulated_costs(const std::string& machine, const ModelDimensions& model,
                             const std::string& model_name,
                             const std::optional<MachineRates>& rates) {
  if (machine != this_machine) {
    if (rates) throw Error("--rates are of --machine this; {} has its profile's", machine);
    return profile_costs(machine, model);
  }
  std::optional<MachineCosts> found = calibrated_costs(model, default_host_use(), rates);
  if (!found) {
    throw Error("{} is not calibrated here; sluice calibrate --model {} does it", model_name,
                model_name);
  }
  return std::move(*found);
}

DType weight_dtype(const std::string& machine) {
  return machine == this_machine ? default_host_use().dtype : DType::bf16;
}

HostUse default_host_use() {
  return {.dtype = onednn_has_fast_bf16() ? DType::bf16 : DType::f32,
          .threads = default_num_threads(read_cpu_topology()),
          .domains = 1};
}

}  // namespace sluice
