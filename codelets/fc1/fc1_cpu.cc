#include "codelets/fc1/fc1.h"
#include "codelets/kernels/linear.h"
#include "codelets/kernels/norm.h"
#include "codelets/runtime/runtime.h"

namespace sluice {
void fc1_cpu(const CpuContext& cpu, const Fc1Operands& operands) {
  const DecoderShape& shape = operands.args->shape;
  const VectorLayout& at = operands.args->vectors;
  const std::int64_t rows = operands.args->tag.num_tokens;
  const std::int64_t x_stride = activation_stride(shape.hidden_size, shape.dtype);
  const std::int64_t h_stride = activation_stride(shape.ffn_size, shape.dtype);
  std::byte* input =
      cpu.workspace.reserve(static_cast<std::size_t>(rows * x_stride) * size_bytes(shape.dtype));
  block_input(cpu.pool, shape,
              {VectorLayout::at(operands.vectors, at.ffn_norm_weight),
               VectorLayout::at(operands.vectors, at.ffn_norm_bias)},
              operands.x, rows, input);
  if (shape.gated_ffn) {
    gated_linear(cpu.pool, {.gate = operands.gate,
                            .up = operands.weight,
                            .dtype = shape.dtype,
                            .x = input,
                            .rows = rows,
                            .x_stride = x_stride,
                            .gate_bias = VectorLayout::at(operands.vectors, at.gate_bias),
                            .up_bias = VectorLayout::at(operands.vectors, at.fc1_bias),
                            .activation = epilogue_of(shape.activation),
                            .limit = shape.swiglu_limit,
                            .dst = operands.h,
                            .dst_stride = h_stride});
  } else {
    linear(cpu.pool, {.weight = operands.weight,
                      .dtype = shape.dtype,
                      .x = input,
                      .rows = rows,
                      .x_stride = x_stride,
                      .bias = VectorLayout::at(operands.vectors, at.fc1_bias),
                      .epilogue = epilogue_of(shape.activation),
                      .dst = operands.h,
                      .dst_dtype = shape.dtype,
                      .dst_stride = h_stride});
  }
}

}  // namespace sluice
