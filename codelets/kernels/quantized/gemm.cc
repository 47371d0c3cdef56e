#include "codelets/kernels/quantized/gemm.h"

#include <dnnl.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/error.h"
#include "codelets/kernels/bf16_arithmetic.h"
#include "codelets/kernels/quantized/kernels.h"

namespace sluice::quantized {
namespace {

/// Not where oneDNN was told to use less.
bool has_vnni() {
#if defined(__x86_64__)
  constexpr auto isa = dnnl_cpu_isa_avx512_core_vnni;
  return has_arithmetic(Bf16Arithmetic::multiply_add) && __builtin_cpu_supports("avx512vnni") &&
         (dnnl_get_effective_cpu_isa() & isa) == isa;
#else
  return false;
#endif
}

/// Beside AMX-BF16, for which the operating system was asked.
bool has_amx() {
#if defined(__x86_64__)
  constexpr unsigned leaf = 7;
  constexpr unsigned amx_int8 = 1U << 25;
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return has_arithmetic(Bf16Arithmetic::amx) && has_vnni() &&
         __get_cpuid_count(leaf, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & amx_int8) != 0;
#else
  return false;
#endif
}

}  // namespace

bool has_arithmetic(Arithmetic arithmetic) {
  static const bool vnni = has_vnni();
  static const bool amx = has_amx();
  switch (arithmetic) {
    case Arithmetic::vnni:
      return vnni;
    case Arithmetic::amx:
      return amx;
    case Arithmetic::portable:
      break;
  }
  return true;
}

Arithmetic fastest_arithmetic() {
  static const Arithmetic fastest = has_arithmetic(Arithmetic::amx)    ? Arithmetic::amx
                                    : has_arithmetic(Arithmetic::vnni) ? Arithmetic::vnni
                                                                       : Arithmetic::portable;
  return fastest;
}

void gemm(const Gemm& call) {
  using Codes = WeightFormat::Codes;
  const Codes codes = call.format.codes;
  if (codes != Codes::int4 && codes != Codes::int8 && codes != Codes::fp4)
    throw Error("digits multiply int4, int8 and fp4, not {}", to_string(call.format));
  if (call.rows == 0) return;
  switch (call.arithmetic) {
    case Arithmetic::vnni:
      return gemm_vnni(call);
    case Arithmetic::amx:
      return gemm_amx(call);
    case Arithmetic::portable:
      return gemm_portable(call);
  }
}

}  // namespace sluice::quantized
