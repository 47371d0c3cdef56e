#include "schedulers/look_ahead/order.h"

#include <cstring>
#include <limits>

#include "perfmodels/sublayer.h"

namespace sluice::look_ahead {
namespace {

bool is_behind_layers(const TaskTag& tag) {
  return properties_of(tag.sublayer).part == IterationPart::behind_layers;
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
  const std::int64_t place = properties_of(tag.sublayer).place;  // of a stage its first one's
  // As they are submitted, so that late submission does not change the order.
  if (is_behind_layers(tag)) return {tag.iteration, layer + (tag.sub_batch << 8) + place};
  return {tag.iteration, layer + (place << 16) + tag.sub_batch};
}

Order Order::of_half_layer(const TaskTag& tag) {
  const bool ffn = properties_of(tag.sublayer).part == IterationPart::ffn;
  return {tag.iteration, 2 * layer_of(tag) + (ffn ? 1 : 0)};
}

}  // namespace sluice::look_ahead
