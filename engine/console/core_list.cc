#include "engine/console/core_list.h"

#include <fmt/core.h>

#include <algorithm>

namespace sluice {

std::string cores_text(const std::vector<int>& cores) {
  std::string text;
  for (std::size_t first = 0; first < cores.size();) {
    std::size_t last = first;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    if (!text.empty()) text += ",";
    text += last == first ? std::to_string(cores[first])
                          : fmt::format("{}-{}", cores[first], cores[last]);
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
