#include "codelets/qkv/qkv.h"

#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/operands.h"

namespace sluice {
namespace {

constexpr SublayerRange qkv_alone{Sublayer::qkv, Sublayer::qkv};

struct QkvTask {
  using Args = QkvArgs;
  using Handles = QkvHandles;
  using Operands = QkvOperands;
  static constexpr const char* name = "qkv";

  template <typename Data>
  static void list(const Args& args, Data& data) {
    data.reads(&Handles::batch, &Operands::batch);
    data.reads(&Handles::x, &Operands::x);
    data.reads_if(args.shape.rope, &Handles::rope, &Operands::rope);
    data.reads(&Handles::vectors, &Operands::vectors);
    data.reads(&Handles::weight, &Operands::weight, args.weight);
    data.writes(&Handles::q, &Operands::q);
    data.kv(KvAccess(args.kv, qkv_alone), &Handles::slab, &Handles::new_kv, &Operands::slab,
            &Operands::new_kv);
  }
  static void run(const CpuContext& cpu, const Operands& operands) { qkv_cpu(cpu, operands); }
  static void run(const cuda::Context& gpu, const Operands& operands) {
    gpu_kernels().qkv(gpu, operands);
  }
};

}  // namespace

void submit_qkv(const QkvArgs& args, const QkvHandles& handles) {
  submit_task<QkvTask>(args.shape.dtype, args, handles, args.weight.format);
}

}  // namespace sluice
