#include "codelets/sv/sv.h"

#include "codelets/kv_store/attention_kv.h"
#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/operands.h"

namespace sluice {
namespace {

constexpr SublayerRange sv_alone{Sublayer::sv, Sublayer::sv};

struct SvTask {
  using Args = AttentionArgs;
  using Handles = SvHandles;
  using Operands = SvOperands;
  static constexpr const char* name = "sv";

  template <typename Data>
  static void list(const Args& args, Data& data) {
    data.reads(&Handles::batch, &Operands::batch);
    data.reads(&Handles::scores, &Operands::scores);
    data.kv(KvAccess(args.kv, sv_alone), &Handles::slab, &Handles::new_kv, &Operands::slab,
            &Operands::new_kv);
    data.reads_if(args.has_sinks(), &Handles::vectors, &Operands::vectors);
    data.writes(&Handles::out, &Operands::out);
  }
  static void run(const CpuContext& cpu, const Operands& operands) {
    const AttentionArgs& args = *operands.args;
    const AttentionKv kv(cpu, args.shape, args.kv, operands.batch, operands.slab, operands.new_kv);
    SvOperands readable = operands;
    readable.batch = kv.batch();
    readable.slab = kv.slab();
    sv_cpu(cpu, readable);
  }
  static void run(const cuda::Context& gpu, const Operands& operands) {
    gpu_kernels().sv(gpu, operands);
  }
};

}  // namespace

void submit_sv(const AttentionArgs& args, const SvHandles& handles) {
  submit_task<SvTask>(args.shape.dtype, args, handles);
}

}  // namespace sluice
