#include "codelets/attention/attention_rows_cuda.h"
#include "codelets/qk/qk.h"
#include "codelets/qk/score_offsets_cuda.h"

namespace sluice {
namespace {

/// Block (x, y): row x, block y of all KV heads' heads; a thread a token.
template <typename Element>
__global__ void __launch_bounds__(rows::block_threads)
    score_rows(DecoderShape shape, DeviceKv kv, const Element* q, const std::int64_t* offsets,
               float* scores) {
  auto* queries = cuda::dynamic_shared<float>();
  const BatchRow row = kv.batch.rows()[blockIdx.x];
  rows::Query query{.shape = shape,
                    .kv = kv,
                    .pages = kv.pages_of(row.sequence),
                    .row = static_cast<int>(blockIdx.x),
                    .first_token = static_cast<int>(
                        simd::first_visible_token(row.position, shape.sliding_window_tokens)),
                    .end_token = row.position + 1};
  rows::choose_heads(static_cast<int>(blockIdx.y), query);
  rows::load_queries(query, q, queries);
  __syncthreads();
  const float scale = 1.0F / sqrtf(static_cast<float>(shape.head_dim));
  const std::int64_t columns = query.end_token - query.first_token;
  float* out = scores + offsets[blockIdx.x] + query.first_head * columns;
  for (int token = query.first_token + static_cast<int>(threadIdx.x); token < query.end_token;
       token += rows::block_threads) {
    float products[rows::max_heads];
    rows::dot_products<Element>(query, token, queries, products);
    for (int head = 0; head < query.num_heads; ++head) {
      out[head * columns + token - query.first_token] = scale * products[head];
    }
  }
}

}  // namespace

void qk_cuda(const cuda::Context& gpu, const QkOperands& operands) {
  const AttentionArgs& args = *operands.args;
  cuda::WorkspaceLayout layout;
  const DeviceKvPlan kv_plan(args.tag, args.shape, args.kv, layout);
  const std::size_t offsets_at = layout.place<std::int64_t>(args.tag.num_tokens);
  std::byte* memory = gpu.workspace.reserve(layout.bytes());
  const DeviceKv kv = kv_plan.start(gpu, operands.batch, operands.slab, operands.new_kv, memory);
  auto* offsets = reinterpret_cast<std::int64_t*>(memory + offsets_at);
  find_score_offsets(gpu, args.shape, operands.batch, offsets);
  const cuda::LaunchShape shape{
      .blocks =
          dim3(static_cast<unsigned>(args.tag.num_tokens),
               static_cast<unsigned>(args.shape.num_kv_heads * rows::head_blocks_of(args.shape))),
      .threads = dim3(rows::block_threads),
      .dynamic_bytes =
          static_cast<std::size_t>(rows::max_heads * args.shape.head_dim) * sizeof(float)};
  if (args.shape.dtype == DType::f32) {
    cuda::launch("score_rows", score_rows<float>, shape, gpu.stream, args.shape, kv,
                 reinterpret_cast<const float*>(operands.q), offsets, operands.scores);
  } else {
    cuda::launch("score_rows", score_rows<BFloat16>, shape, gpu.stream, args.shape, kv,
                 reinterpret_cast<const BFloat16*>(operands.q), offsets, operands.scores);
  }
}

}  // namespace sluice
