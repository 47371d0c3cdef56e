#include "codelets/runtime/routing_recorder.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace sluice {

void RoutingCounts::add(std::int64_t layer, const MixtureShape& mixture,
                        std::span<const ExpertChoice> routing) {
  per_row_ = mixture.experts_per_token;
  const auto num_experts = static_cast<std::size_t>(mixture.num_experts);
  std::vector<std::int64_t>& counts = layers_[layer];
  counts.resize(num_experts);
  std::vector<bool> touched(num_experts);
  for (const ExpertChoice& choice : routing) {
    const auto expert = static_cast<std::size_t>(choice.expert);
    ++counts.at(expert);
    touched[expert] = true;
  }
  Touched& of_rows = by_rows_[std::ssize(routing) / per_row_];
  of_rows.experts += std::count(touched.begin(), touched.end(), true);
  ++of_rows.times;
}

RoutingCounts& RoutingCounts::operator+=(const RoutingCounts& other) {
  if (other.empty()) return *this;
  per_row_ = other.per_row_;
  for (const auto& [layer, counts] : other.layers_) {
    std::vector<std::int64_t>& mine = layers_[layer];
    mine.resize(counts.size());
    for (std::size_t i = 0; i < counts.size(); ++i) mine[i] += counts[i];
  }
  for (const auto& [rows, touched] : other.by_rows_) {
    by_rows_[rows].experts += touched.experts;
    by_rows_[rows].times += touched.times;
  }
  return *this;
}

std::int64_t RoutingCounts::rows() const {
  std::int64_t most = 0;
  for (const auto& [layer, counts] : layers_)
    most = std::max(most, std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  return most / per_row_;
}

std::int64_t RoutingCounts::touched() const {
  std::int64_t sum = 0;
  for (const auto& [rows, touched] : by_rows_) sum += touched.experts;
  return sum;
}

double RoutingCounts::mean_touched() const {
  std::int64_t times = 0;
  for (const auto& [rows, touched] : by_rows_) times += touched.times;
  return times == 0 ? 0 : static_cast<double>(touched()) / static_cast<double>(times);
}

std::vector<TouchedExperts> RoutingCounts::touched_by_rows() const {
  std::vector<TouchedExperts> all;
  for (const auto& [rows, touched] : by_rows_)
    all.push_back(
        {rows, static_cast<double>(touched.experts) / static_cast<double>(touched.times)});
  return all;
}

RecordedRouting RoutingCounts::recorded(std::string model, std::int64_t num_layers) const {
  RecordedRouting recorded{.model = std::move(model),
                           .rows = rows(),
                           .layers = {},
                           .touched_by_rows = touched_by_rows()};
  recorded.layers.resize(static_cast<std::size_t>(num_layers));
  for (const auto& [layer, counts] : layers_)
    recorded.layers.at(static_cast<std::size_t>(layer)) = counts;
  return recorded;
}

}  // namespace sluice
