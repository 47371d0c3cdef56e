#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/dtype.h"
#include "perfmodels/cost_model.h"
#include "perfmodels/profile.h"
#include "perfmodels/work.h"

namespace sluice {

/// The name of the machine that the program runs on, where a profile's would stand.
inline constexpr const char* this_machine = "this";

/// How a run uses this machine.
struct HostUse {
  DType dtype = DType::bf16;
  int threads = 1;
  int domains = 1;
};

/// A machine's cost model, and where it comes from.
struct MachineCosts {
  std::string machine;  ///< "this", or a profile's name
  std::string source;   ///< in words
  bool calibrated = false;
  std::unique_ptr<CostModel> model;
};

/// Profile of this machine's CPU and memory at given rates; `source` says where they are from.
MachineProfile host_profile(const MachineRates& rates, const std::string& source);

/// This machine for one model: measured where a finished calibration fits, else analytic, by a
/// desktop processor's rates: policies compare devices, and there is one. A calibration that cannot
/// be read is said in a line on stderr, and left.
MachineCosts host_costs(const ModelDimensions& model, const HostUse& use);

/// The cost models of `plan`, which names machines.
class MachineList {
 public:
  /// A profile's model; of "this", the calibrated one or, said in a line on stderr, an analytic one
  /// at rates that are probed then (a second, once). `model_name` is for that line. Throws Error
  /// for an unknown profile. StarPU must not run.
  MachineCosts load(const std::string& machine, const ModelDimensions& model,
                    const std::string& model_name);

 private:
  MachineRates probe(DType dtype);

  std::optional<MachineRates> probed_;
};

/// The GEMM type and threads of a run on this machine that is given none.
HostUse default_host_use();

}  // namespace sluice
