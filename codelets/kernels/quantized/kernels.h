#pragma once

#include "codelets/kernels/quantized/gemm.h"

/// What gemm() chooses from.
namespace sluice::quantized {

/// In Highway's vectors.
void gemm_portable(const Gemm& call);
/// By AVX512_VNNI. Throw Error where the CPU is no x86.
void gemm_vnni(const Gemm& call);
/// By AMX-INT8 where there are rows enough, by AVX512_VNNI else.
void gemm_amx(const Gemm& call);

}  // namespace sluice::quantized
