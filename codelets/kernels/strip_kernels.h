#pragma once

#include "codelets/kernels/strip_gemm.h"

/// What strip_gemm() and pack_strip() choose from.
namespace sluice::strip {

/// bf16 by dot_products or multiply_add. Throw Error where the CPU is no x86.
std::span<const StripKernel> kernels_avx512(Bf16Arithmetic arithmetic);
StripSchedule own_avx512(std::int64_t rows, Bf16Arithmetic arithmetic);
void gemm_avx512(const StripGemm& call);
StripValues pack_avx512(const StripRows& from, std::byte* strip);

/// Pairs of rows of B, and pairs of elements of A, that one instruction of AMX multiplies.
constexpr std::int64_t amx_step_pairs = 16;
/// bf16 by amx. Throw Error where the CPU is no x86.
std::span<const StripKernel> kernels_amx();
StripSchedule own_amx(std::int64_t rows);
void gemm_amx(const StripGemm& call);
/// The same bits by AVX-512, which reads the weight faster than tiles do while there are few rows.
constexpr std::int64_t most_rows_in_amx_order = 4;
void gemm_in_amx_order(const StripGemm& call);

/// In Highway's vectors.
std::span<const StripKernel> kernels_portable();
StripSchedule own_portable(std::int64_t rows);
void gemm_portable(const StripGemm& call);

}  // namespace sluice::strip
