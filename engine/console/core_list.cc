#include "engine/console/core_list.h"

#include <fmt/core.h>

#include <algorithm>

namespace sluice {

std::string cores_text(const std::vector<int>& cores) {
  std::string text;
  for (std::size_t first = 0; first < cores.size();) {
    std::size_t last = first;
    const int step = first + 1 < cores.size() ? cores[first + 1] - cores[first] : 1;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + step) ++last;
    if (last == first + 1 && step != 1) last = first;
    if (!text.empty()) text += ",";
    text += std::to_string(cores[first]);
    if (last > first) text += fmt::format("-{}", cores[last]);
    if (last > first && step != 1) text += fmt::format(" by {}", step);
    first = last + 1;
  }
  return text;
}

std::string groups_text(const CpuPhasePlan& plan) {
  std::string text;
  for (const CpuGroup& group : plan.groups) {
    if (!text.empty()) text += " | ";
    std::vector<int> cores = group.cores;
    std::sort(cores.begin(), cores.end());
    text += cores_text(cores);
  }
  return text;
}

}  // namespace sluice
