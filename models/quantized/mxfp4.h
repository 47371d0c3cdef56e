#pragma once

#include <memory>
#include <string>

#include "models/quantized/method.h"

namespace sluice {

/// A weight of MXFP4: `name`_blocks [..., rows, groups, 16 bytes] and `name`_scales [..., rows,
/// groups], as gpt-oss has them; all dimensions in front of the groups count as rows, so that the
/// rows of expert e of E begin at e * rows / E. Null where there are none. Throws Error.
std::shared_ptr<const QuantizedTensor> open_mxfp4(const QuantizationConfig& config,
                                                  const Checkpoint& checkpoint,
                                                  const std::string& name);

}  // namespace sluice
