#include "schedulers/look_ahead/order.h"

#include <cstring>
#include <limits>

namespace sluice::look_ahead {
namespace {

/// Place of a task within its layer, half a sublayer a step: a stage's first sublayer counts.
std::int64_t place_in_layer(Sublayer sublayer) {
  if (sublayer == Sublayer::kv_move) return 0;  // before what may attend to it
  if (sublayer == Sublayer::attention) sublayer = Sublayer::qk;
  if (sublayer == Sublayer::kv_store || sublayer == Sublayer::attention_join ||
      sublayer == Sublayer::select_rows)
    return 2 * static_cast<std::int64_t>(Sublayer::sv) + 1;
  return 2 * static_cast<std::int64_t>(sublayer);
}

bool is_behind_layers(const TaskTag& tag) {
  return tag.sublayer == Sublayer::lm_head || tag.sublayer == Sublayer::sampling ||
         tag.sublayer == Sublayer::logprobs;
}

std::int64_t layer_of(const TaskTag& tag) {
  return is_behind_layers(tag) ? std::numeric_limits<std::int32_t>::max() : tag.layer;
}

}  // namespace

std::optional<TaskTag> tag_of(const starpu_task* task) {
  if (task->cl == nullptr || task->cl_arg == nullptr || task->cl_arg_size < sizeof(TaskTag))
    return std::nullopt;
  TaskTag tag;
  std::memcpy(&tag, task->cl_arg, sizeof(tag));
  if (tag.magic != TaskTag::expected_magic) return std::nullopt;
  return tag;
}

Order Order::of(const TaskTag& tag) {
  const std::int64_t layer = layer_of(tag) << 24;
  const std::int64_t place = place_in_layer(tag.sublayer);
  // As they are submitted, so that late submission does not change the order.
  if (is_behind_layers(tag)) return {tag.iteration, layer + (tag.sub_batch << 8) + place};
  return {tag.iteration, layer + (place << 16) + tag.sub_batch};
}

Order Order::of_half_layer(const TaskTag& tag) {
  const bool ffn = tag.sublayer == Sublayer::fc1 || tag.sublayer == Sublayer::fc2;
  return {tag.iteration, 2 * layer_of(tag) + (ffn ? 1 : 0)};
}

}  // namespace sluice::look_ahead
