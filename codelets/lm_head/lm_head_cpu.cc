#include "codelets/kernels/linear.h"
#include "codelets/kernels/simd.h"
#include "codelets/lm_head/lm_head.h"
#include "codelets/runtime/runtime.h"

namespace sluice {

void lm_head_cpu(const CpuContext& cpu, const LmHeadOperands& operands) {
  const LmHeadArgs& args = *operands.args;
  const DType dtype = args.shape.dtype;
  const std::int64_t hidden = args.shape.hidden_size;
  const std::int64_t rows = args.tag.num_logit_rows;
  const std::int64_t stride = activation_stride(hidden, dtype);
  const std::int64_t projected_stride = activation_stride(args.embed_size, dtype);
  const std::size_t input_bytes = static_cast<std::size_t>(rows * stride) * size_bytes(dtype);
  const std::size_t projected_bytes =
      args.project_out ? static_cast<std::size_t>(rows * projected_stride) * size_bytes(dtype) : 0;
  std::byte* input = cpu.workspace.reserve(input_bytes + projected_bytes);

  const float* weight = operands.final_norm;
  const float* bias = args.norm_bias && weight != nullptr ? weight + hidden : nullptr;
  cpu.pool.run(rows, [&](std::int64_t r) {
    const float* x = operands.x + r * hidden;
    std::byte* to = input + static_cast<std::size_t>(r * stride) * size_bytes(dtype);
    if (args.final_norm) {
      simd::norm_row(args.shape.norm, x, hidden, weight, bias, args.shape.norm_eps, dtype, to);
    } else {
      simd::store_row(x, hidden, dtype, to);
    }
  });
  const std::byte* head_input = input;
  if (args.project_out) {
    std::byte* projected = input + input_bytes;
    linear(cpu.pool, {.weight = operands.project_out,
                      .dtype = dtype,
                      .x = input,
                      .rows = rows,
                      .x_stride = stride,
                      .dst = projected,
                      .dst_dtype = dtype,
                      .dst_stride = projected_stride});
    head_input = projected;
  }
  linear(cpu.pool, {.weight = operands.head,
                    .dtype = dtype,
                    .x = head_input,
                    .rows = rows,
                    .x_stride = args.project_out ? projected_stride : stride,
                    .dst = operands.logits});
}

}  // namespace sluice
