#include "codelets/kernels/strip_kernels.h"

#if defined(__x86_64__)

#include "codelets/kernels/cpu_amx.h"
#include "codelets/kernels/strip_amx.h"

namespace sluice::strip {

void gemm_amx(const StripGemm& call) {
  const StripTile& tile = call.schedule.tile;
  const bool in_tiles =
      tile ? tile == amx_low_tile || tile == amx_square_tile : call.rows > most_rows_in_amx_order;
  in_tiles ? gemm_by_amx<CpuAmx>(call) : gemm_in_amx_order(call);
}

}  // namespace sluice::strip

#else

#include "base/error.h"

namespace sluice::strip {

void gemm_amx(const StripGemm& /*call*/) { throw Error("no AMX on this CPU"); }

}  // namespace sluice::strip

#endif
