#pragma once

#include <optional>
#include <string>

#include "perfmodels/profile.h"
#include "perfmodels/timeline.h"

namespace sluice {

/// What a machine draws and costs while it works (LIA sections 7.5 and 7.8).
class RunningCosts {
 public:
  /// Of a machine of which neither is known.
  RunningCosts() = default;
  /// Throws Error for a device that draws less when it works, or devices that draw more than the
  /// machine.
  explicit RunningCosts(const MachineProfile& profile);

  /// Joules of a run of `seconds`, in which the devices work for `busy`:
  ///   (other + cpu.idle + gpu.idle) seconds + (cpu.busy - cpu.idle) busy.cpu_s
  ///     + (gpu.busy - gpu.idle) busy.gpu_s,  in watts, of all GPUs.
  /// LIA section 7 measures the power of the whole machine: a GPU that does nothing draws, too.
  /// Nothing when the profile lacks a part.
  std::optional<double> energy_j(double seconds, const BusyTimes& busy) const;

  /// Dollars for `seconds`: the machine's price by its lifetime, and electricity for what it draws
  /// with all devices at work (LIA section 7.8, footnote 7, has "each system's TDP"). Nothing when
  /// the profile lacks a part.
  std::optional<double> cost_usd(double seconds) const;

  /// Why either is not known, in words; empty when both are.
  const std::string& problem() const { return problem_; }

 private:
  struct Power {
    double idle_watts = 0;  ///< all of the machine
    double cpu_watts = 0;   ///< more when the CPU works
    double gpu_watts = 0;   ///< more when the GPUs work
  };

  std::optional<Power> power_;
  std::optional<double> usd_per_s_;
  std::string problem_ = "the machine has no profile with its watts and price";
};

}  // namespace sluice
