#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "codelets/runtime/runtime.h"
#include "engine/machine/accelerator.h"
#include "engine/run/tiers.h"
#include "graphs/loaded_model.h"
#include "perfmodels/placement.h"

namespace sluice {

/// "47.12 GB/s", "31.5 MB/s", "0.9 kB/s"
std::string format_rate(double bytes_per_s);

/// What moved from one tier to another.
struct TierMove {
  Tier from = Tier::ddr;
  Tier to = Tier::ddr;
  std::uint64_t load_bytes = 0;  ///< before the run
  std::uint64_t bytes = 0;       ///< during it
  std::optional<double> busy_s;  ///< of it, with something under way; where that is known
  /// What a plain copy of pinned memory gets; where that was measured.
  std::optional<double> copy_bytes_per_s;
};

/// What a run has moved between tiers, each byte once, by the pair that it passed: from disk to DDR
/// by the disk's own count, between DDR and an accelerator's memory by StarPU's, which counts a
/// transfer as it begins. Processors that read weights in CXL memory move nothing: that is counted
/// apart.
class MovedBytes {
 public:
  /// `disk` may be null. All outlive it.
  MovedBytes(const Runtime& runtime, const LoadedModel& model, const Accelerator& accelerator,
             const DiskRun* disk)
      : runtime_(runtime), model_(model), accelerator_(accelerator), disk_(disk) {}

  /// What has moved so far was loading.
  void run_begins() {
    before_ = now();
    cxl_read_before_ = runtime_.cxl_read_bytes();
  }
  /// Since run_begins(), while it runs: bytes of each pair.
  std::vector<TierMove> so_far() const;
  /// After `wall_s` seconds; `has_cxl`: there is CXL memory.
  void run_ends(double wall_s, bool has_cxl);

  /// Pairs of which anything moved.
  const std::vector<TierMove>& moves() const { return moves_; }

  /// "moved while generating (0.79 s): ddr -> hbm 183.7 MiB at 243.8 MB/s; before that: ...", or
  /// that nothing was. Rates are means over the whole run.
  std::string summary() const;
  /// Of `stats`: `moved`, and `read_bytes` and `read_bytes_per_s` of `cxl`.
  void add_to(nlohmann::json& stats) const;

 private:
  struct Count {
    std::uint64_t bytes = 0;
    std::optional<double> busy_s = {};
    std::optional<double> copy_bytes_per_s = {};
  };
  /// From the slowest tier on.
  using Counts = std::map<std::pair<Tier, Tier>, Count, std::greater<>>;
  Counts now() const;
  std::vector<TierMove> moves_until(const Counts& now) const;
  double per_s(std::uint64_t bytes) const;

  const Runtime& runtime_;
  const LoadedModel& model_;
  const Accelerator& accelerator_;
  const DiskRun* disk_;
  Counts before_;
  std::vector<TierMove> moves_;
  std::uint64_t cxl_read_before_ = 0;
  std::optional<std::uint64_t> cxl_read_bytes_;
  double wall_s_ = 0;
};

}  // namespace sluice
