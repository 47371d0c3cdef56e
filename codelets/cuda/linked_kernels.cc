// In programs that link the kernels, real or emulated: they need load none.
#include "codelets/runtime/gpu_kernels.h"

namespace {

[[maybe_unused]] const bool are_used = [] {
  sluice::use_gpu_kernels(sluice_gpu_kernels);
  return true;
}();

}  // namespace
