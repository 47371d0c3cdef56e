#include "codelets/kernels/linear.h"
#include "codelets/kernels/norm.h"
#include "codelets/out_proj/out_proj.h"
#include "codelets/runtime/runtime.h"

namespace sluice {

void out_proj_cpu(const CpuContext& cpu, const OutProjOperands& operands) {
  const DecoderShape& shape = operands.args->shape;
  const VectorLayout& at = operands.args->vectors;
  const std::int64_t rows = operands.args->tag.num_tokens;
  linear(cpu.pool, {.weight = operands.weight,
                    .dtype = shape.dtype,
                    .x = operands.attention,
                    .rows = rows,
                    .x_stride = activation_stride(shape.q_size(), shape.dtype),
                    .bias = VectorLayout::at(operands.vectors, at.out_bias),
                    .epilogue = Epilogue::accumulate,
                    .dst = operands.x});
  block_output(cpu.pool, shape,
               {VectorLayout::at(operands.vectors, at.attention_norm_weight),
                VectorLayout::at(operands.vectors, at.attention_norm_bias)},
               operands.x, rows);
}

}  // namespace sluice
