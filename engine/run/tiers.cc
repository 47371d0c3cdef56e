#include "engine/run/tiers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/cpu.h"
#include "base/error.h"
#include "base/json.h"
#include "base/memory.h"
#include "base/numa.h"
#include "base/units.h"
#include "codelets/weights/weight_packing.h"
#include "engine/console/tables.h"
#include "perfmodels/analytic_model.h"

namespace sluice {
namespace {

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;
constexpr std::uint64_t gibibyte = std::uint64_t{1} << 30;

/// StarPU's limit is in whole MiB, and what it allocates is rounded up to pages.
constexpr std::uint64_t rounding_bytes = 2 * mebibyte;

/// Of KV that lives on a disk, layers' in DDR: one is attended with while the next one comes, and
/// kernels put one together with what is new.
constexpr std::uint64_t num_slabs_at_once = 3;

std::uint64_t up_to_mebibyte(std::uint64_t bytes) {
  return (bytes + mebibyte - 1) / mebibyte * mebibyte;
}

std::string cxl_place(const CxlSettings& settings) {
  return settings.is_emulated() ? "emulated in ddr"
                                : fmt::format("node {}", fmt::join(settings.nodes, ","));
}

/// What the system says is available, less what of it lies in memory without processors.
std::uint64_t available_ddr_bytes() {
  const std::vector<NumaNode> nodes = read_cpu_topology().numa_nodes;
  std::uint64_t near_bytes = 0;
  bool has_far_memory = false;
  for (const NumaNode& node : nodes) {
    const bool is_near = node.has_processors;  // also those that are not ours to use
    if (is_near) near_bytes += free_node_bytes(node.os_index);
    has_far_memory |= !is_near;
  }
  const std::uint64_t available = available_memory_bytes();
  return has_far_memory ? std::min(available, near_bytes) : available;
}

/// Of each node of CXL memory, left to what else moves: a program that is bound to a node and takes
/// more than it has is killed.
constexpr std::uint64_t reserved_cxl_bytes = 16 * mebibyte;

/// What is there. Pages go to the nodes in turn: each takes what the one with the least has, as
/// what is more would end up in DDR.
std::uint64_t cxl_bytes(const CxlSettings& settings) {
  if (settings.is_emulated()) return std::min(settings.emulated_bytes, available_ddr_bytes());
  const std::vector<NumaNode> nodes = read_cpu_topology().numa_nodes;
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const int wanted : settings.nodes) {
    const auto found = std::find_if(nodes.begin(), nodes.end(),
                                    [&](const NumaNode& node) { return node.os_index == wanted; });
    if (found == nodes.end()) {
      throw Error("--cxl-nodes: this machine has no NUMA node {}; sluice info lists them", wanted);
    }
    if (found->has_processors) {
      throw Error(
          "--cxl-nodes: NUMA node {} has processors, so it is no CXL memory; "
          "emulate:SIZE stands in for tests",
          wanted);
    }
    const std::uint64_t free = free_node_bytes(wanted);
    if (free <= reserved_cxl_bytes)
      throw Error("--cxl-nodes: NUMA node {} has no memory free; leave it out", wanted);
    least = std::min(least, free - reserved_cxl_bytes);
  }
  return least * settings.nodes.size();
}

/// Those with processors.
std::vector<int> near_numa_nodes() {
  std::vector<int> nodes;
  for (const NumaNode& node : read_cpu_topology().numa_nodes) {
    if (node.has_processors) nodes.push_back(node.os_index);
  }
  return nodes;
}

/// "node 0,1"
std::string numa_nodes_with_cpus() {
  return fmt::format("node {}", fmt::join(near_numa_nodes(), ","));
}

std::uint64_t free_bytes(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::path there = std::filesystem::absolute(folder);
  while (!std::filesystem::exists(there) && there.has_relative_path()) there = there.parent_path();
  const std::filesystem::space_info space = std::filesystem::space(there, error);
  return error ? 0 : space.available;
}

}  // namespace

std::uint64_t table_bytes(const Model& model) {
  std::uint64_t bytes = model.weights->tensor({TensorRole::token_embedding}).data.size();
  if (model.config.position == PositionKind::learned)
    bytes += model.weights->tensor({TensorRole::position_embedding}).data.size();
  return bytes;
}

HostPlan::HostPlan(const ModelConfig& config, DType dtype, const HostNeed& need,
                   const TierSettings& settings)
    : all_bytes_(packed_weight_bytes(config, dtype) + need.table_bytes),
      split_score_bytes_(need.split_score_bytes),
      has_disk_(settings.disk.has_value()),
      kv_tier_(settings.kv_tier),
      all_kv_bytes_(need.kv_bytes),
      workspace_bytes_(need.workspace_bytes),
      takes_cxl_from_ddr_(settings.cxl && settings.cxl->is_emulated() && !settings.ddr_bytes),
      ddr_budget_(ddr_budget(settings)) {
  const PackedWeights packed(config, dtype);
  for (std::size_t i = 0; i < packed.layers.size(); ++i) {
    std::uint64_t& bytes = bytes_of_layer_.emplace_back(0);
    for (const std::size_t size : packed.layer_sizes(i)) bytes += size;
    largest_layer_bytes_ = std::max(largest_layer_bytes_, bytes);
  }
  head_bytes_ = WeightPacking::size_bytes(packed.head);
  homes_.layers.resize(static_cast<std::size_t>(config.num_layers));
  ddr_ = {.tier = Tier::ddr, .where = numa_nodes_with_cpus(), .activations = need.activation_bytes};
  // Cores of all nodes read all of it.
  if (near_numa_nodes().size() > 1) homes_.ddr_nodes = near_numa_nodes();
  if (settings.cxl) {
    homes_.cxl_nodes = settings.cxl->nodes;
    cxl_ = {.tier = Tier::cxl,
            .where = cxl_place(*settings.cxl),
            .available = cxl_bytes(*settings.cxl)};
  }
  settle();
}

void HostPlan::place_kv() {
  const std::uint64_t num_layers = std::max<std::uint64_t>(1, homes_.layers.size());
  const std::uint64_t bytes =
      all_kv_bytes_ - all_kv_bytes_ * static_cast<std::uint64_t>(hbm_.kv_layers) / num_layers;
  const bool on_disk = kv_tier_ == Tier::disk && bytes > 0;
  const std::uint64_t slab = on_disk ? all_kv_bytes_ / num_layers : 0;
  disk_kv_bytes_ = on_disk ? bytes : 0;
  kv_window_bytes_ = (num_slabs_at_once - 1) * slab;
  ddr_.workspaces = workspace_bytes_ + slab;
  ddr_.kv = kv_tier_ == Tier::ddr ? bytes : 0;
  if (cxl_) cxl_->kv = kv_tier_ == Tier::cxl ? bytes : 0;
}

void HostPlan::set_accelerator(HbmShare share) {
  hbm_ = std::move(share);
  homes_.hot_experts = hbm_.hot_experts;
  if (hbm_.splits_attention) ddr_.activations += split_score_bytes_;
  settle();
}

void HostPlan::settle() {
  place_kv();
  const std::uint64_t num_layers = homes_.layers.size();
  std::uint64_t others = 0;  // that nothing holds
  for (std::size_t i = 0; i < num_layers; ++i) others += is_held(i) ? 0 : 1;
  std::uint64_t in_cxl = 0;
  if (cxl_) {
    const std::uint64_t room = cxl_->available > cxl_->kv ? cxl_->available - cxl_->kv : 0;
    const std::uint64_t fitting = room / std::max<std::uint64_t>(1, largest_layer_bytes_);
    const bool all_fit = all_layers_bytes() <= room;
    in_cxl = !has_disk_ || all_fit ? num_layers : std::min(others, fitting);
  }
  const bool all_in_cxl = cxl_ && in_cxl == num_layers;
  if (all_in_cxl) others = num_layers;
  const std::uint64_t in_ddr = others - in_cxl;  // where they would be
  homes_.head_on_disk = false;
  spread(in_cxl, in_ddr, others, Tier::ddr);
  const std::uint64_t cxl_bytes = layer_weight_bytes(Tier::cxl);
  if (cxl_) cxl_->weights = cxl_bytes;
  ddr_.weights = all_bytes_ - cxl_bytes;
  ddr_.available = ddr_budget_;
  if (takes_cxl_from_ddr_) ddr_.available -= std::min(ddr_budget_, cxl_->total());
  window_bytes_ = 0;
  const std::uint64_t kv_rounding = disk_kv_bytes_ > 0 ? rounding_bytes : 0;
  ddr_.staging = kv_window_bytes_ + kv_rounding;
  disk_weight_bytes_ = 0;

  const std::uint64_t always =
      rounding_bytes + ddr_.total() - kv_rounding - (all_layers_bytes() - cxl_bytes) - head_bytes_;
  const std::uint64_t head = hbm_.head ? 0 : head_bytes_;  // that needs a place
  // What is held passes while loading, one weight after the other.
  const std::uint64_t held =
      std::max(head_bytes_ - head, others < num_layers ? largest_layer_bytes_ : 0);
  const std::uint64_t streamed = in_ddr > 0 ? largest_layer_bytes_ : 0;
  const std::uint64_t window = std::max(2 * streamed, held);
  const std::uint64_t window_with_head = std::max(window, head + streamed);

  const std::uint64_t others_stay = always + in_ddr * largest_layer_bytes_ + head + held;
  const std::uint64_t head_stays = always + head + window + hbm_.passing_bytes;
  const std::uint64_t head_streams = always + window_with_head + hbm_.passing_bytes;
  least_bytes_ = up_to_mebibyte(std::min({ddr_.total(), head_streams, head_stays, others_stay}));
  if (!has_disk_ || ddr_.total() <= ddr_.available) return;

  const bool keeps_others = others_stay <= ddr_.available;
  const bool keeps_head = keeps_others || head_stays <= ddr_.available;
  const std::uint64_t needed = keeps_head ? head_stays : head_streams;
  const std::uint64_t room = ddr_.available > needed ? ddr_.available - needed : 0;
  const std::uint64_t kept =
      keeps_others ? in_ddr
                   : std::min(in_ddr, room / std::max<std::uint64_t>(1, largest_layer_bytes_));
  spread(in_cxl, kept, others, Tier::disk);
  homes_.head_on_disk = hbm_.head || !keeps_head;
  disk_weight_bytes_ = layer_weight_bytes(Tier::disk) + (homes_.head_on_disk ? head_bytes_ : 0);
  ddr_.weights -= disk_weight_bytes_;
  if (keeps_others) {
    window_bytes_ = held;
  } else {
    window_bytes_ = keeps_head ? window : window_with_head;
  }
  ddr_.staging =
      kv_window_bytes_ + window_bytes_ + rounding_bytes + (keeps_others ? 0 : hbm_.passing_bytes);
}

void HostPlan::spread(std::uint64_t in_cxl, std::uint64_t in_ddr, std::uint64_t others, Tier held) {
  // Whether the i-th of `all` is one of `some` among them.
  const auto is_one = [](std::uint64_t i, std::uint64_t some, std::uint64_t all) {
    return (i + 1) * some / all != i * some / all;
  };
  std::uint64_t before = 0;  // of the others
  std::uint64_t kept = 0;    // of these
  for (std::size_t i = 0; i < homes_.layers.size(); ++i) {
    Tier& home = homes_.layers[i];
    if (others < homes_.layers.size() && is_held(i)) {
      home = held;
    } else if (!is_one(before++, in_cxl + in_ddr, others)) {
      home = Tier::disk;
    } else {
      home = is_one(kept++, in_cxl, in_cxl + in_ddr) ? Tier::cxl : Tier::ddr;
    }
  }
}

std::uint64_t HostPlan::layer_weight_bytes(Tier tier) const {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < homes_.layers.size(); ++i)
    bytes += homes_.layers[i] == tier ? bytes_of_layer_[i] : 0;
  return bytes;
}

std::uint64_t HostPlan::all_layers_bytes() const {
  return std::accumulate(bytes_of_layer_.begin(), bytes_of_layer_.end(), std::uint64_t{0});
}

std::uint64_t HostPlan::missing_bytes() const {
  const auto missing = [](const TierUse& use) {
    return use.total() > use.available ? use.total() - use.available : 0;
  };
  return missing(ddr_) + (cxl_ ? missing(*cxl_) : 0);
}

HostPlan HostPlan::with_kv_on_disk() const {
  HostPlan plan = *this;
  plan.has_disk_ = true;
  plan.kv_tier_ = Tier::disk;
  plan.settle();
  return plan;
}

std::uint64_t HostPlan::staging_limit_bytes() const { return ddr_.staging + ddr_.activations; }

std::uint64_t ddr_budget(const TierSettings& settings) {
  if (settings.ddr_bytes) return *settings.ddr_bytes;
  const std::uint64_t available = available_ddr_bytes();
  return available > reserved_ddr_bytes ? available - reserved_ddr_bytes : 0;
}

namespace {

std::string cxl_hint(const HostPlan& plan, const TierSettings& settings,
                     const std::string& smaller) {
  std::vector<std::string> hints;
  if (!smaller.empty()) hints.push_back(smaller);
  if (settings.cxl->is_emulated()) {
    if (plan.cxl()->total() < available_ddr_bytes()) {
      hints.push_back(fmt::format("--cxl-nodes emulate:{}GiB would do",
                                  (plan.cxl()->total() + gibibyte - 1) / gibibyte));
    }
  } else if (settings.cxl->nodes.size() == 1) {
    hints.emplace_back("name more nodes");
  } else {
    hints.emplace_back("each node takes the same share: leave out the one with least free");
  }
  if (plan.cxl()->kv > 0) hints.emplace_back("leave out --kv-tier cxl");
  if (!settings.disk && plan.cxl()->kv <= plan.cxl()->available)
    hints.emplace_back("--disk DIR keeps what CXL memory and DDR have no room for");
  hints.emplace_back("leave out --cxl-nodes");
  return fmt::format("{}", fmt::join(hints, ", or: "));
}

}  // namespace

std::string shortage_text(const HostPlan& plan, const TierSettings& settings,
                          const std::string& smaller) {
  const TierUse& ddr = plan.ddr();
  if (plan.cxl() && plan.cxl()->total() > plan.cxl()->available) {
    return fmt::format(
        "not enough CXL memory: {} needed (weights {}, KV cache {}), {} available on {}; {}",
        format_bytes(plan.cxl()->total()), format_bytes(plan.cxl()->weights),
        format_bytes(plan.cxl()->kv), format_bytes(plan.cxl()->available), plan.cxl()->where,
        cxl_hint(plan, settings, smaller));
  }
  std::vector<std::string> hints;
  if (!smaller.empty()) hints.push_back(smaller);
  if (!settings.disk && plan.least_bytes() <= ddr.available) {
    hints.emplace_back("--disk DIR would keep weights on a disk");
  } else if (settings.ddr_bytes && plan.least_bytes() <= available_ddr_bytes()) {
    const bool needs_disk = !settings.disk && plan.least_bytes() < ddr.total();
    hints.push_back(fmt::format("--ddr {}MiB{} would do", plan.least_bytes() / mebibyte,
                                needs_disk ? " with --disk DIR" : ""));
  }
  if (plan.least_bytes() > ddr.available && plan.with_kv_on_disk().missing_bytes() == 0) {
    hints.push_back(fmt::format("{}--kv-tier disk would keep KV on a disk",
                                settings.disk ? "" : "--disk DIR "));
  }
  if (smaller.empty()) hints.emplace_back("use a smaller model or a machine with more memory");
  const std::string staging =
      ddr.staging > 0 ? fmt::format(", staging {}", format_bytes(ddr.staging)) : "";
  return fmt::format(
      "not enough memory: {} needed (weights {}, KV cache {}, activations {}{}, workspaces {}), {} "
      "available; {}",
      format_bytes(ddr.total()), format_bytes(ddr.weights), format_bytes(ddr.kv),
      format_bytes(ddr.activations), staging, format_bytes(ddr.workspaces),
      format_bytes(ddr.available), fmt::join(hints, ", or: "));
}

std::vector<TierUse> tier_uses(const HostPlan& plan, const TierSettings& settings) {
  std::vector<TierUse> uses = {plan.ddr()};
  if (plan.cxl()) uses.push_back(*plan.cxl());
  if (settings.disk) {
    uses.push_back({.tier = Tier::disk,
                    .where = settings.disk->string(),
                    .weights = plan.disk_weight_bytes(),
                    .kv = plan.disk_kv_bytes(),
                    .available = free_bytes(*settings.disk)});
  }
  return uses;
}

std::string format_tiers(const std::vector<TierUse>& uses, OutputFormat format) {
  TableRows rows = {{"tier", "where", "weights", "KV", "activations", "staging", "workspaces",
                     "total", "available"}};
  rows.reserve(1 + uses.size());
  nlohmann::ordered_json tiers = nlohmann::ordered_json::array();
  for (const TierUse& use : uses) {
    rows.push_back({std::string(to_string(use.tier)), use.where, format_bytes(use.weights),
                    format_bytes(use.kv), format_bytes(use.activations), format_bytes(use.staging),
                    format_bytes(use.workspaces), format_bytes(use.total()),
                    format_bytes(use.available)});
    tiers.push_back({{"tier", to_string(use.tier)},
                     {"where", use.where},
                     {"weight_bytes", use.weights},
                     {"kv_bytes", use.kv},
                     {"activation_bytes", use.activations},
                     {"staging_bytes", use.staging},
                     {"workspace_bytes", use.workspaces},
                     {"total_bytes", use.total()},
                     {"available_bytes", use.available}});
  }
  switch (format) {
    case OutputFormat::json:
      return json_text(nlohmann::ordered_json{{"tiers", tiers}}, 2) + "\n";
    case OutputFormat::csv:
      return format_objects_csv(tiers);
    case OutputFormat::markdown:
      return format_markdown(rows);
    default:
      return format_table(rows);
  }
}

std::optional<CxlMemory> cxl_memory(const HostPlan& plan, const TierSettings& settings) {
  if (!settings.cxl) return std::nullopt;
  return CxlMemory{plan.cxl()->available, settings.cxl->is_emulated()};
}

LayerPlacement::LayerPlacement(const LoadedModel& model, const HostPlan& plan,
                               const TierSettings& settings)
    : cxl_(settings.cxl) {
  for (const Tier tier : {Tier::ddr, Tier::cxl}) {
    const std::uint64_t weight_bytes = plan.layer_weight_bytes(tier);
    if (weight_bytes == 0) continue;
    Part& part = parts_.emplace_back();
    part.tier = tier;
    part.is_emulated = tier == Tier::cxl && cxl_ && cxl_->is_emulated();
    part.weight_bytes = weight_bytes;
    part.nodes = tier == Tier::cxl && !part.is_emulated ? cxl_->nodes : near_numa_nodes();
    try {
      part.pages = model.layer_pages(tier);
      if (tier == Tier::ddr) part.by_group = model.pages_by_part();
    } catch (const Error& error) {
      part.problem = error.what();
    }
  }
}

std::uint64_t LayerPlacement::Part::pages_there() const {
  std::uint64_t there = 0;
  for (const auto& [node, count] : pages.by_node) {
    if (std::find(nodes.begin(), nodes.end(), node) != nodes.end()) there += count;
  }
  return there;
}

std::string LayerPlacement::Part::summary() const {
  const std::string weights = format_bytes(weight_bytes);
  if (is_emulated) return fmt::format("cxl: {} of weights, emulated: they lie in DDR", weights);
  const std::string where = fmt::format("{} node {}", to_string(tier), fmt::join(nodes, ","));
  if (!problem.empty()) return fmt::format("{}: {} of weights; {}", where, weights, problem);
  const std::string sample =
      pages.every > 1 ? fmt::format(" (one in {} looked at)", pages.every) : "";
  std::string text = fmt::format("{}: {} of weights, {} of {} pages{} lie there", where, weights,
                                 pages_there(), pages.asked, sample);
  for (const PartPages& group : by_group) {
    text += fmt::format("; of the {:.3g} % for node {}, {} of {} pages", 100 * group.part.share,
                        group.part.node, group.found, group.asked);
  }
  return text;
}

std::string LayerPlacement::summary() const {
  std::string lines;
  for (const Part& part : parts_) lines += part.summary() + "\n";
  return lines;
}

namespace {

nlohmann::json as_json(const PartPages& group) {
  return {{"numa_node", group.part.node},
          {"share", group.part.share},
          {"pages_asked", group.asked},
          {"pages_found", group.found}};
}

}  // namespace

nlohmann::json kv_groups_as_json(const KvCache& kv) {
  nlohmann::json groups = nlohmann::json::array();
  try {
    for (const KvCache::PartHeads& group : kv.pages_by_part()) {
      groups.push_back(as_json(group));
      groups.back()["heads"] = group.num_heads;
    }
  } catch (const Error&) {
    return nullptr;
  }
  return groups;
}

void LayerPlacement::add_to(nlohmann::json& stats) const {
  nlohmann::json& placement = stats["placement"];
  placement = nlohmann::json::array();
  if (cxl_) {
    stats["cxl"].update({{"nodes", cxl_->nodes},
                         {"emulated", cxl_->is_emulated()},
                         {"weight_bytes", 0},
                         {"pages", nlohmann::json::object()}});
  }
  for (const Part& part : parts_) {
    const bool is_known = part.problem.empty();
    placement.push_back(
        {{"tier", to_string(part.is_emulated ? Tier::ddr : part.tier)},
         {"numa_nodes", part.nodes},
         {"weight_bytes", part.weight_bytes},
         {"pages_asked", is_known ? nlohmann::json(part.pages.asked) : nlohmann::json()},
         {"pages_found", is_known ? nlohmann::json(part.pages_there()) : nlohmann::json()},
         {"one_page_in", part.pages.every}});
    nlohmann::json& groups = placement.back()["groups"] = nlohmann::json::array();
    for (const PartPages& group : part.by_group) groups.push_back(as_json(group));
    if (part.tier != Tier::cxl) continue;
    nlohmann::json& cxl = stats["cxl"];
    cxl["weight_bytes"] = part.weight_bytes;
    if (!is_known) cxl["pages"] = nullptr;
    for (const auto& [node, count] : part.pages.by_node) cxl["pages"][std::to_string(node)] = count;
  }
}

DiskRun::DiskRun(const HostPlan& plan, const std::filesystem::path& folder, const Model& model,
                 DType dtype, std::uint64_t kv_file_bytes, LoadedPolicy& policy,
                 Staging accelerator)
    : folder_(folder),
      weight_bytes_(plan.disk_weight_bytes()),
      kv_bytes_(plan.disk_kv_bytes()),
      window_bytes_(plan.window_bytes()),
      limit_bytes_(plan.staging_limit_bytes()),
      node_(limit_bytes_),
      homes_(plan.homes()) {
  if (kv_bytes_ > 0) kv_file_.emplace(node_, folder, kv_file_bytes);
  if (weight_bytes_ > 0) {
    file_.emplace(folder, model, dtype, homes_.hot_experts);
    homes_.file = &*file_;
    homes_.node = &node_;
  }
  accelerator.host_bytes = window_bytes_;
  policy.set_staging(accelerator);
}

void DiskRun::check_room(const HostPlan& plan, const std::filesystem::path& folder,
                         const Model& model, DType dtype, std::uint64_t kv_file_bytes) {
  const std::uint64_t kv = plan.disk_kv_bytes() > 0 ? kv_file_bytes : 0;
  const std::uint64_t weights =
      plan.disk_weight_bytes() > 0
          ? WeightFile::missing_bytes(folder, model, dtype, plan.homes().hot_experts)
          : 0;
  const std::uint64_t there = free_bytes(folder);
  if (kv + weights <= there) return;
  throw Error(
      "--disk {}: the file of all packed weights, to be written, takes {}, KV {}, its disk has {} "
      "free; choose another",
      folder.string(), format_bytes(weights), format_bytes(kv), format_bytes(there));
}

std::string DiskRun::summary() const {
  const DiskUse use = node_.use();
  const double bytes_per_s = use.read_s > 0 ? static_cast<double>(use.read_bytes) / use.read_s : 0;
  std::string text = fmt::format("disk {}: ", folder_.string());
  if (weight_bytes_ > 0) text += fmt::format("{} of weights, ", format_bytes(weight_bytes_));
  if (kv_bytes_ > 0) text += fmt::format("{} of KV, ", format_bytes(kv_bytes_));
  text += fmt::format("{} read at {:.2f} GB/s", format_bytes(use.read_bytes), bytes_per_s * 1e-9);
  if (kv_bytes_ > 0) text += fmt::format(", {} written", format_bytes(use.written_bytes));
  return text + fmt::format("; staged {} at most", format_bytes(use.peak_staged_bytes));
}

void DiskRun::add_to(nlohmann::json& stats) const {
  const DiskUse use = node_.use();
  stats["disk"] = {{"file", file_ ? nlohmann::json(file_->path().string()) : nlohmann::json()},
                   {"folder", folder_.string()},
                   {"weight_bytes", weight_bytes_},
                   {"kv_bytes", kv_bytes_},
                   {"read_bytes", use.read_bytes},
                   {"read_s", use.read_s},
                   {"written_bytes", use.written_bytes},
                   {"window_bytes", window_bytes_},
                   {"staging_limit_bytes", limit_bytes_},
                   {"peak_staged_bytes", use.peak_staged_bytes}};
}

}  // namespace sluice
