#include "codelets/kernels/linear.h"
#include "codelets/runtime/runtime.h"
#include "codelets/shared_ffn/shared_ffn.h"

namespace sluice {

void shared_ffn_cpu(const CpuContext& cpu, const SharedFfnOperands& operands) {
  const SharedFfnArgs& args = *operands.args;
  const DecoderShape& shape = args.shape;
  const std::int64_t rows = args.tag.num_tokens;
  const std::int64_t x_stride = activation_stride(shape.hidden_size, shape.dtype);
  const std::int64_t h_stride = activation_stride(args.ffn_size(), shape.dtype);
  std::byte* h =
      cpu.workspace.reserve(static_cast<std::size_t>(rows * h_stride) * size_bytes(shape.dtype));
  if (shape.gated_ffn) {
    gated_linear(cpu.pool, {.gate = operands.gate,
                            .up = operands.fc1,
                            .dtype = shape.dtype,
                            .x = operands.normed,
                            .rows = rows,
                            .x_stride = x_stride,
                            .activation = epilogue_of(shape.activation),
                            .dst = h,
                            .dst_stride = h_stride});
  } else {
    linear(cpu.pool, {.weight = operands.fc1,
                      .dtype = shape.dtype,
                      .x = operands.normed,
                      .rows = rows,
                      .x_stride = x_stride,
                      .epilogue = epilogue_of(shape.activation),
                      .dst = h,
                      .dst_dtype = shape.dtype,
                      .dst_stride = h_stride});
  }
  linear(cpu.pool, {.weight = operands.fc2,
                    .dtype = shape.dtype,
                    .x = h,
                    .rows = rows,
                    .x_stride = h_stride,
                    .epilogue = Epilogue::accumulate,
                    .dst = operands.x});
}

}  // namespace sluice
