#include "codelets/attention/head_dim_cuda.h"

#include "base/error.h"

namespace sluice {

void check_head_dim(const DecoderShape& shape) {
  constexpr std::int64_t largest = 256;
  if (shape.head_dim > largest) {
    throw Error("the GPU's attention takes heads of up to {} elements, not {}", largest,
                shape.head_dim);
  }
}

}  // namespace sluice
