#include "codelets/qk/qk.h"

#include "codelets/kv_store/attention_kv.h"
#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/operands.h"

namespace sluice {
namespace {

constexpr SublayerRange qk_alone{Sublayer::qk, Sublayer::qk};

struct QkTask {
  using Args = AttentionArgs;
  using Handles = QkHandles;
  using Operands = QkOperands;
  static constexpr const char* name = "qk";

  template <typename Data>
  static void list(const Args& args, Data& data) {
    data.reads(&Handles::batch, &Operands::batch);
    data.reads(&Handles::q, &Operands::q);
    data.kv(KvAccess(args.kv, qk_alone), &Handles::slab, &Handles::new_kv, &Operands::slab,
            &Operands::new_kv);
    data.writes(&Handles::scores, &Operands::scores);
  }
  static void run(const CpuContext& cpu, const Operands& operands) {
    const AttentionArgs& args = *operands.args;
    const AttentionKv kv(cpu, args.shape, args.kv, operands.batch, operands.slab, operands.new_kv);
    QkOperands readable = operands;
    readable.batch = kv.batch();
    readable.slab = kv.slab();
    qk_cpu(cpu, readable);
  }
  static void run(const cuda::Context& gpu, const Operands& operands) {
    gpu_kernels().qk(gpu, operands);
  }
};

}  // namespace

ScoreLayout::ScoreLayout(const DecoderShape& shape, const BatchView& batch)
    : window_(shape.sliding_window_tokens) {
  std::int64_t next = 0;
  for (const BatchRow& row : batch.rows()) {
    offsets_.push_back(next);
    next += shape.num_heads * columns(row.position);
  }
}

std::int64_t ScoreLayout::columns(std::int64_t position) const {
  return position + 1 - simd::first_visible_token(position, window_);
}

void submit_qk(const AttentionArgs& args, const QkHandles& handles) {
  submit_task<QkTask>(args.shape.dtype, args, handles);
}

}  // namespace sluice
