#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "codelets/logprobs/logprobs.h"

namespace sluice {

std::vector<ReferenceLogprob> logprobs_reference(std::span<const float> logits, std::int32_t token,
                                                 std::int64_t num_likeliest) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - highest);
  const auto logprob = [&](std::int32_t id) {
    return static_cast<double>(logits[static_cast<std::size_t>(id)]) - highest - std::log(sum);
  };
  std::vector<ReferenceLogprob> found = {{token, logprob(token)}};
  std::vector<std::int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  for (std::size_t i = 0; i < static_cast<std::size_t>(num_likeliest); ++i) {
    if (i < ids.size()) {
      found.push_back({ids[i], logprob(ids[i])});
    } else {
      found.push_back({-1, -std::numeric_limits<double>::infinity()});
    }
  }
  return found;
}

}  // namespace sluice
