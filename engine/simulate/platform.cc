#include "engine/simulate/platform.h"

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <vector>

#include "base/error.h"
#include "perfmodels/accelerated_model.h"

namespace sluice {
namespace {

/// The memories that a simulation has, in the order of StarPU's raw node numbers: its kinds one
/// after the other, main memory first. A disk is none that StarPU starts with.
struct Memory {
  Tier tier;
  const char* host;
};
constexpr const char* disk_host = "DISK0";

std::vector<Memory> memories(const CostModel& costs) {
  std::vector<Memory> all = {{Tier::ddr, "RAM"}};
  if (costs.capacity_bytes(Tier::cxl) > 0) all.push_back({Tier::cxl, "RAM1"});
  if (costs.has(Device::gpu)) all.push_back({Tier::hbm, "CUDA0"});
  return all;
}

LinkRate rate_of(const CostModel& costs, Tier from, Tier to) {
  double largest = 0;
  for (std::size_t kind = 0; kind < num_weight_kinds; ++kind) {
    const double elements = weight_elements(costs.model(), static_cast<WeightKind>(kind));
    largest = std::max(largest, costs.model().weight_bytes(elements));
  }
  const double latency_s = costs.transfer_s(from, to, 1);
  // Small weights may take no longer than the least that moves.
  double bytes = largest;
  while (costs.transfer_s(from, to, bytes) <= latency_s) bytes *= 2;
  return {bytes / (costs.transfer_s(from, to, bytes) - latency_s), latency_s};
}

/// A matrix of StarPU's bus files, from row to column.
template <typename Figure>
std::string matrix(const CostModel& costs, const Figure& figure) {
  std::string text = "# from the row's memory to the column's\n";
  const std::vector<Memory> all = memories(costs);
  for (const Memory& from : all) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const double value =
          from.tier == all[i].tier ? 0 : figure(rate_of(costs, from.tier, all[i].tier));
      text += fmt::format("{}{:.6f}", i == 0 ? "" : "\t", value);
    }
    text += "\n";
  }
  return text;
}

/// What all memories of the host share on their way to the GPU and back: PCIe, at the rate of the
/// fastest of them, which is DDR's unless another one's link bypasses PCIe
/// (MachineProfile::link_gb_per_s).
std::map<std::string, LinkRate> shared_rates(const CostModel& costs) {
  std::map<std::string, LinkRate> rates;
  if (!costs.has(Device::gpu)) return rates;
  for (const Memory& memory : memories(costs)) {
    if (memory.tier == Tier::hbm) continue;
    LinkRate& to_gpu = rates["to GPU"];
    LinkRate& from_gpu = rates["from GPU"];
    to_gpu.bytes_per_s =
        std::max(to_gpu.bytes_per_s, rate_of(costs, memory.tier, Tier::hbm).bytes_per_s);
    from_gpu.bytes_per_s =
        std::max(from_gpu.bytes_per_s, rate_of(costs, Tier::hbm, memory.tier).bytes_per_s);
  }
  return rates;
}

/// Where each way takes longer while the other is used: what both share.
std::optional<LinkRate> rate_both_ways(const CostModel& costs) {
  if (!costs.has(Device::gpu) || costs.two_way_slowdown() <= 1) return std::nullopt;
  double bytes_per_s = 0;
  for (const auto& [id, rate] : shared_rates(costs)) bytes_per_s += rate.bytes_per_s;
  return LinkRate{.bytes_per_s = bytes_per_s / costs.two_way_slowdown(), .latency_s = 0};
}

std::string shared_links(const CostModel& costs, Tier from, Tier to) {
  if (from != Tier::hbm && to != Tier::hbm) return "";
  return fmt::format("<link_ctn id=\"{} GPU\"/>{}", to == Tier::hbm ? "to" : "from",
                     rate_both_ways(costs) ? "<link_ctn id=\"to and from GPU\"/>" : "");
}

std::string link_xml(const std::string& id, const LinkRate& rate) {
  return fmt::format("  <link id=\"{}\" bandwidth=\"{:.3f}Bps\" latency=\"{:.9f}s\"/>\n", id,
                     rate.bytes_per_s, rate.latency_s);
}

std::string host_xml(const char* host) {
  return fmt::format("  <host id=\"{}\" speed=\"1Gf\"/>\n", host);
}

/// One way, over a link of its own and those that it shares.
std::string route_xml(const char* from, const char* to, const std::string& shared) {
  return fmt::format(
      "  <route src=\"{0}\" dst=\"{1}\" symmetrical=\"NO\"><link_ctn id=\"{0}-{1}\"/>{2}</route>\n",
      from, to, shared);
}

std::string platform_xml(const CostModel& costs) {
  std::string hosts;
  std::string links;
  std::string routes;
  const std::vector<Memory> all = memories(costs);
  for (const Memory& from : all) {
    if (from.tier == Tier::hbm) {
      hosts += fmt::format(
          "  <host id=\"{}\" speed=\"1Gf\">\n   <prop id=\"memsize\" value=\"{}\"/>\n"
          "   <prop id=\"memcpy_peer\" value=\"1\"/>\n  </host>\n",
          from.host, 2 * costs.capacity_bytes(Tier::hbm));  // ample: a simulation sets a limit
    } else {
      hosts += host_xml(from.host);
    }
    for (const Memory& to : all) {
      if (to.tier == from.tier) continue;
      links +=
          link_xml(fmt::format("{}-{}", from.host, to.host), rate_of(costs, from.tier, to.tier));
      routes += route_xml(from.host, to.host, shared_links(costs, from.tier, to.tier));
    }
  }
  if (costs.capacity_bytes(Tier::disk) > 0) {
    const char* ddr_host = all.front().host;
    hosts += host_xml(disk_host);
    links +=
        link_xml(fmt::format("{}-{}", disk_host, ddr_host), rate_of(costs, Tier::disk, Tier::ddr));
    routes += route_xml(disk_host, ddr_host, "");
  }
  for (const auto& [id, rate] : shared_rates(costs)) links += link_xml(id, rate);
  if (const auto rate = rate_both_ways(costs)) links += link_xml("to and from GPU", *rate);
  return fmt::format(
      "<?xml version='1.0'?>\n"
      "<!DOCTYPE platform SYSTEM \"https://simgrid.org/simgrid.dtd\">\n"
      "<platform version=\"4.1\">\n"
      " <config id=\"General\">\n"
      "  <prop id=\"network/TCP-gamma\" value=\"-1\"/>\n"
      "  <prop id=\"network/latency-factor\" value=\"1\"/>\n"
      "  <prop id=\"network/bandwidth-factor\" value=\"1\"/>\n"
      "  <prop id=\"network/weight-S\" value=\"0.0\"/>\n"
      "  <prop id=\"network/crosstraffic\" value=\"0\"/>\n"
      " </config>\n"
      " <zone id=\"machine\" routing=\"Full\">\n"
      "  <host id=\"MAIN\" speed=\"1Gf\"/>\n"
      "  <host id=\"CPU0\" speed=\"1Gf\"/>\n"
      "{}{}{} </zone>\n</platform>\n",
      hosts, links, routes);
}

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw Error("cannot write {}", path.string());
}

}  // namespace

void write_platform(const CostModel& costs, const std::string& folder) {
  const std::filesystem::path bus = std::filesystem::path(folder) / "bus";
  std::error_code error;
  std::filesystem::create_directories(bus, error);
  if (error) throw Error("cannot make {}: {}", bus.string(), error.message());
  const std::filesystem::path base = bus / platform_host;
  write(base.string() + ".platform.v4.xml", platform_xml(costs));
  write(base.string() + ".config", "# what StarPU knows the folder by\n");
  // StarPU counts MB (10^6) per second and microseconds.
  write(base.string() + ".bandwidth",
        matrix(costs, [](const LinkRate& rate) { return rate.bytes_per_s * 1e-6; }));
  write(base.string() + ".latency",
        matrix(costs, [](const LinkRate& rate) { return rate.latency_s * 1e6; }));
}

}  // namespace sluice
