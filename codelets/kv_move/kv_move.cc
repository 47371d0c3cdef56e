#include "codelets/kv_move/kv_move.h"

#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/operands.h"

namespace sluice {
namespace {

template <KvMoveArgs::Step Step>
struct KvMoveTask {
  using Args = KvMoveArgs;
  using Handles = KvMoveHandles;
  using Operands = KvMoveOperands;
  static constexpr bool gathers = Step == KvMoveArgs::Step::gather;
  static constexpr const char* name = gathers ? "kv_gather" : "kv_scatter";

  template <typename Data>
  static void list(const Args& /*args*/, Data& data) {
    data.reads(&Handles::pages, &Operands::pages);
    if constexpr (gathers) {
      data.reads(&Handles::slab, &Operands::slab);
      data.writes(&Handles::moved, &Operands::moved);
    } else {
      data.updates(&Handles::slab, &Operands::slab);
      data.reads(&Handles::moved, &Operands::moved);
    }
  }
  static void run(const CpuContext& cpu, const Operands& operands) { kv_move_cpu(cpu, operands); }
  static void run(const cuda::Context& gpu, const Operands& operands) {
    gpu_kernels().kv_move(gpu, operands);
  }
};

void check_size(const DataHandle& handle, std::size_t expected_bytes, const char* what) {
  if (handle.size_bytes() != expected_bytes)
    throw Error("{} of a move take {} bytes, not {}", what, expected_bytes, handle.size_bytes());
}

}  // namespace

void submit_kv_move(const KvMoveArgs& args, const KvMoveHandles& handles, DType dtype) {
  const auto pages = static_cast<std::size_t>(args.num_pages);
  check_size(handles.pages, pages * sizeof(std::int32_t), "page numbers");
  check_size(handles.moved, pages * args.page_bytes, "pages");
  if (args.step == KvMoveArgs::Step::gather) {
    submit_task<KvMoveTask<KvMoveArgs::Step::gather>>(dtype, args, handles);
  } else {
    submit_task<KvMoveTask<KvMoveArgs::Step::scatter>>(dtype, args, handles);
  }
}

}  // namespace sluice
