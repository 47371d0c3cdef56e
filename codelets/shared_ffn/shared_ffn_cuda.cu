#include <algorithm>

#include "codelets/cuda/linear.h"
#include "codelets/cuda/workspace_layout.h"
#include "codelets/shared_ffn/shared_ffn.h"

namespace sluice {
namespace {

/// `first` from the normed rows to h, linear() or gated_linear(), and FC2 from there into x.
template <typename Call>
void run(const cuda::Context& gpu, const SharedFfnOperands& operands, Call first,
         void (*multiply)(const cuda::Context&, const Call&, std::byte*)) {
  const SharedFfnArgs& args = *operands.args;
  const DecoderShape& shape = args.shape;
  first.dtype = shape.dtype;
  first.x = operands.normed;
  first.rows = args.tag.num_tokens;
  first.x_stride = activation_stride(shape.hidden_size, shape.dtype);
  first.dst_stride = activation_stride(args.ffn_size(), shape.dtype);
  LinearCall second{.weight = operands.fc2,
                    .dtype = shape.dtype,
                    .rows = first.rows,
                    .x_stride = first.dst_stride,
                    .epilogue = Epilogue::accumulate,
                    .dst = operands.x};
  cuda::WorkspaceLayout layout;
  const std::size_t h_at = layout.place<std::byte>(
      first.rows * first.dst_stride * static_cast<std::int64_t>(size_bytes(shape.dtype)));
  const std::size_t scratch_at = layout.place<std::byte>(static_cast<std::int64_t>(
      std::max(cuda::linear_scratch_bytes(gpu, first), cuda::linear_scratch_bytes(gpu, second))));
  std::byte* workspace = gpu.workspace.reserve(layout.bytes());
  first.dst = workspace + h_at;
  multiply(gpu, first, workspace + scratch_at);
  second.x = workspace + h_at;
  cuda::linear(gpu, second, workspace + scratch_at);
}

}  // namespace

void shared_ffn_cuda(const cuda::Context& gpu, const SharedFfnOperands& operands) {
  const DecoderShape& shape = operands.args->shape;
  if (shape.gated_ffn) {
    run(gpu, operands,
        GatedLinearCall{
            .gate = operands.gate, .up = operands.fc1, .activation = epilogue_of(shape.activation)},
        cuda::gated_linear);
  } else {
    run(gpu, operands,
        LinearCall{.weight = operands.fc1,
                   .epilogue = epilogue_of(shape.activation),
                   .dst_dtype = shape.dtype},
        cuda::linear);
  }
}

}  // namespace sluice
