#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/topology.h"
#include "perfmodels/curve.h"
#include "perfmodels/placement.h"

namespace sluice {

/// A number, or a curve, and where it comes from: "LIA section 4.2", "datasheet: ...",
/// "fitted: ...", "derived: ...", "assumed: ...". Never empty.
template <typename T>
struct Sourced {
  T value;
  std::string source;
};

/// How reading and arithmetic make up a task's time: their maximum (a roofline: they overlap), or
/// their sum (LIA equation 8).
enum class Combine : std::uint8_t { max, sum };

/// What one device computes. docs/reference/machine-profiles.md says what each field means. GB are
/// 10^9 bytes, TFLOP 10^12 operations.
struct DeviceProfile {
  std::string name;
  std::optional<Sourced<double>> cores;           ///< of a CPU always
  Sourced<double> memory_bandwidth_gb_per_s;      ///< weights and activations
  Sourced<Curve> gemm_tflop_per_s;                ///< over rows
  Sourced<Surface> attention_bandwidth_gb_per_s;  ///< decode's KV; over batch and context
  Sourced<Curve> attention_tflop_per_s;           ///< over rows
  Combine combine = Combine::max;
  Sourced<double> task_overhead_us;
  std::optional<Sourced<double>> dequantize_gb_per_s;  ///< widened bytes written
  std::optional<Sourced<double>> idle_watts;
  std::optional<Sourced<double>> busy_watts;
  std::optional<Sourced<double>> price_usd;
};

/// How a CPU's cores share memory, and meet each other: what CPU plans are judged by. A core here
/// is one that computes, with one thread.
struct CoresProfile {
  Sourced<Topology> topology;
  Sourced<Curve> node_bandwidth_gb_per_s;     ///< of one NUMA node's memory, over its cores
  Sourced<double> remote_bandwidth_gb_per_s;  ///< one node's cores together, of others' memory
  Sourced<Curve> round_us;                    ///< of a thread pool, over its threads
  /// Neighbouring cores that share something slower than they are, shown by the topology or not.
  struct Contention {
    int cores = 2;                      ///< that share one
    Sourced<Curve> bandwidth_gb_per_s;  ///< of these together, over those that compute
  };
  std::vector<Contention> contention = {};
};

/// Faster memory that caches a tier, direct-mapped (Optane's Memory Mode, HeLM section II-C), and
/// the rates of what it does not have.
struct MemoryCacheProfile {
  Sourced<double> capacity_gib;
  Sourced<double> missed_cpu_gb_per_s;                    ///< read by the CPU
  std::optional<Sourced<double>> missed_to_hbm_gb_per_s;  ///< read by the GPU; if there is one

  /// The share that is not in it of `bytes` that are read over and over, in the same order: what
  /// is too much takes the places of as much else, and loses its own to that.
  double missing_share(double bytes) const;
};

struct TierProfile {
  Sourced<double> capacity_gib;
  std::optional<Sourced<double>> reserved_gib;            ///< not ours to use
  std::optional<Sourced<double>> cpu_bandwidth_gb_per_s;  ///< of CXL always, of others never
  std::optional<MemoryCacheProfile> cache = {};           ///< of DDR at most

  std::uint64_t usable_bytes() const;
};

/// Moves data from one tier to another without a third one.
struct LinkProfile {
  Tier from = Tier::ddr;
  Tier to = Tier::hbm;
  Sourced<Curve> bandwidth_gb_per_s;  ///< over the bytes of one transfer
  Sourced<double> latency_us;
  bool pinned = true;          ///< host memory is page-locked
  bool bypasses_pcie = false;  ///< reaches HBM faster than PCIe lets DDR
};

/// What equal GPUs that share a sublayer add up among each other.
struct AllReduceProfile {
  Sourced<Curve> bandwidth_gb_per_s;  ///< over the bytes of the sum
  Sourced<double> latency_us;
};

struct SystemProfile {
  std::optional<Sourced<double>> price_usd;                ///< of all of the machine
  std::optional<Sourced<double>> lifetime_years;           ///< for which the price is paid
  std::optional<Sourced<double>> electricity_usd_per_kwh;  ///< where it stands
  std::optional<Sourced<double>> idle_watts;   ///< all of the machine with nothing to do
  std::optional<Sourced<double>> other_watts;  ///< beside CPU and GPU, always
};

/// A machine, as one JSON file describes it.
struct MachineProfile {
  std::string name;
  std::string description;
  Sourced<double> causal_attention;  ///< 1: prefill's attention skips masked keys; 0: it does not
  DeviceProfile cpu;
  std::optional<CoresProfile> cpu_cores = {};
  std::optional<DeviceProfile> gpu;  ///< one of `num_gpus` equal ones
  std::optional<Sourced<double>> num_gpus;
  std::optional<AllReduceProfile> all_reduce;       ///< of several GPUs; without: takes no time
  std::array<std::optional<TierProfile>, 4> tiers;  ///< by Tier; `hbm` of one GPU
  std::vector<LinkProfile> links;                   ///< those with HBM: of one GPU
  SystemProfile system;

  double gpu_count() const { return num_gpus ? num_gpus->value : 1; }
  const std::optional<TierProfile>& tier(Tier which) const {
    return tiers[static_cast<std::size_t>(which)];
  }
  /// The direct link, the pinned one if there are two; null when there is none.
  const LinkProfile* link(Tier from, Tier to) const;
  /// What a transfer of `bytes` over a link of this machine gets. Whatever goes to HBM, or comes
  /// from it, passes the GPU's PCIe, as DDR's does: the slower of the link's own rate and that of
  /// DDR's link in the same direction, unless the link bypasses PCIe.
  double link_gb_per_s(const LinkProfile& link, double bytes) const;
};

/// Names of the profiles that come with Sluice, sorted.
std::vector<std::string> known_profiles();

/// Reads a profile: one of known_profiles(), or, when it ends in ".json", a file. With ":pageable"
/// behind it, the machine whose GPU copies from and to host memory that is not page-locked: by its
/// pageable links. Throws Error in one line: an unknown name with the known ones, the nearest
/// first; a file that cannot be read, is no JSON or has a wrong field, with the file, the field's
/// path, what was found and what was expected; no pageable links. Unknown keys are errors.
MachineProfile load_profile(std::string_view name_or_path);

/// The same from a text; `where` names it in messages. A "base" is looked up among
/// known_profiles().
MachineProfile parse_profile(std::string_view json_text, std::string_view where);

}  // namespace sluice
