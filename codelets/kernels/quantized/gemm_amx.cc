#include "codelets/kernels/quantized/kernels.h"

#if defined(__x86_64__)

#include "codelets/kernels/quantized/amx.h"

namespace sluice::quantized {
namespace {

/// The CPU's. By its mnemonics, as the compiler's own functions take literal numbers of tiles only.
struct CpuAmx {
  static void configure(const strip::AmxConfiguration& wanted) {
    asm volatile("ldtilecfg %0" ::"m"(wanted));
  }
  static void release() { asm volatile("tilerelease" ::: "memory"); }
  template <int Tile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" ::"i"(Tile));
  }
  template <int Tile>
  static void load(const void* rows, std::int64_t stride_bytes) {
    asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(Tile), "r"(rows), "r"(stride_bytes)
                 : "memory");
  }
  template <int Tile>
  static void store(void* rows, std::int64_t stride_bytes) {
    asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(Tile), "r"(rows), "r"(stride_bytes)
                 : "memory");
  }
  /// sum += a b, bytes with and without sign
  template <int Sum, int A, int B>
  static void multiply_bytes() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(Sum), "i"(A), "i"(B));
  }
};

}  // namespace

void gemm_amx(const Gemm& call) {
  constexpr std::int64_t most_rows_in_vectors = 4;
  call.rows <= most_rows_in_vectors ? gemm_vnni(call) : AmxMultiplication<CpuAmx>(call).run();
}

}  // namespace sluice::quantized

#else

#include "base/error.h"

namespace sluice::quantized {

void gemm_amx(const Gemm& /*call*/) { throw Error("no AMX on this CPU"); }

}  // namespace sluice::quantized

#endif
