#include "codelets/fc2/fc2.h"
#include "codelets/kernels/linear.h"
#include "codelets/kernels/norm.h"
#include "codelets/runtime/runtime.h"

namespace sluice {

void fc2_cpu(const CpuContext& cpu, const Fc2Operands& operands) {
  const DecoderShape& shape = operands.args->shape;
  const VectorLayout& at = operands.args->vectors;
  const std::int64_t rows = operands.args->tag.num_tokens;
  linear(cpu.pool, {.weight = operands.weight,
                    .dtype = shape.dtype,
                    .x = operands.h,
                    .rows = rows,
                    .x_stride = activation_stride(shape.ffn_size, shape.dtype),
                    .bias = VectorLayout::at(operands.vectors, at.fc2_bias),
                    .epilogue = Epilogue::accumulate,
                    .dst = operands.x});
  block_output(cpu.pool, shape,
               {VectorLayout::at(operands.vectors, at.ffn_norm_weight),
                VectorLayout::at(operands.vectors, at.ffn_norm_bias)},
               operands.x, rows);
}

}  // namespace sluice
