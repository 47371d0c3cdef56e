#include "engine/tiers.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/cpu.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/numa.h"
#include "codelets/kernels/linear.h"
#include "engine/tables.h"
#include "perfmodels/analytic_model.h"

namespace sluice {
namespace {

namespace po = boost::program_options;

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

/// StarPU's limit is in whole MiB, and what it allocates is rounded up to pages.
constexpr std::uint64_t rounding_bytes = 2 * mebibyte;

std::uint64_t packed_bytes(const LinearShape& shape) {
  return PackedLayout::get(shape).size_bytes();
}

std::uint64_t up_to_mebibyte(std::uint64_t bytes) {
  return (bytes + mebibyte - 1) / mebibyte * mebibyte;
}

constexpr std::uint64_t gibibyte = std::uint64_t{1} << 30;
constexpr std::string_view emulate_prefix = "emulate:";

CxlSettings read_cxl(const std::string& text) {
  CxlSettings settings;
  const auto refuse = [&] {
    return UsageError(
        "--cxl-nodes {}: expected NUMA nodes such as 2,3, or emulate:GiB such as emulate:16", text);
  };
  const auto number = [&](std::string_view digits) {
    int value = -1;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || end != digits.data() + digits.size() || value < 0) throw refuse();
    return value;
  };
  if (text.starts_with(emulate_prefix)) {
    const int gib = number(std::string_view(text).substr(emulate_prefix.size()));
    if (gib == 0) throw refuse();
    settings.emulated_bytes = static_cast<std::uint64_t>(gib) * gibibyte;
    return settings;
  }
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const int node = number(std::string_view(text).substr(begin, end - begin));
    if (std::find(settings.homes.nodes.begin(), settings.homes.nodes.end(), node) !=
        settings.homes.nodes.end())
      throw refuse();
    settings.homes.nodes.push_back(node);
    begin = end + 1;
  }
  return settings;
}

std::string cxl_place(const CxlSettings& settings) {
  return settings.is_emulated() ? "emulated in ddr"
                                : fmt::format("node {}", fmt::join(settings.homes.nodes, ","));
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

/// What is there; what lives in emulated CXL is counted there only. Pages go to the nodes in turn:
/// each takes what the one with the least has, as what is more would end up in DDR.
std::uint64_t cxl_bytes(const CxlSettings& settings) {
  if (settings.is_emulated()) return std::min(settings.emulated_bytes, available_ddr_bytes());
  const std::vector<NumaNode> nodes = read_cpu_topology().numa_nodes;
  std::uint64_t least = std::numeric_limits<std::uint64_t>::max();
  for (const int wanted : settings.homes.nodes) {
    const auto found = std::find_if(nodes.begin(), nodes.end(),
                                    [&](const NumaNode& node) { return node.os_index == wanted; });
    if (found == nodes.end()) {
      throw Error("--cxl-nodes: this machine has no NUMA node {}; sluice info lists them", wanted);
    }
    if (found->has_processors) {
      throw Error(
          "--cxl-nodes: NUMA node {} has processors, so it is no CXL memory; "
          "emulate:GiB stands in for tests",
          wanted);
    }
    least = std::min(least, free_node_bytes(wanted));
  }
  return least * settings.homes.nodes.size();
}

/// "0", "0,1"
std::string numa_nodes_with_cpus() {
  std::vector<int> nodes;
  for (const NumaNode& node : read_cpu_topology().numa_nodes) {
    if (node.has_processors) nodes.push_back(node.os_index);
  }
  return fmt::format("node {}", fmt::join(nodes, ","));
}

std::uint64_t free_bytes(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::path there = std::filesystem::absolute(folder);
  while (!std::filesystem::exists(there) && there.has_relative_path()) there = there.parent_path();
  const std::filesystem::space_info space = std::filesystem::space(there, error);
  return error ? 0 : space.available;
}

}  // namespace

void declare_tier_options(CommandLine& line, DryRunJson json) {
  line.options().add_options()  //
      ("ddr", po::value<std::string>(),
       "memory that the run's data may take, e.g. 20GiB; default: what is free, less 256 MiB")  //
      ("disk", po::value<std::string>(),
       "folder for packed weights that DDR has no room for; they are read from there ahead of "
       "use")  //
      ("cxl-nodes", po::value<std::string>(),
       "NUMA nodes without processors, e.g. 2,3, that the layers' weights are spread over; or "
       "emulate:GiB, to test with")
      //
      ("dry-run", po::bool_switch(), "print what the run would take of each tier, and end");
  if (json == DryRunJson::own_option)
    line.options().add_options()("json", po::bool_switch(), "with --dry-run: as JSON");
}

TierSettings read_tier_settings(const CommandLine& line) {
  TierSettings settings;
  if (line.given("ddr")) settings.ddr_bytes = parse_size_bytes(line.get<std::string>("ddr"), "ddr");
  if (line.given("disk")) {
    settings.disk = line.get<std::string>("disk");
    if (settings.disk->empty()) throw UsageError("--disk: give a folder");
  }
  if (line.given("cxl-nodes")) settings.cxl = read_cxl(line.get<std::string>("cxl-nodes"));
  if (settings.cxl && settings.disk)
    throw UsageError("--cxl-nodes and --disk exclude each other: the weights live in one place");
  settings.dry_run = line.get<bool>("dry-run");
  return settings;
}

std::uint64_t table_bytes(const Model& model) {
  std::uint64_t bytes = model.weights->tensor({TensorRole::token_embedding}).data.size();
  if (model.config.position == PositionKind::learned)
    bytes += model.weights->tensor({TensorRole::position_embedding}).data.size();
  return bytes;
}

HostPlan::HostPlan(const ModelConfig& config, DType dtype, const HostNeed& need,
                   const TierSettings& settings)
    : split_score_bytes_(need.split_score_bytes),
      has_disk_(settings.disk.has_value()),
      layers_on_disk_(static_cast<std::size_t>(config.num_layers)) {
  for (const LinearShape& shape : layer_linears(config, dtype)) layer_bytes_ += packed_bytes(shape);
  head_bytes_ = packed_bytes({config.embed_size, config.vocab_size, dtype});
  const std::uint64_t layers = layers_on_disk_.size() * layer_bytes_;
  ddr_ = {.tier = Tier::ddr,
          .where = numa_nodes_with_cpus(),
          .weights = packed_weight_bytes(config, dtype) + need.table_bytes,
          .kv = need.kv_bytes,
          .activations = need.activation_bytes,
          .workspaces = need.workspace_bytes,
          .available = ddr_budget(settings)};
  if (settings.cxl) {
    ddr_.weights -= layers;
    cxl_ = {.tier = Tier::cxl,
            .where = cxl_place(*settings.cxl),
            .weights = layers,
            .available = cxl_bytes(*settings.cxl)};
    least_bytes_ = up_to_mebibyte(ddr_.total());
    return;
  }
  stream_what_does_not_fit();
}

void HostPlan::set_accelerator(HbmShare share) {
  hbm_ = std::move(share);
  const std::uint64_t num_layers = std::max<std::uint64_t>(1, layers_on_disk_.size());
  ddr_.kv -= ddr_.kv * static_cast<std::uint64_t>(hbm_.kv_layers) / num_layers;
  if (hbm_.splits_attention) ddr_.activations += split_score_bytes_;
  if (cxl_) return;
  ddr_.weights += std::exchange(disk_weight_bytes_, 0);
  ddr_.staging = 0;
  stream_what_does_not_fit();
}

void HostPlan::stream_what_does_not_fit() {
  std::uint64_t others = 0;  // layers that nothing holds
  for (std::size_t i = 0; i < layers_on_disk_.size(); ++i) others += is_held(i) ? 0 : 1;
  const std::uint64_t always =
      rounding_bytes + ddr_.total() - layers_on_disk_.size() * layer_bytes_ - head_bytes_;
  const std::uint64_t head = hbm_.head ? 0 : head_bytes_;  // that needs a place
  // What is held passes while loading, one weight after the other.
  const std::uint64_t held =
      std::max(head_bytes_ - head, others < layers_on_disk_.size() ? layer_bytes_ : 0);
  const std::uint64_t window = std::max(2 * layer_bytes_, held);
  const std::uint64_t window_with_head = std::max(2 * layer_bytes_, head + layer_bytes_);

  const std::uint64_t others_stay = always + others * layer_bytes_ + head + held;
  const std::uint64_t head_stays = always + head + window + hbm_.passing_bytes;
  const std::uint64_t head_streams =
      always + std::max(window, window_with_head) + hbm_.passing_bytes;
  least_bytes_ = up_to_mebibyte(std::min({ddr_.total(), head_streams, head_stays, others_stay}));
  if (!has_disk_ || ddr_.total() <= ddr_.available) return;

  const bool keeps_others = others_stay <= ddr_.available;
  const bool keeps_head = keeps_others || head_stays <= ddr_.available;
  const std::uint64_t needed = keeps_head ? head_stays : head_streams;
  const std::uint64_t room = ddr_.available > needed ? ddr_.available - needed : 0;
  const std::uint64_t kept =
      keeps_others ? others : std::min(others, room / std::max<std::uint64_t>(1, layer_bytes_));
  spread(kept, others);
  head_on_disk_ = hbm_.head || !keeps_head;
  disk_weight_bytes_ =
      (layers_on_disk_.size() - kept) * layer_bytes_ + (head_on_disk_ ? head_bytes_ : 0);
  ddr_.weights -= disk_weight_bytes_;
  window_bytes_ = rounding_bytes;
  if (keeps_others) {
    window_bytes_ += held;
  } else {
    window_bytes_ += keeps_head ? window : std::max(window, window_with_head);
  }
  ddr_.staging = window_bytes_ + (keeps_others ? 0 : hbm_.passing_bytes);
}

void HostPlan::spread(std::uint64_t kept, std::uint64_t others) {
  std::uint64_t before = 0;  // of the others
  for (std::size_t i = 0; i < layers_on_disk_.size(); ++i) {
    layers_on_disk_[i] = is_held(i) || (before + 1) * kept / others == before * kept / others;
    if (!is_held(i)) ++before;
  }
}

std::int64_t HostPlan::num_layers_on_disk() const {
  return std::count(layers_on_disk_.begin(), layers_on_disk_.end(), true);
}

std::uint64_t HostPlan::missing_bytes() const {
  const auto missing = [](const TierUse& use) {
    return use.total() > use.available ? use.total() - use.available : 0;
  };
  return missing(ddr_) + (cxl_ ? missing(*cxl_) : 0);
}

std::uint64_t HostPlan::staging_limit_bytes() const { return ddr_.staging + ddr_.activations; }

std::uint64_t ddr_budget(const TierSettings& settings) {
  if (settings.ddr_bytes) return *settings.ddr_bytes;
  const std::uint64_t available = available_ddr_bytes();
  return available > reserved_ddr_bytes ? available - reserved_ddr_bytes : 0;
}

namespace {

std::string cxl_hint(const HostPlan& plan, const CxlSettings& settings) {
  if (settings.is_emulated()) {
    return fmt::format("--cxl-nodes emulate:{} would do",
                       (plan.cxl()->total() + gibibyte - 1) / gibibyte);
  }
  if (settings.homes.nodes.size() == 1) return "name more nodes, or leave out --cxl-nodes";
  return "each node takes the same share: leave out the one with least free, or --cxl-nodes";
}

}  // namespace

std::string shortage_text(const HostPlan& plan, const TierSettings& settings,
                          const std::string& smaller) {
  const TierUse& ddr = plan.ddr();
  if (plan.cxl() && plan.cxl()->total() > plan.cxl()->available) {
    return fmt::format(
        "not enough CXL memory: {} needed for the layers' weights, {} available on {}; "
        "{}",
        format_bytes(plan.cxl()->total()), format_bytes(plan.cxl()->available), plan.cxl()->where,
        cxl_hint(plan, *settings.cxl));
  }
  std::vector<std::string> hints;
  if (!smaller.empty()) hints.push_back(smaller);
  if (!settings.disk && !settings.cxl && plan.least_bytes() <= ddr.available) {
    hints.emplace_back("--disk DIR would keep weights on a disk");
  } else if (settings.ddr_bytes && plan.least_bytes() <= available_ddr_bytes()) {
    hints.push_back(fmt::format("--ddr {}MiB{} would do", plan.least_bytes() / mebibyte,
                                settings.disk || settings.cxl ? "" : " with --disk DIR"));
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
      return nlohmann::ordered_json{{"tiers", tiers}}.dump(2) + "\n";
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
    : cxl_(settings.cxl), weight_bytes_(plan.cxl() ? plan.cxl()->weights : 0) {
  if (cxl_ && !cxl_->is_emulated()) {
    nodes_ = cxl_->homes.nodes;
  } else {
    for (const NumaNode& node : read_cpu_topology().numa_nodes) {
      if (node.has_processors) nodes_.push_back(node.os_index);
    }
  }
  if (!cxl_) {
    std::uint64_t layer_bytes = 0;
    for (const LinearShape& shape : layer_linears(model.config(), model.shape().dtype))
      layer_bytes += packed_bytes(shape);
    const std::int64_t num_here = model.config().num_layers - plan.num_layers_on_disk();
    weight_bytes_ = static_cast<std::uint64_t>(num_here) * layer_bytes;
  }
  try {
    pages_ = model.layer_pages();
  } catch (const Error& error) {
    problem_ = error.what();
  }
}

std::uint64_t LayerPlacement::pages_there() const {
  std::uint64_t there = 0;
  for (const auto& [node, count] : pages_.by_node) {
    if (std::find(nodes_.begin(), nodes_.end(), node) != nodes_.end()) there += count;
  }
  return there;
}

std::string LayerPlacement::summary() const {
  const std::string weights = format_bytes(weight_bytes_);
  if (cxl_ && cxl_->is_emulated())
    return fmt::format("cxl: {} of weights, emulated: they lie in DDR", weights);
  const std::string where = fmt::format("{} node {}", cxl_ ? "cxl" : "ddr", fmt::join(nodes_, ","));
  if (!problem_.empty()) return fmt::format("{}: {} of weights; {}", where, weights, problem_);
  const std::string sample =
      pages_.every > 1 ? fmt::format(" (one in {} looked at)", pages_.every) : "";
  return fmt::format("{}: {} of weights, {} of {} pages{} lie there", where, weights, pages_there(),
                     pages_.asked, sample);
}

void LayerPlacement::add_to(nlohmann::json& stats) const {
  const bool is_known = problem_.empty();
  const bool is_emulated = cxl_ && cxl_->is_emulated();
  stats["placement"] = {
      {"tier", cxl_ && !is_emulated ? "cxl" : "ddr"},
      {"numa_nodes", nodes_},
      {"weight_bytes", weight_bytes_},
      {"pages_asked", is_known ? nlohmann::json(pages_.asked) : nlohmann::json()},
      {"pages_found", is_known ? nlohmann::json(pages_there()) : nlohmann::json()},
      {"one_page_in", pages_.every}};
  if (!cxl_) return;
  nlohmann::json& cxl = stats["cxl"];
  cxl = {{"nodes", cxl_->homes.nodes}, {"emulated", is_emulated}, {"weight_bytes", weight_bytes_}};
  if (!is_known) cxl["pages"] = nullptr;
  for (const auto& [node, count] : pages_.by_node) cxl["pages"][std::to_string(node)] = count;
}

DiskRun::DiskRun(const HostPlan& plan, const std::filesystem::path& folder, const Model& model,
                 DType dtype, LoadedPolicy& policy, Staging accelerator)
    : weight_bytes_(plan.disk_weight_bytes()),
      limit_bytes_(plan.staging_limit_bytes()),
      file_(folder, model, dtype),
      node_(limit_bytes_),
      homes_{.file = &file_,
             .node = &node_,
             .layers = plan.layers_on_disk(),
             .head = plan.head_on_disk()} {
  accelerator.host_bytes = plan.window_bytes();
  policy.set_staging(accelerator);
}

std::string DiskRun::summary() const {
  const DiskUse use = node_.use();
  const double bytes_per_s = use.read_s > 0 ? static_cast<double>(use.read_bytes) / use.read_s : 0;
  return fmt::format("disk {}: {} of weights, {} read at {:.2f} GB/s; staged {} at most",
                     file_.path().parent_path().string(), format_bytes(weight_bytes_),
                     format_bytes(use.read_bytes), bytes_per_s * 1e-9,
                     format_bytes(use.peak_staged_bytes));
}

void DiskRun::add_to(nlohmann::json& stats) const {
  const DiskUse use = node_.use();
  stats["disk"] = {
      {"file", file_.path().string()},       {"weight_bytes", weight_bytes_},
      {"read_bytes", use.read_bytes},        {"read_s", use.read_s},
      {"staging_limit_bytes", limit_bytes_}, {"peak_staged_bytes", use.peak_staged_bytes}};
}

}  // namespace sluice
