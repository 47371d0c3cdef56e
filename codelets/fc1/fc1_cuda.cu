#include "codelets/cuda/linear.h"
#include "codelets/cuda/norm.h"
#include "codelets/cuda/workspace_layout.h"
#include "codelets/fc1/fc1.h"

namespace sluice {
namespace {

/// linear() or gated_linear() over what block_input() leaves in the workspace.
template <typename Call>
void run(const cuda::Context& gpu, const Fc1Operands& operands, Call call,
         void (*multiply)(const cuda::Context&, const Call&, std::byte*)) {
  const DecoderShape& shape = operands.args->shape;
  const VectorLayout& at = operands.args->vectors;
  call.rows = operands.args->tag.num_tokens;
  call.x_stride = activation_stride(shape.hidden_size, shape.dtype);
  cuda::WorkspaceLayout layout;
  const std::size_t input_at = layout.place<std::byte>(
      call.rows * call.x_stride * static_cast<std::int64_t>(size_bytes(shape.dtype)));
  const std::size_t scratch_at =
      layout.place<std::byte>(static_cast<std::int64_t>(cuda::linear_scratch_bytes(gpu, call)));
  std::byte* workspace = gpu.workspace.reserve(layout.bytes());
  cuda::block_input(gpu, shape,
                    {VectorLayout::at(operands.vectors, at.ffn_norm_weight),
                     VectorLayout::at(operands.vectors, at.ffn_norm_bias)},
                    operands.x, call.rows, workspace + input_at);
  call.x = workspace + input_at;
  multiply(gpu, call, workspace + scratch_at);
}

}  // namespace

void fc1_cuda(const cuda::Context& gpu, const Fc1Operands& operands) {
  const DecoderShape& shape = operands.args->shape;
  const VectorLayout& at = operands.args->vectors;
  const std::int64_t h_stride = activation_stride(shape.ffn_size, shape.dtype);
  if (shape.gated_ffn) {
    run(gpu, operands,
        GatedLinearCall{.gate = operands.gate,
                        .up = operands.weight,
                        .dtype = shape.dtype,
                        .gate_bias = VectorLayout::at(operands.vectors, at.gate_bias),
                        .up_bias = VectorLayout::at(operands.vectors, at.fc1_bias),
                        .activation = epilogue_of(shape.activation),
                        .limit = shape.swiglu_limit,
                        .dst = operands.h,
                        .dst_stride = h_stride},
        cuda::gated_linear);
  } else {
    run(gpu, operands,
        LinearCall{.weight = operands.weight,
                   .dtype = shape.dtype,
                   .bias = VectorLayout::at(operands.vectors, at.fc1_bias),
                   .epilogue = epilogue_of(shape.activation),
                   .dst = operands.h,
                   .dst_dtype = shape.dtype,
                   .dst_stride = h_stride},
        cuda::linear);
  }
}

}  // namespace sluice
