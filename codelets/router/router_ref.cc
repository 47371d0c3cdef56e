#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "codelets/kernels/linear_ref.h"
#include "codelets/router/router.h"

namespace sluice {
namespace {

/// Takes one after the other the largest of those that are left; the result is the distance of the
/// last one taken from the largest one left.
double take(const std::vector<double>& values, std::int32_t count, std::vector<bool>& taken) {
  taken.assign(values.size(), false);
  const auto largest_left = [&] {
    std::size_t best = values.size();
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!taken[i] && (best == values.size() || values[i] > values[best])) best = i;
    }
    return best;
  };
  double last = 0;
  for (std::int32_t i = 0; i < count; ++i) {
    const std::size_t one = largest_left();
    taken[one] = true;
    last = values[one];
  }
  const std::size_t next = largest_left();
  return next == values.size() ? std::numeric_limits<double>::infinity() : last - values[next];
}

/// Leaves all but the best groups out; the result is as take()'s.
double leave_groups_out(const MixtureShape& mixture, std::vector<double>& values) {
  if (mixture.groups_per_token == mixture.num_groups)
    return std::numeric_limits<double>::infinity();
  const auto size = static_cast<std::size_t>(mixture.experts_per_group());
  std::vector<double> of_groups;
  for (std::size_t first = 0; first < values.size(); first += size) {
    std::vector<double> sorted(values.begin() + static_cast<std::ptrdiff_t>(first),
                               values.begin() + static_cast<std::ptrdiff_t>(first + size));
    std::sort(sorted.rbegin(), sorted.rend());
    of_groups.push_back(sorted[0] + sorted[1]);
  }
  std::vector<bool> kept;
  const double gap = take(of_groups, mixture.groups_per_token, kept);
  for (std::size_t e = 0; e < values.size(); ++e) {
    if (!kept[e / size]) values[e] = -std::numeric_limits<double>::infinity();
  }
  return gap;
}

}  // namespace

double router_reference(const RouterArgs& args, const double* normed, const float* weight,
                        const float* bias, double* weights, const float* correction) {
  const MixtureShape& mixture = args.mixture;
  const std::int64_t num_experts = mixture.num_experts;
  const std::int64_t hidden = args.shape.hidden_size;
  const bool by_sigmoid = mixture.router == RouterKind::sigmoid;
  std::vector<double> logits(static_cast<std::size_t>(num_experts));
  std::vector<bool> taken;
  double smallest_gap = std::numeric_limits<double>::infinity();
  for (std::int64_t r = 0; r < args.tag.num_tokens; ++r) {
    linear_reference(normed + r * hidden, weight, bias, hidden, num_experts, logits.data());
    double* of_row = weights + r * num_experts;
    std::vector<double> values = logits;
    for (std::size_t e = 0; e < logits.size(); ++e) {
      of_row[e] = by_sigmoid ? 1 / (1 + std::exp(-logits[e])) : std::exp(logits[e]);
      if (by_sigmoid) values[e] = of_row[e] + (correction == nullptr ? 0 : correction[e]);
    }
    if (by_sigmoid) smallest_gap = std::min(smallest_gap, leave_groups_out(mixture, values));
    smallest_gap = std::min(smallest_gap, take(values, mixture.experts_per_token, taken));
    const bool of_all = mixture.router == RouterKind::softmax_first && !mixture.norm_chosen;
    double sum = by_sigmoid ? 1e-20 : 0;
    for (std::size_t e = 0; e < logits.size(); ++e) {
      if (of_all || taken[e]) sum += of_row[e];
      if (!taken[e]) of_row[e] = 0;
    }
    const double factor =
        !by_sigmoid ? 1 / sum : mixture.routed_scaling / (mixture.norm_chosen ? sum : 1);
    for (std::size_t e = 0; e < logits.size(); ++e) of_row[e] *= factor;
  }
  return smallest_gap;
}

}  // namespace sluice
