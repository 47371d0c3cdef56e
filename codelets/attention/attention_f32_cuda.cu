#include "codelets/attention/attention_call_cuda.h"
#include "codelets/attention/attention_rows_cuda.h"

namespace sluice::attention_cuda_kernels {
namespace {

/// Parts in f32 arithmetic: block i, i + gridDim.x ... of (part, KV head's heads).
template <typename Element, int Blocks>
__global__ void __launch_bounds__(rows::block_threads) attend_parts_in_f32(Call call) {
  cuda::let_next_start();
  cuda::wait_for_last();
  auto* queries = cuda::dynamic_shared<float>();
  float* shared = queries + rows::max_heads * call.shape.head_dim;
  const auto head_blocks =
      static_cast<int>(call.shape.num_kv_heads * rows::head_blocks_of(call.shape));
  const float scale = rows::log2_scale(call.shape);
  const std::int64_t count = std::int64_t{call.work.counts->parts} * head_blocks;
  for (std::int64_t i = blockIdx.x; i < count; i += gridDim.x) {
    const AttentionPart part = call.work.parts[i / head_blocks];
    rows::Query query{.shape = call.shape,
                      .kv = call.kv,
                      .pages = part.pages,
                      .row = part.row,
                      .first_token = part.first_token,
                      .end_token = part.end_token};
    rows::choose_heads(static_cast<int>(i % head_blocks), query);
    rows::load_queries(query, reinterpret_cast<const Element*>(call.q), queries);
    __syncthreads();
    rows::attend<Element, Blocks>(
        query, shared,
        [&](int token, float(&scores)[rows::max_heads]) {
          rows::dot_products<Element>(query, token, queries, scores);
          for (float& score : scores) score *= scale;
        },
        [&](int head, int dim, float sum, float maximum, float denominator) {
          call.store<Element>(part, query.first_head + head, dim, sum, maximum, denominator);
        });
  }
}

template <typename Element, int Blocks>
void launch_form(const Launch& launch) {
  const DecoderShape& shape = launch.call.shape;
  const std::int64_t floats =
      rows::max_heads * shape.head_dim + rows::weights_floats + rows::merge_floats<Blocks>();
  cuda::launch("attend_parts", attend_parts_in_f32<Element, Blocks>,
               {.blocks = launch.looping_blocks(launch.most.parts * shape.num_kv_heads *
                                                rows::head_blocks_of(shape)),
                .threads = dim3(rows::block_threads),
                .dynamic_bytes = static_cast<std::size_t>(floats) * sizeof(float),
                .early = cuda::starts_early(launch.gpu)},
               launch.gpu.stream, launch.call);
}

}  // namespace

void attend_in_f32(const Launch& launch) {
  with_head_form(launch.call.shape, [&](auto form) {
    constexpr int blocks = decltype(form)::blocks;
    launch.call.shape.dtype == DType::bf16 ? launch_form<BFloat16, blocks>(launch)
                                           : launch_form<float, blocks>(launch);
  });
}

}  // namespace sluice::attention_cuda_kernels
