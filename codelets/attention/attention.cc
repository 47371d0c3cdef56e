#include "codelets/attention/attention.h"

#include "codelets/kv_store/attention_kv.h"
#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/operands.h"

namespace sluice {
namespace {

constexpr SublayerRange both_sublayers{Sublayer::qk, Sublayer::sv};

struct AttentionTask {
  using Args = AttentionArgs;
  using Handles = AttentionHandles;
  using Operands = AttentionOperands;
  static constexpr const char* name = "attention";

  template <typename Data>
  static void list(const Args& args, Data& data) {
    data.reads(&Handles::batch, &Operands::batch);
    data.reads(&Handles::q, &Operands::q);
    data.kv(KvAccess(args.kv, both_sublayers), &Handles::slab, &Handles::new_kv, &Operands::slab,
            &Operands::new_kv);
    data.reads_if(args.has_sinks(), &Handles::vectors, &Operands::vectors);
    data.writes(&Handles::out, &Operands::out);
  }
  static void run(const CpuContext& cpu, const Operands& operands) {
    const AttentionArgs& args = *operands.args;
    const AttentionKv kv(cpu, args.shape, args.kv, operands.batch, operands.slab, operands.new_kv);
    AttentionOperands readable = operands;
    readable.batch = kv.batch();
    readable.slab = kv.slab();
    attention_cpu(cpu, readable);
  }
  static void run(const cuda::Context& gpu, const Operands& operands) {
    gpu_kernels().attention(gpu, operands);
  }
};

}  // namespace

void submit_attention(const AttentionArgs& args, const AttentionHandles& handles) {
  submit_task<AttentionTask>(args.shape.dtype, args, handles);
}

simd::KvHeads kv_heads_of(const DecoderShape& shape, const BatchView& batch,
                          const BatchSequence& sequence, const std::byte* slab,
                          std::int64_t first_head, std::int64_t num_heads) {
  return {.dtype = shape.dtype,
          .num_heads = num_heads,
          .head_dim = shape.head_dim,
          .padded_head_dim = shape.padded_head_dim(),
          .slab = slab,
          .page_elements = shape.page_elements(),
          .first_offset = shape.k_offset(first_head),
          .pages = batch.pages(sequence)};
}

simd::GroupedQuery query_of(const DecoderShape& shape, const simd::KvHeads& kv,
                            std::int64_t position, std::int64_t group, const std::byte* q) {
  return {.kv = kv,
          .group = group,
          .q = q,
          .scale = attention_scale(shape),
          .first_token = simd::first_visible_token(position, shape.sliding_window_tokens),
          .end_token = position + 1};
}

}  // namespace sluice
