#pragma once

#include "codelets/kernels/quantized/strip.h"
#include "codelets/weights/weight_packing.h"

namespace sluice {

/// Weights in int4, int8, fp4 and fp8: strips of 64 columns, whose size and bytes are the same on
/// every CPU.
const WeightPacking& quantized_packing();

/// Packs the strip of columns [64 * strip, ...) of a weight, at its place in `packed`, the start of
/// the whole weight.
void pack_quantized_strip(const WeightType& type, std::int64_t strip,
                          const quantized::CodedRows& rows, std::byte* packed);

}  // namespace sluice
