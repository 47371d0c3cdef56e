#include "codelets/attention/attention.h"
#include "codelets/attention/attention_call_cuda.h"
#include "codelets/attention/head_dim_cuda.h"

namespace sluice {
namespace {

namespace kernels = attention_cuda_kernels;
using kernels::Call;

/// Puts the parts of block x's split row together, for the heads of KV head y.
template <typename Element>
__global__ void combine_parts(Call call) {
  cuda::let_next_start();
  cuda::wait_for_last();
  if (static_cast<int>(blockIdx.x) >= call.work.counts->split_rows) return;
  const AttentionSplitRow row = call.work.split_rows[blockIdx.x];
  const auto group = static_cast<int>(call.shape.group_size());
  const auto dims = static_cast<int>(call.shape.head_dim);
  for (int i = static_cast<int>(threadIdx.x); i < group * dims; i += static_cast<int>(blockDim.x)) {
    const std::int64_t head = blockIdx.y * call.shape.group_size() + i / dims;
    const std::int64_t first = row.first_slot * call.shape.num_heads + head;
    float maximum = -INFINITY;
    for (int slot = 0; slot < row.num_slots; ++slot) {
      maximum = fmaxf(maximum, call.partial.tops[first + slot * call.shape.num_heads].x);
    }
    float sum = 0;
    float denominator = 0;
    for (int slot = 0; slot < row.num_slots; ++slot) {
      const std::int64_t at = first + slot * call.shape.num_heads;
      const float2 top = call.partial.tops[at];
      const float factor = exp2f(top.x - maximum);
      sum += factor * call.partial.sums[at * call.shape.padded_head_dim() + i % dims];
      denominator += factor * top.y;
    }
    denominator += kernels::sink_weight(call.sinks, head, maximum);
    put_element(sum / denominator, call.out_at<Element>(row.row, head) + i % dims);
  }
}

class Attention {
 public:
  Attention(const cuda::Context& gpu, const AttentionOperands& operands)
      : gpu_(gpu),
        operands_(operands),
        shape_(operands.args->shape),
        // The products take pairs of dimensions.
        tensor_cores_(shape_.dtype == DType::bf16 && shape_.head_dim % 2 == 0 &&
                      gpu.compute_capability >= 80),
        kv_plan_(operands.args->tag, shape_, operands.args->kv, layout_),
        plan_(*operands.args, tensor_cores_ ? LongRuns::as_tiles : LongRuns::row_by_row, layout_),
        sums_at_(
            layout_.place<float>(plan_.most().slots * shape_.num_heads * shape_.padded_head_dim())),
        tops_at_(layout_.place<float2>(plan_.most().slots * shape_.num_heads)) {}

  void run() {
    std::byte* memory = gpu_.workspace.reserve(layout_.bytes());
    const DeviceKv kv =
        kv_plan_.start(gpu_, operands_.batch, operands_.slab, operands_.new_kv, memory);
    const Call call{.shape = shape_,
                    .kv = kv,
                    .work = plan_.start(gpu_, operands_.batch, kv, memory),
                    .q = operands_.q,
                    .out = operands_.out,
                    .sinks = sinks_of(*operands_.args, operands_.vectors),
                    .partial = {reinterpret_cast<float*>(memory + sums_at_),
                                reinterpret_cast<float2*>(memory + tops_at_)}};
    const kernels::Launch launch{gpu_, plan_.most(), call};
    if (tensor_cores_) {
      kernels::attend_tiles(launch);
      kernels::attend_parts(launch);
    } else {
      kernels::attend_in_f32(launch);
    }
    shape_.dtype == DType::bf16 ? combine<BFloat16>(call) : combine<float>(call);
  }

 private:
  template <typename Element>
  void combine(const Call& call) const {
    cuda::launch("combine_parts", combine_parts<Element>,
                 {.blocks = dim3(static_cast<unsigned>(plan_.most().split_rows),
                                 static_cast<unsigned>(shape_.num_kv_heads)),
                  .threads = dim3(128),
                  .early = cuda::starts_early(gpu_)},
                 gpu_.stream, call);
  }

  const cuda::Context& gpu_;
  const AttentionOperands& operands_;
  const DecoderShape& shape_;
  bool tensor_cores_;
  cuda::WorkspaceLayout layout_;
  DeviceKvPlan kv_plan_;
  AttentionPlan plan_;
  std::size_t sums_at_, tops_at_;
};

}  // namespace

void attention_cuda(const cuda::Context& gpu, const AttentionOperands& operands) {
  check_head_dim(operands.args->shape);
  Attention(gpu, operands).run();
}

}  // namespace sluice
