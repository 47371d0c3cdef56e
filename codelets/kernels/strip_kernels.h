#pragma once

#include "codelets/kernels/strip_gemm.h"

/// What strip_gemm() and pack_strip() choose from.
namespace sluice::strip {

/// bf16 by dot_products or multiply_add. Throw Error where the compiler knows no AVX-512.
void gemm_avx512(const StripGemm& call);
StripValues pack_avx512(const StripRows& from, std::byte* strip);

/// In Highway's vectors.
void gemm_portable(const StripGemm& call);

}  // namespace sluice::strip
