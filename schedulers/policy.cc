#include "schedulers/policy.h"

#include <algorithm>
#include <charconv>
#include <sstream>
#include <stdexcept>

#include "perfmodels/layer_cost.h"

namespace sluice {

std::vector<std::string> PolicyOptions::unknown() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : values_) {
    if (std::find(known_.begin(), known_.end(), key) == known_.end()) keys.push_back(key);
  }
  return keys;
}

std::string PolicyOptions::take_choice(const std::string& key,
                                       const std::vector<std::string>& choices) {
  std::string value = take(key, choices.front());
  if (std::find(choices.begin(), choices.end(), value) != choices.end()) return value;
  std::string names;
  for (const std::string& choice : choices) names += (names.empty() ? "" : ", ") + choice;
  throw std::runtime_error(key + "=" + value + ": expected one of " + names);
}

std::optional<double> PolicyOptions::take_number(const std::string& key, double least,
                                                 double most) {
  const std::string text = take(key, "");
  if (text.empty()) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  if (whole && value >= least && value <= most) return value;
  std::ostringstream message;
  message << key << "=" << text << ": expected a number from " << least << " to " << most;
  throw std::runtime_error(message.str());
}

void Policy::configure(PolicyOptions& /*options*/) {}

void Policy::start(const CostModel& costs, const Workload& workload) {
  costs_ = &costs;
  workload_ = workload;
  pipelines_ = {};
  placed_.reset();
}

void Policy::refuse_costs() {
  throw std::runtime_error(
      "it asks for costs() or model(), which are there once Policy::start() was called; a start() "
      "of its own has to call that one");
}

MemoryPlan Policy::plan_memory() {
  const Tier tier = costs().has(Device::cpu) ? Tier::ddr : Tier::hbm;
  return {.layers = std::vector<LayerHomes>(static_cast<std::size_t>(model().num_layers),
                                            LayerHomes::all(tier, tier)),
          .embedding = tier,
          .lm_head = tier};
}

Pipeline Policy::pipeline(Phase phase) { return pipelines_[static_cast<std::size_t>(phase)]; }

Placement Policy::place(std::int64_t /*layer*/, const BatchShape& shape, const LayerHomes& homes) {
  return best(shape, homes, Overlap::transfers);
}

Placement Policy::best(const BatchShape& shape, const LayerHomes& homes, Overlap overlap) {
  if (!placed_ || placed_->shape != shape || placed_->homes != homes ||
      placed_->overlap != overlap) {
    placed_ = {shape, homes, overlap, best_placement(costs(), shape, homes, overlap).placement};
  }
  return placed_->placement;
}

std::optional<Schedule> Policy::schedule(const Situation& /*situation*/) { return std::nullopt; }

IterationPlan Policy::plan_iteration(const std::vector<RequestView>& requests) {
  SubBatchPlan all;
  for (const RequestView& request : requests) all.requests.push_back(request.id);
  return {.sub_batches = {std::move(all)}};
}

}  // namespace sluice
