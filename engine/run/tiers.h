#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "codelets/runtime/disk_node.h"
#include "engine/console/tables.h"
#include "engine/machine/machine_costs.h"
#include "graphs/kv_cache.h"
#include "graphs/loaded_model.h"
#include "graphs/weight_file.h"
#include "perfmodels/placement.h"
#include "schedulers/loader.h"

namespace sluice {

/// Of what is free, left to the program itself, its libraries and StarPU's tables (some 220 MiB)
/// and to what else moves meanwhile: bytes that a run without --ddr does not plan with.
inline constexpr std::uint64_t reserved_ddr_bytes = std::uint64_t{256} << 20;

/// What --cxl-nodes says.
struct CxlSettings {
  std::vector<int> nodes;            ///< NUMA nodes; none: emulated
  std::uint64_t emulated_bytes = 0;  ///< of DDR that are taken for CXL memory

  bool is_emulated() const { return nodes.empty(); }
};

/// Of the host's memory tiers, what a run may take and shall use.
struct TierSettings {
  std::optional<std::uint64_t> ddr_bytes;
  std::optional<std::filesystem::path> disk;
  std::optional<CxlSettings> cxl;
  Tier kv_tier = Tier::ddr;  ///< or CXL memory, or a disk
  bool dry_run = false;

  /// Where policies find what is the host's, wherever they put it: what lives on a disk passes
  /// through DDR.
  HostTiers host_tiers() const {
    if (!cxl) return {};
    return {.parameters = Tier::cxl, .kv = kv_tier == Tier::disk ? Tier::ddr : kv_tier};
  }
};

/// What a run takes of the host's memory, whatever lives where. Bytes.
struct HostNeed {
  std::uint64_t kv_bytes = 0;
  std::uint64_t activation_bytes = 0;   ///< values between tasks, of two iterations
  std::uint64_t workspace_bytes = 0;    ///< of kernels and probes
  std::uint64_t table_bytes = 0;        ///< embedding and positions, as stored
  std::uint64_t split_score_bytes = 0;  ///< more of them where QK^T and SV run apart
};

/// Bytes of a model's embedding and position tables, as its source stores them; makes them where
/// they are made in memory.
std::uint64_t table_bytes(const Model& model);

/// What a tier is asked for, by purpose, and what it has. Bytes.
struct TierUse {
  Tier tier = Tier::ddr;
  std::string where;  ///< NUMA nodes, a folder
  std::uint64_t weights = 0;
  std::uint64_t kv = 0;
  std::uint64_t activations = 0;
  std::uint64_t staging = 0;
  std::uint64_t workspaces = 0;
  std::uint64_t available = 0;

  std::uint64_t total() const { return weights + kv + activations + staging + workspaces; }
};

/// What an accelerator takes and leaves.
struct HbmShare {
  std::vector<bool> layers;         ///< whose weights are held there, all of them
  bool head = false;                ///< so is the LM head
  std::int64_t kv_layers = 0;       ///< whose KV lives there
  std::uint64_t passing_bytes = 0;  ///< of other weights, at once on their way there
  bool splits_attention = false;    ///< QK^T and SV run apart somewhere
  HotExpertLists hot_experts{};     ///< held, whatever their layers do
};

/// Where packed weights and KV live in the host's memories (docs/design/tiers.md):
///
///   KV       DDR, or where --kv-tier says; from a disk it passes through DDR layer by layer
///   layers   CXL memory, then DDR, then the disk; those that stay are spread evenly
///   LM head  DDR, before any layer; then the disk
///   window   of DDR, for what streams: two units of work, the one that computes and the next
///
/// What an accelerator holds needs no place when anything is on the disk. Emulated CXL memory is
/// part of DDR, which has so much less unless --ddr says more.
class HostPlan {
 public:
  /// Without a disk CXL memory takes all layers, or the plan does not fit: see missing_bytes().
  /// Throws Error for NUMA nodes that do not exist or have processors.
  HostPlan(const ModelConfig& config, DType dtype, const HostNeed& need,
           const TierSettings& settings);
  /// The same beside an accelerator, once. What goes there from the disk passes through DDR, so
  /// that a plan that did fit may not any more.
  void set_accelerator(HbmShare share);

  const TierUse& ddr() const { return ddr_; }
  const std::optional<TierUse>& cxl() const { return cxl_; }
  /// With a disk, its file and node are not there yet: DiskRun gives them.
  const WeightHomes& homes() const { return homes_; }
  bool uses_disk() const { return disk_weight_bytes_ + disk_kv_bytes_ > 0; }
  std::uint64_t disk_kv_bytes() const { return disk_kv_bytes_; }
  std::uint64_t disk_weight_bytes() const { return disk_weight_bytes_; }
  /// Packed weights of the layers that live on a tier.
  std::uint64_t layer_weight_bytes(Tier tier) const;

  /// What DDR and CXL are short of; 0: the plan fits.
  std::uint64_t missing_bytes() const;
  /// The least DDR, rounded up to MiB, with which a run with a disk fits.
  std::uint64_t least_bytes() const { return least_bytes_; }
  /// The same plan with a disk that KV lives on, too.
  HostPlan with_kv_on_disk() const;

  /// What StarPU may allocate: what is staged, values between tasks, and room for its rounding.
  std::uint64_t staging_limit_bytes() const;
  /// What of the disk's weights may be in DDR for the CPU: less than the limit, as what StarPU
  /// rounds up must not take the place of weights that are needed next.
  std::uint64_t window_bytes() const { return window_bytes_; }

 private:
  void settle();
  void place_kv();
  std::uint64_t all_layers_bytes() const;
  bool is_held(std::size_t layer) const { return layer < hbm_.layers.size() && hbm_.layers[layer]; }
  /// Of the `others` so many live in CXL memory and in DDR, the rest on the disk; what is held and
  /// not among them lives on `held`.
  void spread(std::uint64_t in_cxl, std::uint64_t in_ddr, std::uint64_t others, Tier held);

  std::vector<std::uint64_t> bytes_of_layer_;  ///< packed weights
  std::uint64_t largest_layer_bytes_ = 0;
  std::uint64_t head_bytes_ = 0;
  std::uint64_t all_bytes_ = 0;  ///< weights and tables
  std::uint64_t split_score_bytes_;
  bool has_disk_ = false;
  Tier kv_tier_ = Tier::ddr;
  std::uint64_t all_kv_bytes_ = 0;
  std::uint64_t workspace_bytes_ = 0;  ///< without copies of KV
  bool takes_cxl_from_ddr_ = false;
  std::uint64_t ddr_budget_ = 0;
  HbmShare hbm_;
  TierUse ddr_;
  std::optional<TierUse> cxl_;
  WeightHomes homes_;
  std::uint64_t window_bytes_ = 0;
  std::uint64_t disk_weight_bytes_ = 0;
  std::uint64_t disk_kv_bytes_ = 0;
  std::uint64_t kv_window_bytes_ = 0;  ///< two slabs on their way from the disk
  std::uint64_t least_bytes_ = 0;
};

/// What a run may take of DDR: --ddr, or what the machine (its NUMA nodes with processors) or its
/// cgroup has free, less reserved_ddr_bytes.
std::uint64_t ddr_budget(const TierSettings& settings);

/// What a run has of CXL memory; nothing without --cxl-nodes.
std::optional<CxlMemory> cxl_memory(const HostPlan& plan, const TierSettings& settings);

/// "not enough memory: ... needed (weights ..., KV cache ..., ...), ... available; HINT"; the hint
/// names the nearest settings that would do, `smaller` first.
std::string shortage_text(const HostPlan& plan, const TierSettings& settings,
                          const std::string& smaller);

/// Every tier that the plan uses, DDR first.
std::vector<TierUse> tier_uses(const HostPlan& plan, const TierSettings& settings);
/// One line a tier, in bytes as people read them; as CSV and JSON in bytes.
std::string format_tiers(const std::vector<TierUse>& uses, OutputFormat format);

/// `kv_groups` of --stats: of KV that lies by heads what lies where; null where the system does not
/// say.
nlohmann::json kv_groups_as_json(const KvCache& kv);

/// Where the packed weights of a run's layers lie that are in the host's memory, asked for against
/// found.
class LayerPlacement {
 public:
  /// Asks the system.
  LayerPlacement(const LoadedModel& model, const HostPlan& plan, const TierSettings& settings);

  /// A line for each tier that has some: "ddr node 0: 6.2 GiB of weights, 1625293 of 1625293 pages
  /// lie there", what stands against asking, or that CXL memory is emulated.
  std::string summary() const;
  /// Of `stats`: `placement` and, with --cxl-nodes, `cxl`.
  void add_to(nlohmann::json& stats) const;

 private:
  struct Part {
    Tier tier = Tier::ddr;
    bool is_emulated = false;
    std::vector<int> nodes;  ///< that were asked for
    std::uint64_t weight_bytes = 0;
    LoadedModel::Pages pages;
    std::vector<PartPages> by_group;  ///< where a CPU plan binds weights to nodes
    std::string problem;              ///< a container may forbid to ask

    std::uint64_t pages_there() const;
    std::string summary() const;
  };
  std::vector<Part> parts_;
  std::optional<CxlSettings> cxl_;
};

/// The disk of one run: its node and its file, from before StarPU starts until after it has
/// stopped.
class DiskRun {
 public:
  /// Opens or begins the file of weights in `folder`, takes `kv_file_bytes` for KV, and tells the
  /// policy's scheduler how much may be on its way, beside `accelerator`'s share of it; before
  /// StarPU starts. Throws Error when the folder cannot be used, or has too little room.
  DiskRun(const HostPlan& plan, const std::filesystem::path& folder, const Model& model,
          DType dtype, std::uint64_t kv_file_bytes, LoadedPolicy& policy, Staging accelerator);

  /// StarPU has started.
  void attach() { node_.attach(); }
  /// Of all weights; lives as long as this.
  const WeightHomes& homes() const { return homes_; }
  /// What the constructor would throw for want of room, before anything is made.
  static void check_room(const HostPlan& plan, const std::filesystem::path& folder,
                         const Model& model, DType dtype, std::uint64_t kv_file_bytes);

  /// Null when no KV lives there.
  KvFile* kv_file() { return kv_file_ ? &*kv_file_ : nullptr; }
  /// What tasks have read and written.
  DiskUse use() const { return node_.use(); }
  /// Written while loading.
  std::uint64_t loading_bytes() const { return file_ ? file_->written_bytes() : 0; }

  /// "disk /mnt/x: 6.2 GiB of weights, 1.0 GiB of KV, 124 GiB read at 2.9 GB/s, 2.1 MiB written;
  /// staged 1.1 GiB at most"
  std::string summary() const;
  /// Of `stats`: `disk`, and `peak_bytes` of the disk's window.
  void add_to(nlohmann::json& stats) const;

 private:
  std::filesystem::path folder_;
  std::uint64_t weight_bytes_;
  std::uint64_t kv_bytes_;
  std::uint64_t window_bytes_;
  std::uint64_t limit_bytes_;
  std::optional<WeightFile> file_;
  DiskNode node_;
  std::optional<KvFile> kv_file_;
  WeightHomes homes_;
};

}  // namespace sluice
