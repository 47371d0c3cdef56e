#include "codelets/cuda/linear.h"
#include "codelets/cuda/norm.h"
#include "codelets/fc2/fc2.h"

namespace sluice {

void fc2_cuda(const cuda::Context& gpu, const Fc2Operands& operands) {
  const DecoderShape& shape = operands.args->shape;
  const VectorLayout& at = operands.args->vectors;
  const std::int64_t rows = operands.args->tag.num_tokens;
  const LinearCall call{.weight = operands.weight,
                        .dtype = shape.dtype,
                        .x = operands.h,
                        .rows = rows,
                        .x_stride = activation_stride(shape.ffn_size, shape.dtype),
                        .bias = VectorLayout::at(operands.vectors, at.fc2_bias),
                        .epilogue = Epilogue::accumulate,
                        .dst = operands.x};
  cuda::linear(gpu, call, gpu.workspace.reserve(cuda::linear_scratch_bytes(gpu, call)));
  cuda::block_output(gpu, shape,
                     {VectorLayout::at(operands.vectors, at.ffn_norm_weight),
                      VectorLayout::at(operands.vectors, at.ffn_norm_bias)},
                     operands.x, rows);
}

}  // namespace sluice
