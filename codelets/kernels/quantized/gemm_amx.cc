#include "codelets/kernels/quantized/kernels.h"

#if defined(__x86_64__)

#include "codelets/kernels/cpu_amx.h"
#include "codelets/kernels/quantized/amx.h"

namespace sluice::quantized {

void gemm_amx(const Gemm& call) {
  constexpr std::int64_t most_rows_in_vectors = 4;
  call.rows <= most_rows_in_vectors ? gemm_vnni(call)
                                    : AmxMultiplication<strip::CpuAmx>(call).run();
}

}  // namespace sluice::quantized

#else

#include "base/error.h"

namespace sluice::quantized {

void gemm_amx(const Gemm& /*call*/) { throw Error("no AMX on this CPU"); }

}  // namespace sluice::quantized

#endif
