#include "codelets/kernels/bf16_arithmetic.h"

#include <dnnl.h>
#if defined(__x86_64__) && defined(__linux__)
#include <asm/prctl.h>
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace sluice {
namespace {

#if defined(__x86_64__)

bool cpu_has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
bool cpu_has_bf16_dot_products() { return __builtin_cpu_supports("avx512bf16"); }
bool is_intel() { return __builtin_cpu_is("intel"); }
/// Linux lets a process use tiles once it has asked.
bool cpu_has_amx() {
#if defined(__linux__)
  constexpr unsigned leaf = 7;
  constexpr unsigned amx_bf16 = 1U << 22;
  constexpr unsigned amx_tile = 1U << 24;
  constexpr long tile_data = 18;  // XFEATURE_XTILEDATA
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return __get_cpuid_count(leaf, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & amx_bf16) != 0 &&
         (edx & amx_tile) != 0 && syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, tile_data) == 0;
#else
  return false;
#endif
}

#else

bool cpu_has_avx512() { return false; }
bool cpu_has_bf16_dot_products() { return false; }
bool is_intel() { return false; }
bool cpu_has_amx() { return false; }

#endif

bool onednn_may_use_avx512() {
  return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
}

}  // namespace

bool has_arithmetic(Bf16Arithmetic arithmetic) {
  static const bool has_avx512 = cpu_has_avx512() && onednn_may_use_avx512();
  switch (arithmetic) {
    case Bf16Arithmetic::dot_products:
      return has_avx512 && cpu_has_bf16_dot_products();
    case Bf16Arithmetic::multiply_add:
      return has_avx512;
    case Bf16Arithmetic::amx: {
      static const bool has_amx =
          dnnl_get_effective_cpu_isa() == dnnl_cpu_isa_avx512_core_amx && cpu_has_amx();
      return has_amx;
    }
    case Bf16Arithmetic::portable:
      break;
  }
  return true;
}

Bf16Arithmetic fastest_bf16_arithmetic() {
  static const Bf16Arithmetic fastest = [] {
    if (has_arithmetic(Bf16Arithmetic::dot_products) && !is_intel())
      return Bf16Arithmetic::dot_products;
    return has_arithmetic(Bf16Arithmetic::multiply_add) ? Bf16Arithmetic::multiply_add
                                                        : Bf16Arithmetic::portable;
  }();
  return fastest;
}

Bf16Arithmetic fastest_strip_arithmetic() {
  return has_arithmetic(Bf16Arithmetic::amx) ? Bf16Arithmetic::amx : fastest_bf16_arithmetic();
}

}  // namespace sluice
