#include "base/cgroup.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>

namespace sluice {
namespace {

namespace fs = std::filesystem;

void walk(const fs::path& top, const fs::path& group, CgroupVersion version,
          const std::function<void(const fs::path&, CgroupVersion)>& look) {
  fs::path folder = top;
  look(folder, version);
  for (const fs::path& part : group.relative_path()) {
    folder /= part;
    look(folder, version);
  }
}

/// Version 1 is mounted by the name of a controller, or of all that share a hierarchy.
fs::path hierarchy(const fs::path& mounted, std::string_view controller,
                   const std::string& controllers) {
  std::error_code ignored;
  const fs::path alone = mounted / controller;
  return fs::exists(alone, ignored) ? alone : mounted / controllers;
}

/// Processors; nothing where there is no limit ("max", -1).
std::optional<double> quota_of(const fs::path& folder, CgroupVersion version) {
  double quota = 0;
  double period = 0;
  if (version == CgroupVersion::two) {
    std::ifstream file(folder / "cpu.max");
    if (!(file >> quota >> period)) return std::nullopt;
  } else {
    std::ifstream quota_file(folder / "cpu.cfs_quota_us");
    std::ifstream period_file(folder / "cpu.cfs_period_us");
    if (!(quota_file >> quota) || !(period_file >> period)) return std::nullopt;
  }
  if (!(quota > 0) || !(period > 0)) return std::nullopt;
  return quota / period;
}

}  // namespace

void for_each_cgroup(const fs::path& root, std::string_view controller,
                     const std::function<void(const fs::path&, CgroupVersion)>& look) {
  std::ifstream groups(root / "proc/self/cgroup");
  const fs::path mounted = root / "sys/fs/cgroup";
  std::string line;
  while (std::getline(groups, line)) {  // NUMBER:CONTROLLERS:PATH
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string group = line.substr(second + 1);
    if (controllers.empty()) {
      walk(mounted, group, CgroupVersion::two, look);
    } else if (("," + controllers + ",").find("," + std::string(controller) + ",") !=
               std::string::npos) {
      walk(hierarchy(mounted, controller, controllers), group, CgroupVersion::one, look);
    }
  }
}

int cgroup_quota_cores(const fs::path& root) {
  constexpr double most = 1 << 20;
  std::optional<double> tightest;
  for_each_cgroup(root, "cpu", [&](const fs::path& folder, CgroupVersion version) {
    const std::optional<double> quota = quota_of(folder, version);
    if (quota) tightest = std::min(*quota, tightest.value_or(most));
  });
  return tightest ? std::max(1, static_cast<int>(*tightest)) : 0;
}

}  // namespace sluice
