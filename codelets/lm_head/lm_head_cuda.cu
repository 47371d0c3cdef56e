#include "codelets/cuda/linear.h"
#include "codelets/cuda/norm.h"
#include "codelets/cuda/workspace_layout.h"
#include "codelets/lm_head/lm_head.h"

namespace sluice {

void lm_head_cuda(const cuda::Context& gpu, const LmHeadOperands& operands) {
  const LmHeadArgs& args = *operands.args;
  const DType dtype = args.shape.dtype;
  const std::int64_t hidden = args.shape.hidden_size;
  const std::int64_t rows = args.tag.num_logit_rows;
  const std::int64_t stride = activation_stride(hidden, dtype);
  const std::int64_t projected_stride = activation_stride(args.embed_size, dtype);
  LinearCall project{.rows = rows, .x_stride = stride};
  if (args.project_out) {
    project.weight = operands.project_out;
    project.dtype = dtype;
    project.dst_dtype = dtype;
    project.dst_stride = projected_stride;
  }
  LinearCall head{.weight = operands.head,
                  .dtype = dtype,
                  .rows = rows,
                  .x_stride = args.project_out ? projected_stride : stride,
                  .dst = operands.logits};

  cuda::WorkspaceLayout layout;
  const auto place_rows = [&](std::int64_t width) {
    return layout.place<std::byte>(rows * width * static_cast<std::int64_t>(size_bytes(dtype)));
  };
  const auto place_scratch = [&](const LinearCall& call) {
    return layout.place<std::byte>(
        static_cast<std::int64_t>(cuda::linear_scratch_bytes(gpu, call)));
  };
  const std::size_t input_at = place_rows(stride);
  const std::size_t projected_at = args.project_out ? place_rows(projected_stride) : 0;
  const std::size_t project_scratch_at = args.project_out ? place_scratch(project) : 0;
  const std::size_t head_scratch_at = place_scratch(head);
  std::byte* workspace = gpu.workspace.reserve(layout.bytes());

  const float* weight = operands.final_norm;
  const float* bias = args.norm_bias && weight != nullptr ? weight + hidden : nullptr;
  cuda::head_input(gpu, args.shape,
                   args.final_norm ? cuda::FinalNorm::normalised : cuda::FinalNorm::no,
                   {weight, bias}, operands.x, rows, workspace + input_at);
  head.x = workspace + input_at;
  if (args.project_out) {
    project.x = workspace + input_at;
    project.dst = workspace + projected_at;
    cuda::linear(gpu, project, workspace + project_scratch_at);
    head.x = workspace + projected_at;
  }
  cuda::linear(gpu, head, workspace + head_scratch_at);
}

}  // namespace sluice
