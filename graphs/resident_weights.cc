#include "graphs/resident_weights.h"

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <utility>

namespace sluice {
namespace {

bool all_in_hbm(const LayerHomes& homes, std::initializer_list<WeightKind> kinds) {
  return std::all_of(kinds.begin(), kinds.end(),
                     [&](WeightKind kind) { return homes[kind] == Tier::hbm; });
}

/// What of a layer has its home in HBM, whole.
struct ResidentPieces {
  explicit ResidentPieces(const LayerHomes& homes)
      : vectors(all_in_hbm(homes, {WeightKind::vectors})),
        qkv(all_in_hbm(homes, {WeightKind::query, WeightKind::key, WeightKind::value})),
        out(all_in_hbm(homes, {WeightKind::out_proj})),
        fc1(all_in_hbm(homes, {WeightKind::fc1})),
        fc2(all_in_hbm(homes, {WeightKind::fc2})) {}
  bool vectors, qkv, out, fc1, fc2;
};

std::uint64_t packed_bytes(const std::optional<LinearShape>& shape) {
  return shape ? PackedLayout::get(*shape).size_bytes() : 0;
}

std::uint64_t float_bytes(std::int64_t count) {
  return static_cast<std::uint64_t>(count) * sizeof(float);
}

}  // namespace

WeightSizes::WeightSizes(const ModelConfig& config, DType dtype, std::uint64_t table_bytes)
    : before_layers(table_bytes),
      vectors(float_bytes(std::max<std::int64_t>(1, vector_layout(config).num_elements))) {
  const PackedWeights packed(config, dtype);
  before_layers += packed_bytes(packed.project_in);
  if (config.position == PositionKind::rope) before_layers += float_bytes(config.head_dim / 2);
  head = packed_bytes(packed.head);
  before_head += packed_bytes(packed.project_out);
  qkv = packed_bytes(packed.qkv);
  out = packed_bytes(packed.out);
  fc1 = packed_bytes(packed.fc1) + packed_bytes(packed.gate);
  fc2 = packed_bytes(packed.fc2);
  if (config.final_norm && config.norm_affine)
    before_head += float_bytes(config.hidden_size) * (config.norm == NormKind::layer_norm ? 2 : 1);
}

std::uint64_t WeightSizes::resident(const MemoryPlan& memory) const {
  std::uint64_t bytes = memory.embedding == Tier::hbm ? before_layers : 0;
  if (memory.lm_head == Tier::hbm) bytes += head + before_head;
  for (const LayerHomes& homes : memory.layers) {
    const ResidentPieces stays(homes);
    for (const auto& [there, size] : {std::pair(stays.vectors, vectors),
                                      {stays.qkv, qkv},
                                      {stays.out, out},
                                      {stays.fc1, fc1},
                                      {stays.fc2, fc2}})
      bytes += there ? size : 0;
  }
  return bytes;
}

ResidentWeights::ResidentWeights(const ModelWeights& model, const MemoryPlan& memory) {
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
    const ResidentPieces stays(memory.layers[layer]);
    const LayerWeights& weights = model.layers()[layer];
    if (stays.vectors) add(weights.vectors);
    if (stays.qkv) add(weights.qkv);
    if (stays.out) add(weights.out);
    if (stays.fc1) {
      add(weights.fc1);
      add(weights.gate);
    }
    if (stays.fc2) add(weights.fc2);
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
    // From a disk it has passed through main memory, which has room for little.
    if (starpu_data_get_home_node(handle) != STARPU_MAIN_RAM)
      starpu_data_evict_from_node(handle, STARPU_MAIN_RAM);
  }
}

void ResidentWeights::add(const DataHandle& handle) {
  if (handle) handles_.push_back(handle.get());
}

}  // namespace sluice
