#pragma once

#include "perfmodels/task.h"

namespace sluice {

struct Colour {
  double red, green, blue;  ///< 0 to 1
};

/// What pictures and traces show a sublayer in.
Colour colour_of(Sublayer sublayer);

}  // namespace sluice
