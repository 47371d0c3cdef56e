#include "perfmodels/hot_experts.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

namespace sluice {
namespace {

/// The chances of a layer's experts that are hot, and of the others.
struct Chances {
  std::vector<double> hot;
  std::vector<double> cold;
};

Chances chances_of(const ModelDimensions& model, std::int64_t layer,
                   const std::vector<std::int32_t>& hot_ones) {
  std::vector<bool> is_hot(static_cast<std::size_t>(model.num_experts), false);
  for (const std::int32_t expert : hot_ones) is_hot.at(static_cast<std::size_t>(expert)) = true;
  const double even =
      static_cast<double>(model.experts_per_token) / static_cast<double>(model.num_experts);
  Chances chances;
  for (std::int64_t expert = 0; expert < model.num_experts; ++expert) {
    const double chance = model.routing ? model.routing->chance(layer, expert) : even;
    (is_hot[static_cast<std::size_t>(expert)] ? chances.hot : chances.cold).push_back(chance);
  }
  return chances;
}

/// Experts that at least one of some rows, each independent of the others, goes through.
double touched_by(const std::vector<double>& chances, double rows) {
  double touched = 0;
  for (const double chance : chances) touched -= std::expm1(rows * std::log1p(-chance));
  return touched;
}

}  // namespace

CountedHotExperts::CountedHotExperts(const ModelDimensions& model, std::int64_t first_layer,
                                     std::span<const std::vector<std::int32_t>> lists)
    : count_(std::ssize(lists.front())),
      bytes_(static_cast<double>(count_) / static_cast<double>(model.num_experts) *
             (sublayer_weight_bytes(model, Sublayer::fc1) +
              sublayer_weight_bytes(model, Sublayer::fc2))) {
  for (std::size_t i = 0; i < lists.size(); ++i) {
    Chances chances = chances_of(model, first_layer + static_cast<std::int64_t>(i), lists[i]);
    const double caught = std::accumulate(chances.hot.begin(), chances.hot.end(), 0.0);
    share_ += caught / static_cast<double>(model.experts_per_token * std::ssize(lists));
    hot_chances_.push_back(std::move(chances.hot));
    cold_chances_.push_back(std::move(chances.cold));
  }
  const auto same = [](const std::vector<std::vector<double>>& layers) {
    return std::all_of(layers.begin(), layers.end(),
                       [&](const std::vector<double>& layer) { return layer == layers.front(); });
  };
  if (!same(hot_chances_) || !same(cold_chances_)) return;
  hot_chances_.resize(1);
  cold_chances_.resize(1);
}

CountedHotExperts::Touched CountedHotExperts::touched(double rows) const {
  constexpr std::size_t most = 4096;
  const std::lock_guard lock(mutex_);
  if (const auto found = known_.find(rows); found != known_.end()) return found->second;
  if (known_.size() == most) known_.clear();
  Touched sum;
  for (const std::vector<double>& layer : hot_chances_) sum.hot += touched_by(layer, rows);
  for (const std::vector<double>& layer : cold_chances_) sum.all += touched_by(layer, rows);
  sum.all += sum.hot;
  return known_[rows] = sum;
}

ExpertPart CountedHotExperts::hot(const ModelDimensions& model, double rows) const {
  const Touched independent = touched(rows);
  const double share = independent.all > 0 ? independent.hot / independent.all : 0;
  return {.experts = static_cast<double>(count_),
          .touched = std::min(static_cast<double>(count_), share * experts_touched(model, rows)),
          .pairs = share_ * rows * static_cast<double>(model.experts_per_token)};
}

ExpertPart CountedHotExperts::cold(const ModelDimensions& model, double rows) const {
  const ExpertPart hot_ones = hot(model, rows);
  const ExpertPart all = all_experts(model, rows);
  return {.experts = all.experts - hot_ones.experts,
          .touched = std::max(0.0, all.touched - hot_ones.touched),
          .pairs = std::max(0.0, all.pairs - hot_ones.pairs)};
}

void count_hot_experts(const ModelDimensions& model, MemoryPlan& memory) {
  for (LayerHomes& homes : memory.layers) homes.hot = nullptr;
  const std::vector<std::vector<std::int32_t>>& lists = memory.hot_experts;
  if (lists.empty()) return;
  const bool alike = std::all_of(lists.begin(), lists.end(), [&](const auto& list) {
    return list.size() == lists.front().size();
  });
  std::shared_ptr<const CountedHotExperts> of_all;
  if (alike && !lists.front().empty())
    of_all = std::make_shared<CountedHotExperts>(model, 0, lists);
  for (std::size_t layer = 0; layer < lists.size(); ++layer) {
    LayerHomes& homes = memory.layers.at(layer);
    if (lists[layer].empty() || homes[WeightKind::fc1] == Tier::hbm) continue;
    homes.hot = of_all != nullptr
                    ? of_all
                    : std::make_shared<CountedHotExperts>(model, static_cast<std::int64_t>(layer),
                                                          std::span(&lists[layer], 1));
  }
}

bool LayerHomes::operator==(const LayerHomes& other) const {
  if (weights != other.weights || kv != other.kv) return false;
  if (hot == other.hot) return true;
  return hot != nullptr && other.hot != nullptr && *hot == *other.hot;
}

const CountedHotExperts* hot_experts(const LayerHomes& homes) {
  return homes[WeightKind::fc1] == Tier::hbm ? nullptr : homes.hot.get();
}

double hot_share(const ModelDimensions& model, const LayerHomes& homes, WeightKind kind) {
  if (kind != WeightKind::fc1 && kind != WeightKind::fc2) return 0;
  const CountedHotExperts* hot = hot_experts(homes);
  if (hot == nullptr) return 0;
  return static_cast<double>(hot->count()) / static_cast<double>(model.num_experts);
}

}  // namespace sluice
