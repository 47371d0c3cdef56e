#pragma once

#include <cstddef>
#include <cstdint>

#include "codelets/cuda/context.h"
#include "codelets/kernels/norm.h"

namespace sluice::cuda {

/// block_input() and block_output() of codelets/kernels/norm.h, on device memory and asynchronous.
void block_input(const Context& gpu, const DecoderShape& shape, const NormVectors& norm,
                 const float* x, std::int64_t rows, std::byte* out);
void block_output(const Context& gpu, const DecoderShape& shape, const NormVectors& norm, float* x,
                  std::int64_t rows);

/// The head's input: x [rows, hidden_size] normalised, or only rounded where there is no final
/// norm. out as block_input()'s.
enum class FinalNorm : std::uint8_t { no, normalised };
void head_input(const Context& gpu, const DecoderShape& shape, FinalNorm final_norm,
                const NormVectors& norm, const float* x, std::int64_t rows, std::byte* out);

}  // namespace sluice::cuda
