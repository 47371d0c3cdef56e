#pragma once

#include "perfmodels/task.h"

namespace sluice::cuda {

struct Context;

// When the sublayers of one task begin and end on its stream, where anybody wants times; for
// kernels that stamp their sublayers themselves, too.

void start_sublayers(const Context& gpu);
void end_of_sublayer(const Context& gpu, Phase phase, Sublayer sublayer);

}  // namespace sluice::cuda
