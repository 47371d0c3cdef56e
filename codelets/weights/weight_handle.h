#pragma once

#include "codelets/runtime/runtime.h"
#include "codelets/weights/weight.h"

namespace sluice {

/// A packed weight as StarPU data, and what it is.
struct WeightHandle {
  WeightType type = {};
  DataHandle data = {};
  explicit operator bool() const { return static_cast<bool>(data); }
};

}  // namespace sluice
