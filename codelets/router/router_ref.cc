#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "codelets/kernels/linear_ref.h"
#include "codelets/router/router.h"

namespace sluice {

double router_reference(const RouterArgs& args, const double* normed, const float* weight,
                        const float* bias, double* weights) {
  const std::int64_t num_experts = args.mixture.num_experts;
  const std::int64_t hidden = args.shape.hidden_size;
  std::vector<double> logits(static_cast<std::size_t>(num_experts));
  double smallest_gap = std::numeric_limits<double>::infinity();
  for (std::int64_t r = 0; r < args.tag.num_tokens; ++r) {
    linear_reference(normed + r * hidden, weight, bias, hidden, num_experts, logits.data());
    double* of_row = weights + r * num_experts;
    std::fill_n(of_row, num_experts, 0.0);
    // One after the other the largest of those that are left.
    std::vector<bool> taken(logits.size());
    const auto largest_left = [&] {
      std::size_t best = logits.size();
      for (std::size_t e = 0; e < logits.size(); ++e) {
        if (!taken[e] && (best == logits.size() || logits[e] > logits[best])) best = e;
      }
      return best;
    };
    double last = 0;
    for (std::int32_t i = 0; i < args.mixture.experts_per_token; ++i) {
      const std::size_t expert = largest_left();
      taken[expert] = true;
      last = logits[expert];
    }
    if (const std::size_t next = largest_left(); next != logits.size())
      smallest_gap = std::min(smallest_gap, last - logits[next]);
    const bool of_all =
        args.mixture.router == RouterKind::softmax_first && !args.mixture.norm_chosen;
    double sum = 0;
    for (std::size_t e = 0; e < logits.size(); ++e) {
      if (of_all || taken[e]) sum += std::exp(logits[e]);
    }
    for (std::size_t e = 0; e < logits.size(); ++e) {
      if (taken[e]) of_row[e] = std::exp(logits[e]) / sum;
    }
  }
  return smallest_gap;
}

}  // namespace sluice
