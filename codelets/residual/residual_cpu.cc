#include "codelets/kernels/linear.h"
#include "codelets/kernels/norm.h"
#include "codelets/residual/residual.h"
#include "codelets/runtime/runtime.h"

namespace sluice {

void residual_cpu(const CpuContext& cpu, const ResidualOperands& operands) {
  const DecoderShape& shape = operands.args->shape;
  const ResidualVectors& at = operands.args->vectors;
  const std::int64_t rows = operands.args->tag.num_tokens;
  linear(cpu.pool, {.weight = operands.weight,
                    .dtype = shape.dtype,
                    .x = operands.inner,
                    .rows = rows,
                    .x_stride = activation_stride(operands.weight.type.in, shape.dtype),
                    .bias = VectorLayout::at(operands.vectors, at.bias),
                    .epilogue = Epilogue::accumulate,
                    .dst = operands.x});
  block_output(cpu.pool, shape,
               {VectorLayout::at(operands.vectors, at.norm_weight),
                VectorLayout::at(operands.vectors, at.norm_bias)},
               operands.x, rows);
}

}  // namespace sluice
