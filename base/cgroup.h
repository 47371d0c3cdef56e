#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

namespace sluice {

/// Both versions of Linux's control groups may be mounted at once.
enum class CgroupVersion : std::uint8_t { one, two };

/// Calls `look` with the folder of the group that this process is in, and of each that it is in,
/// the outermost first: of version 2, and of the version 1 hierarchy of `controller`. A container
/// may see its own group as the outermost, under a name from outside. `root` is for tests.
void for_each_cgroup(
    const std::filesystem::path& root, std::string_view controller,
    const std::function<void(const std::filesystem::path& folder, CgroupVersion)>& look);

/// Processors that the tightest CPU quota of these groups leaves: rounded down, at least 1; 0
/// without a quota.
int cgroup_quota_cores(const std::filesystem::path& root = "/");

}  // namespace sluice
