#include "codelets/cuda/linear.h"
#include "codelets/cuda/norm.h"
#include "codelets/residual/residual.h"

namespace sluice {

void residual_cuda(const cuda::Context& gpu, const ResidualOperands& operands) {
  const DecoderShape& shape = operands.args->shape;
  const ResidualVectors& at = operands.args->vectors;
  const std::int64_t rows = operands.args->tag.num_tokens;
  const LinearCall call{.weight = operands.weight,
                        .dtype = shape.dtype,
                        .x = operands.inner,
                        .rows = rows,
                        .x_stride = activation_stride(operands.weight.type.in, shape.dtype),
                        .bias = VectorLayout::at(operands.vectors, at.bias),
                        .epilogue = Epilogue::accumulate,
                        .dst = operands.x};
  cuda::linear(gpu, call, gpu.workspace.reserve(cuda::linear_scratch_bytes(gpu, call)));
  cuda::block_output(gpu, shape,
                     {VectorLayout::at(operands.vectors, at.norm_weight),
                      VectorLayout::at(operands.vectors, at.norm_bias)},
                     operands.x, rows);
}

}  // namespace sluice
