#include "codelets/kernels/bf16_arithmetic.h"

#include "codelets/kernels/bf16_strip.h"

namespace sluice {

#if defined(__x86_64__)

bool has_bf16_dot_products() {
  static const bool has = has_bf16_strips() && __builtin_cpu_supports("avx512bf16");
  return has;
}

Bf16Arithmetic fastest_bf16_arithmetic() {
  static const bool dot_products = has_bf16_dot_products() && !__builtin_cpu_is("intel");
  return dot_products ? Bf16Arithmetic::dot_products : Bf16Arithmetic::multiply_add;
}

#else

bool has_bf16_dot_products() { return false; }
Bf16Arithmetic fastest_bf16_arithmetic() { return Bf16Arithmetic::multiply_add; }

#endif

}  // namespace sluice
