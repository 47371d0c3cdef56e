#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "engine/machine/accelerator.h"
#include "engine/machine/simulated_host.h"
#include "perfmodels/cost_model.h"
#include "perfmodels/profile.h"
#include "perfmodels/running_costs.h"
#include "perfmodels/work.h"

namespace sluice {

/// The name of the machine that the program runs on, where a profile's would stand.
inline constexpr const char* this_machine = "this";

/// CXL memory that a run has beside DDR.
struct CxlMemory {
  std::uint64_t bytes = 0;
  bool is_emulated = false;  ///< in DDR, at its rate
};

/// How a run uses this machine.
struct HostUse {
  DType dtype = DType::bf16;
  int threads = 1;
  std::string cpu_plan = {};  ///< CpuUse::cut_text()
  std::optional<CxlMemory> cxl = std::nullopt;
};

/// A machine's cost model, and where it comes from.
struct MachineCosts {
  std::string machine;  ///< "this", or a profile's name
  std::string source;   ///< in words
  bool calibrated = false;
  /// Whose calibration stands in for the model's own, in words; empty where none does.
  std::string carried_from;
  std::shared_ptr<const CostModel> model;
  RunningCosts running_costs = {};
};

/// Says in a line on stderr whose calibration stands in, if one does.
void say_if_carried(const MachineCosts& costs, const std::string& model_name);

/// Profile of this machine's CPU and memory at given rates; `source` says where they are from.
MachineProfile host_profile(const MachineRates& rates, const std::string& source);

/// The profile behind host_costs(): the analytic model's, or one at a calibration's rates.
MachineProfile profile_of_host(const MachineCosts& costs);

/// This machine's CPU as a finished calibration has it: the model's own, or the nearest other one,
/// carried over to its sizes (transferred()); nothing when there is none. Where none was made by
/// the CPU plan of `use`, one of uncut cores stands in, and the source says so. Throws Error when
/// the model's own cannot be read.
/// `rates`: of the moment that is predicted, instead of the calibration's median ones.
/// `device`: not the CPU, but an accelerator with its links, by its calibration_name().
std::optional<MachineCosts> calibrated_costs(
    const ModelDimensions& model, const HostUse& use,
    const std::optional<MachineRates>& rates = std::nullopt, const std::string& device = "");

/// An analytic model of this machine at given rates.
MachineCosts analytic_costs(const ModelDimensions& model, const MachineRates& rates,
                            const std::string& source);

/// "61.5 GB/s, 0.460 TFLOP/s"
std::string rates_text(const MachineRates& rates);

/// A profile's model. Throws Error for an unknown one.
MachineCosts profile_costs(const std::string& machine, const ModelDimensions& model);

/// What a simulation goes by: a profile's model, or calibrated_costs(). Throws Error when there is
/// none, and when something is said of a machine that is described.
MachineCosts simulated_costs(const std::string& machine, const ModelDimensions& model,
                             const std::string& model_name, const SimulatedHost& host);

/// This machine for one model: measured where a finished calibration fits, else analytic, by a
/// desktop processor's rates: policies compare devices, and there is one. A calibration that cannot
/// be read is said in a line on stderr, and left. With CXL memory analytic always, as nobody has
/// measured that: half of DDR's rate.
MachineCosts host_costs(const ModelDimensions& model, const HostUse& use);

/// The same machine with the stand-in accelerator: measured where a finished
/// calibration fits, else a second CPU of the same speed behind a link of nominal rate.
MachineCosts stand_in_costs(const ModelDimensions& model, const HostUse& use,
                            const Accelerator& accelerator);

/// The same machine with a GPU: measured where a finished calibration fits, else analytic, by what
/// CUDA says of it, and by the measured rates of its copies.
MachineCosts gpu_costs(const ModelDimensions& model, const HostUse& use,
                       const Accelerator& accelerator);

/// What a GPU's memory and arithmetic give, as gpu_costs() assumes them.
MachineRates gpu_rates(const GpuDevice& gpu);

/// The machine that a run has: host_costs(), or the same with an accelerator.
MachineCosts run_costs(const ModelDimensions& model, const HostUse& use,
                       const Accelerator& accelerator);

/// The GEMM type and threads of a run on this machine that is given none.
HostUse default_host_use();

}  // namespace sluice
