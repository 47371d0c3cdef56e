#include "perfmodels/memory_plan.h"

#include <algorithm>

namespace sluice {

std::int64_t MemoryPlan::resident_layers() const {
  return std::count_if(layers.begin(), layers.end(),
                       [](const LayerHomes& homes) { return homes.resident(); });
}

}  // namespace sluice
