#include "codelets/weights/weight_packing.h"

#include "codelets/weights/plain.h"
#include "codelets/weights/quantized.h"

namespace sluice {

const WeightPacking& WeightPacking::of(const WeightFormat& format) {
  if (format.is_plain()) return plain_packing();
  return quantized_packing();
}

}  // namespace sluice
