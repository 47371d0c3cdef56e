#include "codelets/select_rows/select_rows.h"

#include "codelets/runtime/gpu_kernels.h"
#include "codelets/runtime/operands.h"

namespace sluice {
namespace {

struct SelectRowsTask {
  using Args = SelectRowsArgs;
  using Handles = SelectRowsHandles;
  using Operands = SelectRowsOperands;
  static constexpr const char* name = "select_rows";

  template <typename Data>
  static void list(const Args& /*args*/, Data& data) {
    data.reads(&Handles::batch, &Operands::batch);
    data.reads(&Handles::from, &Operands::from);
    data.writes(&Handles::to, &Operands::to);
  }
  static void run(const CpuContext& cpu, const Operands& operands) {
    select_rows_cpu(cpu, operands);
  }
  static void run(const cuda::Context& gpu, const Operands& operands) {
    gpu_kernels().select_rows(gpu, operands);
  }
};

}  // namespace

void submit_select_rows(const SelectRowsArgs& args, const SelectRowsHandles& handles, DType dtype) {
  submit_task<SelectRowsTask>(dtype, args, handles);
}

}  // namespace sluice
