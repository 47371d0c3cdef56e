#pragma once

#include "schedulers/neo/layer_times.h"
#include "schedulers/schedule.h"

namespace sluice {

/// Whether the CPU's attention has to stay hidden behind the GPU's work.
enum class Hiding : std::uint8_t {
  required,   ///< NEO
  not_asked,  ///< FastDecode+ (NEO section 5.1): all run that can
};

/// NEO's six steps (section 3.2) as docs/reference/policies.md#neo reads them. Of the pools the one
/// in HBM, if there is one, is the GPU's, and the other one, if there is one, the CPU's.
Schedule neo_schedule(LayerTimes& times, const Situation& situation, Hiding hiding);

}  // namespace sluice
