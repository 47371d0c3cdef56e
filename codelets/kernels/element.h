#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace sluice {

/// Element `index` of an array of f32 or bf16, for the references.
inline double element_at(const std::byte* base, std::int64_t index, DType dtype) {
  return dtype == DType::f32 ? reinterpret_cast<const float*>(base)[index]
                             : to_float(reinterpret_cast<const BFloat16*>(base)[index]);
}

}  // namespace sluice
