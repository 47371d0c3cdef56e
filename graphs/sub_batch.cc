#include "graphs/sub_batch.h"

#include <utility>

namespace sluice {
namespace {

void append(BatchPart& part, const BatchPart& other) {
  part.batch.append(other.batch);
  if (other.phase == Phase::prefill) part.phase = Phase::prefill;
}

}  // namespace

BatchPart SubBatch::whole() const {
  BatchPart whole = parts.at(0);
  for (std::size_t i = 1; i < parts.size(); ++i) append(whole, parts[i]);
  return whole;
}

void SubBatch::join_alike() {
  std::vector<BatchPart> joined;
  joined.reserve(parts.size());
  for (BatchPart& part : parts) {
    const bool alike = !joined.empty() && joined.back().cohort == part.cohort &&
                       joined.back().placements == part.placements;
    if (alike) {
      append(joined.back(), part);
    } else {
      joined.push_back(std::move(part));
    }
  }
  parts = std::move(joined);
}

}  // namespace sluice
