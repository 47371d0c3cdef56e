#pragma once

#include "codelets/runtime/shape.h"

namespace sluice {

/// Throws Error when a head is larger than attention's CUDA kernels keep in registers: 256
/// elements.
void check_head_dim(const DecoderShape& shape);

}  // namespace sluice
