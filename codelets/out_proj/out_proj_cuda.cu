#include "codelets/cuda/linear.h"
#include "codelets/cuda/norm.h"
#include "codelets/out_proj/out_proj.h"

namespace sluice {

void out_proj_cuda(const cuda::Context& gpu, const OutProjOperands& operands) {
  const DecoderShape& shape = operands.args->shape;
  const VectorLayout& at = operands.args->vectors;
  const std::int64_t rows = operands.args->tag.num_tokens;
  const LinearCall call{.weight = operands.weight,
                        .dtype = shape.dtype,
                        .x = operands.attention,
                        .rows = rows,
                        .x_stride = activation_stride(shape.q_size(), shape.dtype),
                        .bias = VectorLayout::at(operands.vectors, at.out_bias),
                        .epilogue = Epilogue::accumulate,
                        .dst = operands.x};
  cuda::linear(gpu, call, gpu.workspace.reserve(cuda::linear_scratch_bytes(gpu, call)));
  cuda::block_output(gpu, shape,
                     {VectorLayout::at(operands.vectors, at.attention_norm_weight),
                      VectorLayout::at(operands.vectors, at.attention_norm_bias)},
                     operands.x, rows);
}

}  // namespace sluice
