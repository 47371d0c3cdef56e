#include "perfmodels/chain.h"

#include <algorithm>

namespace sluice {

std::vector<Chain> cut_into_mini_batches(const BatchShape& shape, std::int64_t mini_batches,
                                         const std::vector<Placement>& placements) {
  std::vector<Chain> chains;
  const std::int64_t count = std::clamp<std::int64_t>(mini_batches, 1, shape.batch);
  for (std::int64_t i = 0; i < count; ++i) {
    BatchShape part = shape;
    part.batch = shape.batch * (i + 1) / count - shape.batch * i / count;
    chains.push_back(
        {.parts = {{.shape = part}}, .placements = placements, .takes_turns = count > 1});
  }
  return chains;
}

}  // namespace sluice
