#pragma once

#include <cstdint>

#include "codelets/cuda/device.h"
#include "codelets/runtime/batch.h"
#include "codelets/runtime/shape.h"

namespace sluice {

/// Writes ScoreLayout's offset of each row to `offsets` [rows], on the device.
void find_score_offsets(const cuda::Context& gpu, const DecoderShape& shape, const BatchView& batch,
                        std::int64_t* offsets);

}  // namespace sluice
