#include "codelets/attention/attention_call_cuda.h"
#include "codelets/attention/attention_rows_cuda.h"
#include "codelets/attention/head_dim_cuda.h"
#include "codelets/kernels/kv_page.h"
#include "codelets/qk/score_offsets_cuda.h"
#include "codelets/sv/sv.h"

namespace sluice {
namespace {

/// Block (x, y): row x, block y of all KV heads' heads.
template <typename Element, int Blocks>
__global__ void __launch_bounds__(rows::block_threads)
    value_rows(DecoderShape shape, DeviceKv kv, const float* scores, const std::int64_t* offsets,
               const float* sinks, Element* out) {
  auto* shared = cuda::dynamic_shared<float>();
  const BatchRow row = kv.batch.rows()[blockIdx.x];
  rows::Query query{.shape = shape,
                    .kv = kv,
                    .pages = kv.pages_of(row.sequence),
                    .row = static_cast<int>(blockIdx.x),
                    .first_token = static_cast<int>(
                        simd::first_visible_token(row.position, shape.sliding_window_tokens)),
                    .end_token = row.position + 1};
  rows::choose_heads(static_cast<int>(blockIdx.y), query);
  const std::int64_t columns = query.end_token - query.first_token;
  const float* given = scores + offsets[blockIdx.x] + query.first_head * columns;
  Element* to = out + blockIdx.x * activation_stride(shape.q_size(), shape.dtype) +
                query.first_head * shape.head_dim;
  constexpr float log2_e = 1.44269504F;
  rows::attend<Element, Blocks>(
      query, shared,
      [&](int token, float(&result)[rows::max_heads]) {
        for (int head = 0; head < rows::max_heads; ++head) {
          result[head] = head < query.num_heads
                             ? log2_e * given[head * columns + token - query.first_token]
                             : 0.0F;
        }
      },
      [&](int head, int dim, float sum, float maximum, float denominator) {
        denominator += attention_cuda_kernels::sink_weight(sinks, query.first_head + head, maximum);
        put_element(sum / denominator, to + head * shape.head_dim + dim);
      });
}

template <typename Element, int Blocks>
void launch_values(const cuda::Context& gpu, const SvOperands& operands, const DeviceKv& kv,
                   const std::int64_t* offsets) {
  const DecoderShape& shape = operands.args->shape;
  cuda::launch(
      "value_rows", value_rows<Element, Blocks>,
      {.blocks = dim3(static_cast<unsigned>(operands.args->tag.num_tokens),
                      static_cast<unsigned>(shape.num_kv_heads * rows::head_blocks_of(shape))),
       .threads = dim3(rows::block_threads),
       .dynamic_bytes =
           static_cast<std::size_t>(rows::weights_floats + rows::merge_floats<Blocks>()) *
           sizeof(float)},
      gpu.stream, shape, kv, operands.scores, offsets, sinks_of(*operands.args, operands.vectors),
      reinterpret_cast<Element*>(operands.out));
}

template <typename Element>
void launch_by_size(const cuda::Context& gpu, const SvOperands& operands, const DeviceKv& kv,
                    const std::int64_t* offsets) {
  const std::int64_t dims = operands.args->shape.padded_head_dim();
  if (dims <= 64) return launch_values<Element, 2>(gpu, operands, kv, offsets);
  if (dims <= 128) return launch_values<Element, 4>(gpu, operands, kv, offsets);
  launch_values<Element, 8>(gpu, operands, kv, offsets);
}

}  // namespace

void sv_cuda(const cuda::Context& gpu, const SvOperands& operands) {
  const AttentionArgs& args = *operands.args;
  check_head_dim(args.shape);
  cuda::WorkspaceLayout layout;
  const DeviceKvPlan kv_plan(args.tag, args.shape, args.kv, layout);
  const std::size_t offsets_at = layout.place<std::int64_t>(args.tag.num_tokens);
  std::byte* memory = gpu.workspace.reserve(layout.bytes());
  const DeviceKv kv = kv_plan.start(gpu, operands.batch, operands.slab, operands.new_kv, memory);
  auto* offsets = reinterpret_cast<std::int64_t*>(memory + offsets_at);
  find_score_offsets(gpu, args.shape, operands.batch, offsets);
  if (args.shape.dtype == DType::f32) {
    launch_by_size<float>(gpu, operands, kv, offsets);
  } else {
    launch_by_size<BFloat16>(gpu, operands, kv, offsets);
  }
}

}  // namespace sluice
