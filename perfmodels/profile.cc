#include "perfmodels/profile.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "base/error.h"
#include "base/nearest_word.h"
#include "perfmodels/profile_document.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

enum class Kind : std::uint8_t { positive, not_negative, count };

/// What a field's number is, and between which it is believed: from less than the smallest machine
/// has to more than the largest will have in ten years. What is outside has another unit.
struct Quantity {
  std::string_view unit;
  double least;
  double most;
  Kind kind = Kind::positive;  ///< not_negative: 0, too
};
constexpr Quantity cpu_bandwidth = {"GB/s", 1, 20e3};
constexpr Quantity gpu_bandwidth = {"GB/s", 10, 200e3};
constexpr Quantity link_bandwidth = {"GB/s", 0.05, 10e3};
constexpr Quantity cpu_arithmetic = {"TFLOP/s", 0.005, 2e3};
constexpr Quantity gpu_arithmetic = {"TFLOP/s", 1, 50e3};
constexpr Quantity widening = {"GB/s", 0.1, 200e3};
constexpr Quantity hbm_capacity = {"GiB", 0.1, 10e3};
constexpr Quantity memory_capacity = {"GiB", 0.1, 100e3};
constexpr Quantity disk_capacity = {"GiB", 0.1, 1e6};
constexpr Quantity overhead = {"us", 0.001, 10e3, Kind::not_negative};
constexpr Quantity latency = {"us", 0.001, 100e3, Kind::not_negative};
constexpr Quantity device_watts = {"W", 1, 20e3, Kind::not_negative};
constexpr Quantity busy_device_watts = {"W", 1, 20e3};
constexpr Quantity machine_watts = {"W", 1, 1e6, Kind::not_negative};
constexpr Quantity price = {"USD", 1, 1e8, Kind::not_negative};
constexpr Quantity electricity = {"USD/kWh", 0.001, 5, Kind::not_negative};
constexpr Quantity lifetime = {"years", 0.1, 100};
constexpr Quantity cpu_cores = {"cores", 1, 10e3, Kind::count};
constexpr Quantity gpu_cores = {"cores", 1, 1e6, Kind::count};
constexpr Quantity pool_round = {"us", 0.01, 10e3};
constexpr Quantity gpus = {"GPUs", 1, 1e3, Kind::count};

void check_range(const ProfileField& field, double number, const Quantity& quantity) {
  const bool may_be_0 = quantity.kind == Kind::not_negative;
  if ((number == 0 && may_be_0) || (number >= quantity.least && number <= quantity.most)) return;
  field.refuse(fmt::format("{}{} to {:.0f} {}; is it in another unit?", may_be_0 ? "0, or " : "",
                           quantity.least, quantity.most, quantity.unit));
}

double number_in(const ProfileField& field, const Quantity& quantity) {
  const bool may_be_0 = quantity.kind == Kind::not_negative;
  const double number = may_be_0 ? field.not_negative() : field.positive();
  if (quantity.kind == Kind::count && number != std::floor(number)) field.refuse("a whole number");
  check_range(field, number, quantity);
  return number;
}

/// Of a curve or surface only the largest number tells its unit: few rows may be slow.
void check_largest(const std::vector<ProfileField>& fields, const Quantity& quantity) {
  const auto by_number = [](const ProfileField& a, const ProfileField& b) {
    return a.positive() < b.positive();
  };
  const ProfileField& largest = *std::max_element(fields.begin(), fields.end(), by_number);
  check_range(largest, largest.positive(), quantity);
}

constexpr std::string_view number_form = R"({"value": a number, "source": "where it comes from"})";

ProfileField value_in(const ProfileField& field) {
  if (!field.is_object()) field.refuse(number_form);
  field.expect_keys({"value", "source"});
  return field.at("value");
}

Sourced<double> read_number(const ProfileField& field, const Quantity& quantity) {
  return {number_in(value_in(field), quantity), field.at("source").text()};
}

Sourced<double> read_switch(const ProfileField& field) {
  const ProfileField value = value_in(field);
  const double number = value.not_negative();
  if (number != 0 && number != 1) value.refuse("0 or 1");
  return {number, field.at("source").text()};
}

std::optional<Sourced<double>> read_optional(const ProfileField& parent, std::string_view key,
                                             const Quantity& quantity) {
  const std::optional<ProfileField> field = parent.find(key);
  if (!field) return std::nullopt;
  return read_number(*field, quantity);
}

/// What `make` returns; its errors with the field's path before them.
template <typename Make>
auto located(const ProfileField& field, const Make& make) {
  try {
    return make();
  } catch (const Error& error) {
    field.complain(error.what());
  }
}

Curve::Point read_point(const ProfileField& field) {
  const std::vector<ProfileField> pair = field.elements();
  if (pair.size() != 2) field.refuse("a pair [x, y]");
  return {pair[0].positive(), pair[1].positive()};
}

Curve read_points(const ProfileField& field, const Quantity& quantity) {
  std::vector<Curve::Point> points;
  std::vector<ProfileField> heights;
  for (const ProfileField& point : field.at("points").elements()) {
    points.push_back(read_point(point));
    heights.push_back(point.elements()[1]);
  }
  check_largest(heights, quantity);
  return located(field, [&] { return Curve(points); });
}

Sourced<Curve> read_curve(const ProfileField& field, std::string_view over,
                          const Quantity& quantity) {
  if (!field.is_object() || !field.find("over")) {
    Sourced<double> number = read_number(field, quantity);
    return {Curve::constant(number.value), std::move(number.source)};
  }
  if (field.find("peak")) {
    field.expect_keys({"over", "peak", "half_at", "source"});
  } else {
    field.expect_keys({"over", "points", "source"});
  }
  field.at("over").word({over});
  std::string source = field.at("source").text();
  if (const std::optional<ProfileField> peak = field.find("peak"))
    return {Curve::saturating(number_in(*peak, quantity), field.at("half_at").positive()), source};
  return {read_points(field, quantity), source};
}

std::vector<double> read_list(const ProfileField& field) {
  std::vector<double> numbers;
  for (const ProfileField& element : field.elements()) numbers.push_back(element.positive());
  return numbers;
}

Sourced<Surface> read_surface(const ProfileField& field, const Quantity& quantity) {
  if (!field.is_object() || (!field.find("batch") && !field.find("context"))) {
    Sourced<double> number = read_number(field, quantity);
    return {Surface::constant(number.value), std::move(number.source)};
  }
  field.expect_keys({"batch", "context", "values", "source"});
  std::vector<std::vector<double>> values;
  std::vector<ProfileField> heights;
  for (const ProfileField& row : field.at("values").elements()) {
    values.push_back(read_list(row));
    for (const ProfileField& height : row.elements()) heights.push_back(height);
  }
  check_largest(heights, quantity);
  return {located(field,
                  [&] {
                    return Surface(read_list(field.at("batch")), read_list(field.at("context")),
                                   values);
                  }),
          field.at("source").text()};
}

/// What tells a CPU's numbers from a GPU's.
struct DeviceQuantities {
  Quantity cores;
  Quantity bandwidth;
  Quantity arithmetic;
};

DeviceProfile read_device(const ProfileField& field, const DeviceQuantities& its) {
  return {.name = field.at("name").text(),
          .cores = read_optional(field, "cores", its.cores),
          .memory_bandwidth_gb_per_s =
              read_number(field.at("memory_bandwidth_gb_per_s"), its.bandwidth),
          .gemm_tflop_per_s = read_curve(field.at("gemm_tflop_per_s"), "rows", its.arithmetic),
          .attention_bandwidth_gb_per_s =
              read_surface(field.at("attention_bandwidth_gb_per_s"), its.bandwidth),
          .attention_tflop_per_s =
              read_curve(field.at("attention_tflop_per_s"), "rows", its.arithmetic),
          .combine = static_cast<Combine>(field.at("combine").word({"max", "sum"})),
          .task_overhead_us = read_number(field.at("task_overhead_us"), overhead),
          .dequantize_gb_per_s = read_optional(field, "dequantize_gb_per_s", widening),
          .idle_watts = read_optional(field, "idle_watts", device_watts),
          .busy_watts = read_optional(field, "busy_watts", busy_device_watts),
          .price_usd = read_optional(field, "price_usd", price)};
}

DeviceProfile read_cpu(const ProfileField& field) {
  field.expect_keys({"name", "cores", "memory_bandwidth_gb_per_s", "gemm_tflop_per_s",
                     "attention_bandwidth_gb_per_s", "attention_tflop_per_s", "combine",
                     "task_overhead_us", "dequantize_gb_per_s", "idle_watts", "busy_watts",
                     "price_usd", "topology", "node_bandwidth_gb_per_s",
                     "remote_bandwidth_gb_per_s", "round_us", "contention"});
  static_cast<void>(field.at("cores"));
  return read_device(field, {cpu_cores, cpu_bandwidth, cpu_arithmetic});
}

/// A synthetic text: a profile never names a file.
Topology topology_of(const ProfileField& text) {
  try {
    return Topology::of_synthetic_text(text.text());
  } catch (const Error&) {
    text.refuse(
        "hwloc's synthetic text of at most 4096 hardware threads, such as \"pack:2 numa:1 l3:4 "
        "core:8 pu:2\"");
  }
}

Sourced<Topology> read_topology(const ProfileField& field, double num_cores) {
  if (!field.is_object()) field.refuse(R"({"value": a text, "source": "where it comes from"})");
  field.expect_keys({"value", "source"});
  const ProfileField text = field.at("value");
  Topology topology = topology_of(text);
  const auto described = std::ssize(topology.cores());
  if (static_cast<double>(described) != num_cores)
    text.complain(
        fmt::format("it has {} cores, and cpu.cores is {}; make them agree", described, num_cores));
  return {std::move(topology), field.at("source").text()};
}

/// How many cores each NUMA node has.
std::map<int, int> cores_of_nodes(const Topology& topology) {
  std::map<int, int> counts;
  for (const int core : topology.cores()) ++counts[topology.numa_node_of(core)];
  return counts;
}

CoresProfile::Contention read_contention(const ProfileField& field,
                                         const std::map<int, int>& cores_of_node) {
  field.expect_keys({"cores", "bandwidth_gb_per_s"});
  const ProfileField cores = field.at("cores");
  const double number = number_in(cores, cpu_cores);
  const int sharing = static_cast<int>(number);
  for (const auto& [node, count] : cores_of_node) {
    if (sharing < 2 || count % sharing != 0)
      cores.refuse(fmt::format("2 or more that divide the {} cores of NUMA node {}", count, node));
  }
  return {.cores = sharing,
          .bandwidth_gb_per_s = read_curve(field.at("bandwidth_gb_per_s"), "cores", cpu_bandwidth)};
}

/// Nothing where the CPU has none of these fields.
std::optional<CoresProfile> read_cores(const ProfileField& cpu, double num_cores) {
  constexpr std::array keys = {"topology", "node_bandwidth_gb_per_s", "remote_bandwidth_gb_per_s",
                               "round_us"};
  const std::optional<ProfileField> contention = cpu.find("contention");
  const auto is_there = [&](const char* key) { return cpu.find(key).has_value(); };
  if (!contention && std::none_of(keys.begin(), keys.end(), is_there)) return std::nullopt;
  for (const char* key : keys) {
    if (!is_there(key))
      cpu.complain(fmt::format("\"{}\" is missing; {} go together, so give all of them or none",
                               key, fmt::join(keys, ", ")));
  }
  CoresProfile cores = {
      .topology = read_topology(cpu.at("topology"), num_cores),
      .node_bandwidth_gb_per_s =
          read_curve(cpu.at("node_bandwidth_gb_per_s"), "cores", cpu_bandwidth),
      .remote_bandwidth_gb_per_s = read_number(cpu.at("remote_bandwidth_gb_per_s"), cpu_bandwidth),
      .round_us = read_curve(cpu.at("round_us"), "threads", pool_round)};
  if (contention) {
    const std::map<int, int> cores_of_node = cores_of_nodes(cores.topology.value);
    for (const ProfileField& each : contention->elements())
      cores.contention.push_back(read_contention(each, cores_of_node));
  }
  return cores;
}

DeviceProfile read_gpu(const ProfileField& field) {
  field.expect_keys({"name", "count", "all_reduce", "cores", "memory_bandwidth_gb_per_s",
                     "gemm_tflop_per_s", "attention_bandwidth_gb_per_s", "attention_tflop_per_s",
                     "combine", "task_overhead_us", "dequantize_gb_per_s", "idle_watts",
                     "busy_watts", "price_usd"});
  return read_device(field, {gpu_cores, gpu_bandwidth, gpu_arithmetic});
}

AllReduceProfile read_all_reduce(const ProfileField& field) {
  field.expect_keys({"bandwidth_gb_per_s", "latency_us"});
  return {.bandwidth_gb_per_s = read_curve(field.at("bandwidth_gb_per_s"), "bytes", link_bandwidth),
          .latency_us = read_number(field.at("latency_us"), latency)};
}

const Quantity& capacity_of(Tier tier) {
  if (tier == Tier::hbm) return hbm_capacity;
  return tier == Tier::disk ? disk_capacity : memory_capacity;
}

MemoryCacheProfile read_cache(const ProfileField& field, bool has_gpu) {
  if (has_gpu) {
    field.expect_keys({"capacity_gib", "missed_cpu_gb_per_s", "missed_to_hbm_gb_per_s"});
    static_cast<void>(field.at("missed_to_hbm_gb_per_s"));
  } else {
    field.expect_keys({"capacity_gib", "missed_cpu_gb_per_s"});
  }
  return {.capacity_gib = read_number(field.at("capacity_gib"), memory_capacity),
          .missed_cpu_gb_per_s = read_number(field.at("missed_cpu_gb_per_s"), cpu_bandwidth),
          .missed_to_hbm_gb_per_s = read_optional(field, "missed_to_hbm_gb_per_s", link_bandwidth)};
}

TierProfile read_tier(const ProfileField& field, Tier tier, bool has_gpu) {
  if (tier == Tier::cxl) {
    field.expect_keys({"capacity_gib", "reserved_gib", "cpu_bandwidth_gb_per_s"});
    static_cast<void>(field.at("cpu_bandwidth_gb_per_s"));
  } else if (tier == Tier::ddr) {
    field.expect_keys({"capacity_gib", "reserved_gib", "cache"});
  } else {
    field.expect_keys({"capacity_gib", "reserved_gib"});
  }
  Quantity reserved = capacity_of(tier);
  reserved.least = 0.001;
  reserved.kind = Kind::not_negative;
  TierProfile profile = {
      .capacity_gib = read_number(field.at("capacity_gib"), capacity_of(tier)),
      .reserved_gib = read_optional(field, "reserved_gib", reserved),
      .cpu_bandwidth_gb_per_s = read_optional(field, "cpu_bandwidth_gb_per_s", link_bandwidth)};
  if (const std::optional<ProfileField> cache = field.find("cache"))
    profile.cache = read_cache(*cache, has_gpu);
  if (profile.reserved_gib && profile.reserved_gib->value >= profile.capacity_gib.value)
    field.complain(fmt::format("{} GiB of {} are reserved, expected less",
                               profile.reserved_gib->value, profile.capacity_gib.value));
  return profile;
}

Tier read_tier_name(const ProfileField& field, const MachineProfile& profile) {
  const auto tier = static_cast<Tier>(field.word({"hbm", "ddr", "cxl", "disk"}));
  if (!profile.tier(tier)) field.refuse("one of the profile's tiers");
  return tier;
}

/// Whether something lies between HBM and another tier than DDR, whose own way is PCIe.
bool may_bypass_pcie(const LinkProfile& link) {
  const bool of_gpu = link.from == Tier::hbm || link.to == Tier::hbm;
  return of_gpu && link.from != Tier::ddr && link.to != Tier::ddr;
}

LinkProfile read_link(const ProfileField& field, const MachineProfile& profile) {
  field.expect_keys({"from", "to", "bandwidth_gb_per_s", "latency_us", "pinned", "bypasses_pcie"});
  LinkProfile link = {
      .from = read_tier_name(field.at("from"), profile),
      .to = read_tier_name(field.at("to"), profile),
      .bandwidth_gb_per_s = read_curve(field.at("bandwidth_gb_per_s"), "bytes", link_bandwidth),
      .latency_us = read_number(field.at("latency_us"), latency),
      .pinned = field.at("pinned").flag(),
      .bypasses_pcie = false};
  if (link.from == link.to) field.at("to").refuse("another tier than \"from\"");
  if (const std::optional<ProfileField> bypasses = field.find("bypasses_pcie")) {
    link.bypasses_pcie = bypasses->flag();
    if (!may_bypass_pcie(link))
      bypasses->complain("only of a link between hbm and another tier than ddr");
  }
  for (const LinkProfile& other : profile.links) {
    if (other.from == link.from && other.to == link.to && other.pinned == link.pinned)
      field.complain(fmt::format("a second {} link from {} to {}",
                                 link.pinned ? "pinned" : "pageable", to_string(link.from),
                                 to_string(link.to)));
  }
  return link;
}

/// A cache that helps.
void check_cache(const ProfileField& ddr, const MachineProfile& profile) {
  const std::optional<MemoryCacheProfile>& cache = profile.tier(Tier::ddr)->cache;
  const double hits = profile.cpu.memory_bandwidth_gb_per_s.value;
  if (!cache || cache->missed_cpu_gb_per_s.value <= hits) return;
  ddr.at("cache")
      .at("missed_cpu_gb_per_s")
      .at("value")
      .refuse(fmt::format("at most cpu.memory_bandwidth_gb_per_s, {}, the rate of what it holds",
                          hits));
}

void read_tiers(const ProfileField& field, MachineProfile& profile) {
  field.expect_keys({"hbm", "ddr", "cxl", "disk"});
  static_cast<void>(field.at("ddr"));
  for (const Tier tier : all_tiers) {
    if (const std::optional<ProfileField> found = field.find(to_string(tier)))
      profile.tiers[static_cast<std::size_t>(tier)] =
          read_tier(*found, tier, profile.gpu.has_value());
  }
  check_cache(field.at("ddr"), profile);
  if (profile.gpu) static_cast<void>(field.at("hbm"));
  if (profile.tier(Tier::hbm) && !profile.gpu)
    field.at("hbm").complain("a tier of a GPU, but the profile has no gpu");
}

/// Other pairs without a link go through DDR, which all tiers therefore reach, and are reached
/// from.
void check_reaches_ddr(const ProfileField& root, const MachineProfile& profile, Tier tier) {
  for (const auto& [from, to] : {std::pair(tier, Tier::ddr), std::pair(Tier::ddr, tier)}) {
    if (profile.link(from, to) != nullptr) continue;
    const std::string missing = fmt::format("no link from {} to {}, which tiers.{} needs",
                                            to_string(from), to_string(to), to_string(tier));
    if (const std::optional<ProfileField> links = root.find("links")) links->complain(missing);
    root.at("tiers").at(to_string(tier)).complain(missing);
  }
}

void read_links(const ProfileField& root, MachineProfile& profile) {
  if (const std::optional<ProfileField> field = root.find("links")) {
    for (const ProfileField& link : field->elements())
      profile.links.push_back(read_link(link, profile));
  }
  for (const Tier tier : {Tier::hbm, Tier::cxl, Tier::disk}) {
    if (profile.tier(tier)) check_reaches_ddr(root, profile, tier);
  }
}

SystemProfile read_system(const ProfileField& field) {
  field.expect_keys(
      {"price_usd", "lifetime_years", "electricity_usd_per_kwh", "idle_watts", "other_watts"});
  return {.price_usd = read_optional(field, "price_usd", price),
          .lifetime_years = read_optional(field, "lifetime_years", lifetime),
          .electricity_usd_per_kwh = read_optional(field, "electricity_usd_per_kwh", electricity),
          .idle_watts = read_optional(field, "idle_watts", machine_watts),
          .other_watts = read_optional(field, "other_watts", machine_watts)};
}

MachineProfile read_profile(const ProfileDocument& document) {
  const ProfileField root(document);
  root.expect_keys(
      {"name", "description", "causal_attention", "cpu", "gpu", "tiers", "links", "system"});
  MachineProfile profile = {.name = root.at("name").text(),
                            .description = root.at("description").text(),
                            .causal_attention = read_switch(root.at("causal_attention")),
                            .cpu = read_cpu(root.at("cpu")),
                            .cpu_cores = {},
                            .gpu = {},
                            .num_gpus = {},
                            .all_reduce = {},
                            .tiers = {},
                            .links = {},
                            .system = {}};
  profile.cpu_cores = read_cores(root.at("cpu"), profile.cpu.cores->value);
  if (const std::optional<ProfileField> gpu = root.find("gpu")) {
    profile.num_gpus = read_number(gpu->at("count"), gpus);
    profile.gpu = read_gpu(*gpu);
    if (const std::optional<ProfileField> all_reduce = gpu->find("all_reduce"))
      profile.all_reduce = read_all_reduce(*all_reduce);
  }
  read_tiers(root.at("tiers"), profile);
  read_links(root, profile);
  if (const std::optional<ProfileField> system = root.find("system"))
    profile.system = read_system(*system);
  return profile;
}

// ---- Names and files

/// Where profiles come from: the source tree that this was built in, else beside the program,
/// wherever it was moved to, else where they were to be installed.
fs::path profile_directory() {
  std::error_code ignored;
  fs::path in_tree = SLUICE_PROFILE_SOURCE_DIR;
  if (fs::is_directory(in_tree, ignored)) return in_tree;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  const fs::path beside = program.parent_path() / SLUICE_PROFILE_FOLDER_FROM_PROGRAM;
  return fs::is_directory(beside, ignored) ? beside : fs::path(SLUICE_PROFILE_INSTALL_DIR);
}

bool is_file_name(std::string_view name) { return name.ends_with(".json"); }

[[noreturn]] void unknown(std::string_view name, const std::string& prefix) {
  throw Error("{}no profile named \"{}\"; known are {}; or give the path of a .json file", prefix,
              name, fmt::join(nearest_first(std::string(name), known_profiles()), ", "));
}

/// The file of a name, looked for in `first` and then among the known profiles.
fs::path find_file(std::string_view name, const fs::path& first, const std::string& prefix) {
  if (is_file_name(name)) return first / name;
  const bool is_plain = name.find_first_of("/\\") == std::string_view::npos && !name.empty();
  for (const fs::path& directory : {first, profile_directory()}) {
    std::error_code ignored;
    fs::path path = directory / (std::string(name) + ".json");
    if (is_plain && !directory.empty() && fs::is_regular_file(path, ignored)) return path;
  }
  unknown(name, prefix);
}

nlohmann::json read_json(const fs::path& path) {
  std::error_code ignored;
  std::ifstream file;
  if (fs::is_regular_file(path, ignored)) file.open(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad())
    throw Error("{}: cannot be read, expected a profile's JSON file", path.string());
  return parse_profile_json(text, path.string());
}

std::string resolved(const fs::path& path) {
  std::error_code ignored;
  const fs::path found = fs::weakly_canonical(path, ignored);
  return found.empty() ? path.string() : found.string();
}

/// Appends the bases of the last file, nearest first.
void append_bases(std::vector<ProfileDocument::File>& chain, fs::path directory) {
  std::vector<std::string> seen = {resolved(chain.front().path)};
  for (;;) {
    const auto base = chain.back().json.find("base");
    if (base == chain.back().json.end()) return;
    const std::string prefix = chain.back().path + ": base: ";
    if (!base->is_string()) throw Error("{}expected the name of a profile", prefix);
    const fs::path path = find_file(base->get<std::string>(), directory, prefix);
    const std::string file = resolved(path);
    if (std::find(seen.begin(), seen.end(), file) != seen.end())
      throw Error("{}\"{}\" is based on this profile itself", prefix, base->get<std::string>());
    seen.push_back(file);
    chain.push_back({path.string(), read_json(path)});
    directory = path.parent_path();
  }
}

constexpr std::string_view pageable_suffix = ":pageable";

/// Without the pinned links of a GPU.
MachineProfile with_pageable_links(MachineProfile profile, std::string_view name) {
  if (!profile.gpu) throw Error("{}: {} has no GPU, so no link to one", name, profile.name);
  const auto is_pinned = [](const LinkProfile& link) {
    return link.pinned && (link.from == Tier::hbm || link.to == Tier::hbm);
  };
  for (const LinkProfile& pinned : profile.links) {
    if (!is_pinned(pinned)) continue;
    const bool has_other =
        std::any_of(profile.links.begin(), profile.links.end(), [&](const LinkProfile& link) {
          return link.from == pinned.from && link.to == pinned.to && !link.pinned;
        });
    if (!has_other) {
      throw Error(
          "{}: {} has no pageable link from {} to {}; a file with {{\"base\": \"{}\"}} may list "
          "it, with \"pinned\": false, in \"links\", after all that the base has",
          name, profile.name, to_string(pinned.from), to_string(pinned.to), profile.name);
    }
  }
  std::erase_if(profile.links, is_pinned);
  profile.name += pageable_suffix;
  return profile;
}

}  // namespace

std::uint64_t TierProfile::usable_bytes() const {
  const double reserved = reserved_gib ? reserved_gib->value : 0;
  return static_cast<std::uint64_t>((capacity_gib.value - reserved) * 1024 * 1024 * 1024);
}

double MemoryCacheProfile::missing_share(double bytes) const {
  const double too_much = bytes - capacity_gib.value * 1024 * 1024 * 1024;
  return too_much <= 0 ? 0 : std::min(1.0, 2 * too_much / bytes);
}

const LinkProfile* MachineProfile::link(Tier from, Tier to) const {
  const LinkProfile* found = nullptr;
  for (const LinkProfile& each : links) {
    if (each.from == from && each.to == to && (found == nullptr || each.pinned)) found = &each;
  }
  return found;
}

double MachineProfile::link_gb_per_s(const LinkProfile& link, double bytes) const {
  const double own = link.bandwidth_gb_per_s.value.at(bytes);
  if (!may_bypass_pcie(link) || link.bypasses_pcie) return own;
  const LinkProfile* pcie =
      link.to == Tier::hbm ? this->link(Tier::ddr, Tier::hbm) : this->link(Tier::hbm, Tier::ddr);
  return pcie == nullptr ? own : std::min(own, pcie->bandwidth_gb_per_s.value.at(bytes));
}

std::vector<std::string> known_profiles() {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(profile_directory(), ignored)) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

MachineProfile load_profile(std::string_view name_or_path) {
  if (name_or_path.ends_with(pageable_suffix)) {
    return with_pageable_links(
        load_profile(name_or_path.substr(0, name_or_path.size() - pageable_suffix.size())),
        name_or_path);
  }
  const fs::path path =
      is_file_name(name_or_path) ? fs::path(name_or_path) : find_file(name_or_path, {}, "");
  std::vector<ProfileDocument::File> chain = {{path.string(), read_json(path)}};
  append_bases(chain, path.parent_path());
  return read_profile(ProfileDocument(std::move(chain)));
}

MachineProfile parse_profile(std::string_view json_text, std::string_view where) {
  std::vector<ProfileDocument::File> chain = {
      {std::string(where), parse_profile_json(json_text, where)}};
  append_bases(chain, {});
  return read_profile(ProfileDocument(std::move(chain)));
}

}  // namespace sluice
