#include "graphs/resident_weights.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>

namespace sluice {
namespace {

bool all_in_hbm(const LayerHomes& homes, std::initializer_list<WeightKind> kinds) {
  return std::all_of(kinds.begin(), kinds.end(),
                     [&](WeightKind kind) { return homes[kind] == Tier::hbm; });
}

}  // namespace

ResidentWeights::ResidentWeights(const LoadedModel& model, const MemoryPlan& memory) {
  if (memory.embedding == Tier::hbm) {
    for (const DataHandle* handle :
         {&model.token_table, &model.positions, &model.project_in, &model.frequencies})
      add(*handle);
  }
  if (memory.lm_head == Tier::hbm) {
    for (const DataHandle* handle : {&model.head, &model.project_out, &model.final_norm})
      add(*handle);
  }
  for (std::size_t layer = 0; layer < memory.layers.size(); ++layer) {
    const LayerHomes& homes = memory.layers[layer];
    const LayerWeights& weights = model.layers()[layer];
    if (all_in_hbm(homes, {WeightKind::vectors})) add(weights.vectors);
    if (all_in_hbm(homes, {WeightKind::query, WeightKind::key, WeightKind::value}))
      add(weights.qkv);
    if (all_in_hbm(homes, {WeightKind::out_proj})) add(weights.out);
    if (all_in_hbm(homes, {WeightKind::fc1})) {
      add(weights.fc1);
      add(weights.gate);
    }
    if (all_in_hbm(homes, {WeightKind::fc2})) add(weights.fc2);
  }
}

ResidentWeights::~ResidentWeights() {
  for (std::size_t i = 0; i < num_held_; ++i)
    starpu_data_release_on_node(handles_[i], static_cast<int>(node_));
}

std::uint64_t ResidentWeights::size_bytes() const {
  return std::accumulate(handles_.begin(), handles_.end(), std::uint64_t{0},
                         [](std::uint64_t sum, starpu_data_handle_t handle) {
                           return sum + starpu_data_get_size(handle);
                         });
}

void ResidentWeights::hold_on(unsigned node) {
  node_ = node;
  for (starpu_data_handle_t handle : handles_) {
    check_starpu(starpu_data_acquire_on_node(handle, static_cast<int>(node), STARPU_R),
                 "bringing resident weights to the accelerator");
    ++num_held_;
  }
}

void ResidentWeights::add(const DataHandle& handle) {
  if (handle) handles_.push_back(handle.get());
}

}  // namespace sluice
