#pragma once

#include <starpu.h>

#include <cstdint>
#include <optional>

#include "perfmodels/task.h"

namespace sluice::look_ahead {

/// The tag, if this is one of Sluice's tasks.
std::optional<TaskTag> tag_of(const starpu_task* task);

/// What runs first; the lowest: earlier iteration, earlier layer, earlier sublayer
/// (SublayerProperties::place), lower sub-batch. Behind the layers a
/// sub-batch draws its tokens before the next one's LM head.
struct Order {
  std::int64_t iteration = 0;
  std::int64_t rank = 0;

  static Order of(const TaskTag& tag);
  /// The same for all tasks of half a layer (IterationPart).
  static Order of_half_layer(const TaskTag& tag);
  /// Of a task without a tag: StarPU's.
  static Order of_priority(int priority) { return {-static_cast<std::int64_t>(priority), 0}; }

  bool operator<(const Order& other) const {
    return iteration != other.iteration ? iteration < other.iteration : rank < other.rank;
  }
};

}  // namespace sluice::look_ahead
