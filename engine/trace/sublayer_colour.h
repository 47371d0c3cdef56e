#pragma once

#include "engine/draw/colour.h"
#include "perfmodels/task.h"

namespace sluice {

/// What pictures and traces show a sublayer in.
Colour colour_of(Sublayer sublayer);

}  // namespace sluice
